"""One call's way through the transport: its id, its clock, its status. The same for every method.

Methods (encode_methods.py, decode_methods.py, info_methods.py) only translate between proto and domain; parsing,
refusing, counting and logging happen here, once.
"""

import re
import secrets
import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from tokend_server import logs
from tokend_server.errors import InternalFault, MalformedMessage, RequestError
from tokend_server.metrics import ANONYMOUS, MethodMetrics, WorkMetrics
from tokend_server.service.admission import Admission
from tokend_server.service.limits import Limits
from tokend_server.service.usage import Usage
from tokend_server.transport.permissions import PERMISSIONS, authorization_in
from tokend_server.transport.status import Metadata, code_number, error_trailer, shorten

if TYPE_CHECKING:
    from tokend_server.service.access import Access, Entry
    from tokend_server.tracing import Tracing

__all__ = ["Call", "CallScope", "RequestIds", "parse"]

REQUEST_ID_KEY = "tokend-request-id"
FINGERPRINT_KEY = "tokend-fingerprint"

_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
# Of an error's metadata only these numbers are logged: the rest may quote names that a caller chose.
_LOGGED_FACTS = ("index", "size", "limit")
_OK = grpc.StatusCode.OK.value[0]
_CANCELLED = grpc.StatusCode.CANCELLED.value[0]
_DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
# A client tells its deadline rounded up, and leaves by its own clock.
_DEADLINE_ROUNDING_S = 0.1

_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")
_M = TypeVar("_M", bound=Message)
_log = logs.get("transport")
_totals = threading.Lock()


def parse(message_type: type[_M], data: bytes) -> _M:
    """Read a message; our own, since gRPC answers what it cannot read with an INTERNAL.

    Args:
        message_type: The declared request type.
        data: The bytes on the wire; b"" is the message with nothing set.

    Returns:
        The message.

    Raises:
        MalformedMessage: The bytes are not that message, or a string in it is not UTF-8.
    """
    try:
        return message_type.FromString(data)
    except DecodeError:
        name = message_type.DESCRIPTOR.name
        raise MalformedMessage(f"the bytes are not a {name}, or a string in them is not UTF-8") from None


class RequestIds:
    """Gives each call an id: the caller's own where it is a harmless one, else a new one."""

    _SHAPE = re.compile(r"[A-Za-z0-9._:/+=-]{1,64}")

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(4)
        self._numbers = count(1)

    def of(self, metadata: Sequence[tuple[str, str | bytes]]) -> str:
        """Take `tokend-request-id` or `x-request-id` from the caller's metadata, or make an id."""
        for key, value in metadata:
            if (
                key in {REQUEST_ID_KEY, "x-request-id"}
                and isinstance(value, str)
                and self._SHAPE.fullmatch(value)
            ):
                return value
        return f"{self._prefix}-{next(self._numbers)}"


class CallScope:
    """What all calls of one server share."""

    def __init__(self, admission: Admission, limits: Limits) -> None:
        self.admission = admission
        self.limits = limits
        self.request_ids = RequestIds()
        self.access: Access | None = None
        """Who may call what; None: everybody everything."""
        self.tracing: Tracing | None = None
        """Makes a span of each call; None: nobody wants any."""
        self.fingerprint = ""
        """Of the served tokenizer; "" while it loads."""


class _Deadline(Protocol):
    """What tells a deadline that has passed from a caller who has left."""

    def time_remaining(self) -> float | None: ...


class _Context(_Deadline, Protocol):
    """What a call needs of gRPC's servicer context."""

    def is_active(self) -> bool: ...
    def set_trailing_metadata(self, trailing_metadata: Metadata) -> None: ...


