"""Unary calls and the server stream, as gRPC handlers."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, NoReturn, TypeVar

import grpc
from google.protobuf.message import Message

from tokend_server.errors import TokenizerLoading
from tokend_server.metrics import MethodMetrics
from tokend_server.service.usage import Usage
from tokend_server.transport.calls import Call, CallScope
from tokend_server.transport.status import CODES

__all__ = ["DownloadRun", "UnaryMethod", "UnaryRun", "loading"]

_Request = TypeVar("_Request", bound=Message)


def loading(_given: object) -> NoReturn:
    """Stand in for an answer that is looked up before there is one."""
    raise TokenizerLoading


class UnaryMethod(Generic[_Request]):
    """One unary method, whichever front takes its calls."""

    __slots__ = ("_request_type", "_scope", "answer", "metrics", "name")

    def __init__(
        self, scope: CallScope, name: str, metrics: MethodMetrics, request_type: type[_Request]
    ) -> None:
        self._scope = scope
        self._request_type = request_type
        self.name = name
        self.metrics = metrics
        self.answer: Callable[[_Request], tuple[Message, Usage]] = loading
        """Set once, when there is a tokenizer."""

    def arrived(self, metadata: Sequence[tuple[str, str | bytes]]) -> Call:
        """Begin a call of this method."""
        return Call(self._scope, self.name, self.metrics, metadata)

    def reply(self, call: Call, data: bytes) -> tuple[bytes, Usage]:
        """Parse, answer and serialize; what it raises becomes the call's status.

        Args:
            call: One that `arrived` made.
            data: The request on the wire.

        Returns:
            The answer on the wire, and what to count once the caller has it.
        """
        call.begin()
        message, usage = self.answer(call.receive(self._request_type, data))
        return call.reply(message), usage


class UnaryRun(grpc.RpcMethodHandler):  # type: ignore[type-arg]  # generic in its stubs alone
    """One unary call on a thread of the unary pool; it is the call's handler, as gRPC asks for one, itself."""

    request_streaming = False
    response_streaming = False
    # Bytes in, bytes out.
    request_deserializer = None
    response_serializer = None

    def __init__(self, method: UnaryMethod[Any], call: Call) -> None:
        self._method = method
        self._call = call

    def unary_unary(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """Answer; an error becomes the call's status."""
        call = self._call
        try:
            reply, usage = self._method.reply(call, data)
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
