"""Unary calls and the server stream, as gRPC handlers."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NoReturn, TypeVar

import grpc
from google.protobuf.message import Message

from tokend_server.service.usage import Usage
from tokend_server.transport.calls import Call
from tokend_server.transport.status import CODES

__all__ = ["DownloadRun", "UnaryRun"]

_Request = TypeVar("_Request", bound=Message)


class UnaryRun(Generic[_Request]):
    """Answers one unary call on a thread of the unary pool."""

    __slots__ = ("_answer", "_call", "_request_type")

    def __init__(
        self, call: Call, request_type: type[_Request], answer: Callable[[_Request], tuple[Message, Usage]]
    ) -> None:
        self._call = call
        self._request_type = request_type
        self._answer = answer

    def __call__(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """Parse, answer and serialize; an error becomes the call's status."""
        call = self._call
        try:
            call.begin()
            message, usage = self._answer(call.receive(self._request_type, data))
            reply = call.reply(message)
        except BaseException as error:  # noqa: BLE001 (a native panic ends its call alone)
            _abort(call, context, error)
        if call.succeed(context):
            call.observe(usage)
        return reply


class DownloadRun(Generic[_Request]):
    """Answers one call of a server-streaming method, message by message."""

    def __init__(
        self,
        call: Call,
        request_type: type[_Request],
        answers: Callable[[_Request], Iterator[Message]],
        pool: ThreadPoolExecutor,
    ) -> None:
        self._call = call
        self._request_type = request_type
        self._answers = answers
        # gRPC looks this attribute up: a slow reader holds a thread of the streams, not one of the unary calls.
        self.experimental_thread_pool = pool

    def __call__(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Parse the request and yield each answer; an error becomes the call's status."""
        call = self._call
        try:
            call.begin()
            for answer in self._answers(call.receive(self._request_type, data)):
                yield call.reply(answer)
        except GeneratorExit:
            call.abandon(context)
            raise
        except BaseException as error:  # noqa: BLE001 (a native panic ends its call alone)
            _abort(call, context, error)
        call.succeed(context)


def _abort(call: Call, context: grpc.ServicerContext, error: BaseException) -> NoReturn:
    refused = call.fail(context, error)
    context.abort(CODES[refused.reason], refused.message)
    raise AssertionError("abort raises")
