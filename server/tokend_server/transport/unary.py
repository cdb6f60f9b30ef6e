"""Unary calls and the server stream: what is the same for every front, and the download's gRPC handler."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import grpc
from google.protobuf.message import Message

from tokend_server import logs
from tokend_server.errors import RequestError, TokenizerLoading
from tokend_server.metrics import MethodMetrics
from tokend_server.transport.calls import Call, CallScope
from tokend_server.transport.status import CODES, Metadata, code_number, error_trailer
from tokend_server.transport.streaming import StreamThreads
from tokend_server.transport.threads import SMALL_BYTES, CallThreads

if TYPE_CHECKING:
    from tokend_server.service.usage import Usage
    from tokend_server.service.work import Work

__all__ = ["DownloadRun", "TakenCall", "UnaryMethod", "loading"]

_log = logs.get("unary")

_INTERNAL = grpc.StatusCode.INTERNAL.value[0]

_Request = TypeVar("_Request", bound=Message)


def loading(_given: object) -> NoReturn:
    """Stand in for an answer that is looked up before there is one."""
    raise TokenizerLoading


class UnaryMethod(Generic[_Request]):
    """One unary method, whichever front takes its calls."""

    __slots__ = (
        "_allows_tokens",
        "_scope",
        "_texts_field",
        "answer",
        "enter",
        "metrics",
        "name",
        "request_type",
    )

    def __init__(
        self, scope: CallScope, name: str, metrics: MethodMetrics, request_type: type[_Request]
    ) -> None:
        self._scope = scope
        self.name = name
        self.metrics = metrics
        self.request_type = request_type
        self.answer: Callable[[_Request], tuple[Message, Usage]] = loading
        """Set once, when there is a tokenizer."""
        self.enter = scope.admission.unary_work.enter
        """Takes a message of so many bytes in, or refuses it; see `Budget.enter`."""
        fields = request_type.DESCRIPTOR.fields_by_name
        self._texts_field = next((name for name in ("texts", "sequences") if name in fields), None)
        self._allows_tokens = hasattr(getattr(request_type(), "options", None), "allowed_special_tokens")

    def arrived(self, metadata: Sequence[tuple[str, str | bytes]]) -> Call:
        """Begin a call of this method."""
        return Call(self._scope, self.name, self.metrics, metadata)

    def n_texts(self, request: Any) -> int:  # noqa: ANN401 (a message with fields of its own)
        """Count the texts, or the lists of ids, in a request."""
        return 1 if self._texts_field is None else len(getattr(request, self._texts_field))

    def may_take_long(self, request: Any) -> bool:  # noqa: ANN401 (a message with fields of its own)
        """Whether even a small request may need work of a second: an instance for tokens that it allows."""
        return self._allows_tokens and bool(request.options.allowed_special_tokens)


class TakenCall(ABC):
    """A unary call that a front hands over: it is answered once, whatever happens.

    A front says how an answer is sent and whether the caller is still there; everything between is here.
    """

    __slots__ = ("_work", "call", "method")

    pushback = True
    """Whether the front can send gRPC's own key for a pause before a retry."""

    def __init__(self, method: UnaryMethod[Any], metadata: Sequence[tuple[str, str | bytes]]) -> None:
        self.method = method
        self.call = method.arrived(metadata)
        self._work: Work | None = None

    @abstractmethod
    def begins(self) -> bool:
        """Say that the work on it begins; False if the caller has left, so that it need not."""

    @abstractmethod
    def time_remaining(self) -> float | None:
        """Return the seconds to the deadline, if there is one; 0 when it has passed."""

    @abstractmethod
    def respond(self, reply: bytes, trailer: Metadata) -> bool:
        """Send the answer; False if the caller has left."""

    @abstractmethod
    def fail(self, code: int, message: str, trailer: Metadata) -> None:
        """Send a status that is not OK, unless the caller has left."""

    def take(self, data: bytes, threads: CallThreads) -> None:
        """Answer at once what is small, and have the threads answer what is not; raises nothing.

        What goes to the threads, and does not fit beside all that is in work there or waits, is refused at once. What
        is small neither waits nor lets others wait, and needs no room.

        Args:
            data: The request on the wire.
            threads: Where work goes that others should not wait for.
        """
        n_bytes = len(data)
        if n_bytes <= SMALL_BYTES:
            self._run(data, threads)
            return
        try:
            # Before it takes up any room: strangers must not keep others out.
            self.call.authorize()
            self._work = self.method.enter(n_bytes)
        except RequestError as error:
            if self.begins():
                self._refuse(error)
            else:
                self.call.abandon(self)
        else:
            threads.submit(n_bytes, self._run, data)

    def _run(self, data: bytes, threads: CallThreads | None = None) -> None:
        """Parse and answer; with threads, a request that may take long is left to them."""
        call, method = self.call, self.method
        try:
            if not self.begins():
                call.abandon(self)
                self._let_go()
                return
            call.begin()
            request = call.receive(method.request_type, data)
            late = threads is not None and method.may_take_long(request)
            if late:
                self._work = method.enter(len(data))
            if self._work is not None:
                self._work.has_texts(method.n_texts(request))
            if threads is not None and late:
                threads.submit_long(self._answer, request)
            else:
                self._answer(request)
        except BaseException as error:  # noqa: BLE001 (a native panic ends its call alone)
            self._refuse(error)

    def _answer(self, request: Message) -> None:
        call = self.call
        try:
            message, usage = call.work(self.method.answer, request)
            reply = call.reply(message)
            # Before its caller knows the answer, and may send the next call.
            self._let_go()
            if self.respond(reply, call.trailer()):
                call.answered(usage)
            else:
                call.abandon(self)
        except BaseException as error:  # noqa: BLE001 (as above)
            self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        call = self.call
        self._let_go()
        refused = call.refusal(error)
        code = code_number(refused.reason)
        try:
            self.fail(
                code, refused.message, (*error_trailer(refused, pushback=self.pushback), *call.trailer())
            )
        except Exception as unsent:  # noqa: BLE001 (without a status the caller would wait for ever)
            _log.error("a status could not be sent", error=unsent, request_id=call.request_id)
            self.fail(_INTERNAL, "the server failed on this request", ())
        call.end(code)

    def _let_go(self) -> None:
        if self._work is not None:
            self._work.let_go()


class DownloadRun(Generic[_Request]):
    """Answers one call of a server-streaming method, message by message."""

    def __init__(
        self,
        call: Call,
        request_type: type[_Request],
        answers: Callable[[_Request], Iterator[Message]],
        pool: StreamThreads,
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
            self.experimental_thread_pool.check()
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