class Call:
    """One call, from its arrival to its status.

    Made on gRPC's serving thread when the call arrives. gRPC drops a call that was cancelled while it waited for
    a thread without a word; then nobody ends this object, and its going counts the call as cancelled.
    """

    __slots__ = (
        "_authorization",
        "_entry",
        "_scope",
        "_span",
        "_state_at_arrival",
        "_tally",
        "caller",
        "method_name",
        "metrics",
        "n_texts",
        "n_tokens",
        "request_id",
    )

    def __init__(
        self,
        scope: CallScope,
        method_name: str,
        metrics: MethodMetrics,
        metadata: Sequence[tuple[str, str | bytes]],
    ) -> None:
        self._scope = scope
        self._state_at_arrival = scope.admission.state
        self._tally = metrics.started()
        self.method_name = method_name
        self.metrics = metrics
        self._authorization = None if scope.access is None else authorization_in(metadata)
        self._entry: Entry | None = None
        self.caller = ANONYMOUS
        """Who makes the call, by the name of its token."""
        self.request_id = scope.request_ids.of(metadata)
        self.n_tokens = self.n_texts = 0
        """What the call has moved so far."""
        self._span = None if scope.tracing is None else scope.tracing.call(method_name, metadata)

    def __del__(self) -> None:
        if not self._tally.ended:
            self.end(_CANCELLED)

    def begin(self) -> None:
        """Say that a thread has taken the call up, and let it in.

        Raises:
            RequestError: The caller has no right to the call, or the server's state did not admit calls when it arrived.
        """
        self._tally.begun()
        if self._span is not None:
            self._span.begun(self._tally.age_s())
        self.authorize()
        self._scope.admission.check(self._state_at_arrival)

    def authorize(self) -> None:
        """Look whether the caller may make this call; a second time does nothing.

        Raises:
            RequestError: UNAUTHENTICATED or PERMISSION_DENIED.
        """
        access = self._scope.access
        if access is not None and self._entry is None:
            name = self.method_name
            entry = access.entry(self._authorization, name, PERMISSIONS[name])
            try:
                entry.check()
            finally:
                self.caller = entry.caller or ANONYMOUS
            self._entry, self._authorization = entry, None

    def receive(self, message_type: type[_M], data: bytes) -> _M:
        """Count and read one message of the caller; raises as `parse`, and where it has lost the right to the call."""
        self._tally.received()
        if self._entry is not None:
            self._entry.check()
        return parse(message_type, data)

    def work(self, answer: Callable[[_Request], _Answer], request: _Request) -> _Answer:
        """Run what answers a message, so that what is traced meanwhile is told of this call."""
        if self._span is None:
            return answer(request)
        with self._span.current():
            return answer(request)

    def reply(self, message: Message) -> bytes:
        """Write and count one answer; raises as `written`."""
        data = self.written(message)
        self._tally.sent()
        return data

    def written(self, message: Message) -> bytes:
        """Write an answer that may still not be sent.

        Raises:
            LimitExceeded: REPLY_TOO_LARGE.
        """
        data = message.SerializeToString()
        self._scope.limits.check_reply(len(data))
        return data

    def sent(self) -> None:
        """Count an answer that was written, now that it was sent."""
        self._tally.sent()

    def check_reply(self, message: Message) -> None:
        """Refuse a message that is too large to be sent; raises as `written`."""
        self._scope.limits.check_reply(message.ByteSize())

    def answered(self, usage: Usage) -> None:
        """End a unary call that was answered, and count what it moved."""
        self.n_tokens, self.n_texts = usage.n_tokens, usage.n_texts
        self._end(_OK, usage)

    def observe(self, usage: Usage) -> None:
        """Count a batch of a stream that was answered in full."""
        self._add(usage)
        if isinstance(self.metrics, WorkMetrics):
            self.metrics.answered(usage, caller=self.caller)

    def moved(self, usage: Usage) -> None:
        """Count what one message of a StreamDecode moved; its sequences are counted when they end."""
        self._add(usage)
        if isinstance(self.metrics, WorkMetrics):
            self.metrics.moved(usage, caller=self.caller)

    def _add(self, usage: Usage) -> None:
        # Several batches of a StreamEncode may be in work at once.
        with _totals:
            self.n_tokens += usage.n_tokens
            self.n_texts += usage.n_texts

    def sequence_ended(self, n_tokens: int) -> None:
        """Count a sequence of a StreamDecode that ended well."""
        if isinstance(self.metrics, WorkMetrics):
            self.metrics.sequence_ended(n_tokens, caller=self.caller)

    def succeed(self, context: _Context) -> None:
        """End the call well, unless the caller has left meanwhile."""
        context.set_trailing_metadata(self.trailer())
        if context.is_active():
            self.end(_OK)
        else:
            self.abandon(context)

    def abandon(self, context: _Deadline) -> None:
        """End a call whose caller has left: its deadline has passed, or it cancelled."""
        remaining_s = context.time_remaining()
        expired = remaining_s is not None and remaining_s <= _DEADLINE_ROUNDING_S
        self.end(_DEADLINE_EXCEEDED if expired else _CANCELLED)

    def refusal(self, error: BaseException, **fields: logs.Field) -> RequestError:
        """Count and log what goes wrong, and turn what is no refusal into an INTERNAL.

        Args:
            error: What was raised. A panic of a native library is a BaseException, and ends its call alone.
            fields: More fields for the log line.
        """
        refused = error if isinstance(error, RequestError) else InternalFault()
        facts = {name: int(refused.metadata[name]) for name in _LOGGED_FACTS if name in refused.metadata}
        fields = {**self._log_fields(code_number(refused.reason), self._tally.age_s()), **fields, **facts}
        if isinstance(refused, InternalFault):
            refused.metadata["request_id"] = self.request_id
            _log.error("a call failed", error=error.__cause__ or error, reason=refused.reason, **fields)
        else:
            _log.info("refused", reason=refused.reason, **fields)
        if self._span is not None:
            self._span.refused(refused.reason, facts)
        shorten(refused)
        self.metrics.refused(refused.reason)
        return refused

    def fail(self, context: grpc.ServicerContext, error: BaseException) -> RequestError:
        """End the call with an error: status and trailing metadata are set, the caller sends them."""
        refused = self.refusal(error)
        context.set_trailing_metadata((*error_trailer(refused), *self.trailer()))
        self.end(code_number(refused.reason))
        return refused

    def trailer(self) -> Metadata:
        """Return the trailing metadata of every call, however it ends."""
        trailer: Metadata = ((REQUEST_ID_KEY, self.request_id),)
        if self._scope.fingerprint:
            trailer += ((FINGERPRINT_KEY, self._scope.fingerprint),)
        return trailer

    def end(self, code: int) -> None:
        """Count the call's end, with a gRPC status code; only the first time counts."""
        self._end(code)

    def _end(self, code: int, usage: Usage | None = None) -> None:
        duration_s = self._tally.handled(code, self.caller, usage)
        if duration_s is None:
            return
        if self._span is not None:
            self._span.end(
                _CODE_NAMES[code], self._facts() | {"fingerprint": self._scope.fingerprint or None}
            )
        if _log.is_debug():
            _log.debug("handled", **self._log_fields(code, duration_s))

    def _log_fields(self, code: int, duration_s: float) -> dict[str, logs.Field]:
        fields: dict[str, logs.Field] = {
            "method": self.method_name,
            "code": _CODE_NAMES[code],
            "duration_s": round(duration_s, 6),
            **self._facts(),
        }
        if self._span is not None:
            fields["trace_id"] = self._span.trace_id
        return fields

    def _facts(self) -> dict[str, logs.Field]:
        """Return what log and trace tell alike of the call so far."""
        return {
            "n_tokens": self.n_tokens,
            "n_texts": self.n_texts,
            "caller": self.caller,
            "request_id": self.request_id,
        }
