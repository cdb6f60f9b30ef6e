"""What a call can raise: one class for each thing a caller may want to do about it.

Every error carries the status code, the machine-readable reason (docs/errors.md), its metadata and the
request id that the server's log has too. Bad arguments are not here: they are `ValueError` and `TypeError`,
raised before anything is sent.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import grpc

__all__ = [
    "CallCancelledError",
    "DeadlineExceededError",
    "InternalError",
    "InvalidOptionError",
    "InvalidRequestError",
    "PermissionDeniedError",
    "SpecialTokenRejectedError",
    "TokendError",
    "TokenizerMismatchError",
    "TooLargeError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnknownTokenIdError",
    "UnsupportedError",
]


class TokendError(Exception):
    """A call failed; the subclasses say how.

    Attributes:
        code: The gRPC status code.
        reason: The server's reason, one of `ErrorReason` without its prefix; empty where gRPC itself failed.
        metadata: Facts by the table in docs/errors.md (`limit`, `size`, `index`, ...), as strings.
        request_id: The id under which the server logged the request, if it answered.
        retry_delay_s: How long the server asks to wait before the call is sent again, in seconds.
        text_before_error: Text of a streamed sequence that came in the same answer as the error.

    >>> error = TooLargeError("too large", reason="TEXT_TOO_LARGE", metadata={"limit": "16", "index": "2"})
    >>> error.limit, error.index, error.code.name
    (16, 2, 'INVALID_ARGUMENT')
    """

    default_code = grpc.StatusCode.UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode | None = None,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        request_id: str | None = None,
        retry_delay_s: float | None = None,
        text_before_error: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = self.default_code if code is None else code
        self.reason = reason
        self.metadata: Mapping[str, str] = MappingProxyType(dict(metadata or {}))
        self.request_id = request_id
        self.retry_delay_s = retry_delay_s
        self.text_before_error = text_before_error

    def __str__(self) -> str:
        name = self.reason or self.code.name
        where = f" [request {self.request_id}]" if self.request_id else ""
        return f"{name}: {self.message}{where}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process borders in training jobs; keyword arguments need help to be pickled.
        return _rebuilt, (type(self), self.message, self._facts())

    @property
    def index(self) -> int | None:
        """The position, in the caller's own list, of the text, sequence or id that was refused."""
        return self._number("index")

    def renumber(self, offset: int) -> None:
        """Counts the index from the start of a larger call, of which the refused message was a part.

        Args:
            offset: How many items of the call came before that message.
        """
        index = self.index
        if not offset or index is None:
            return
        self.metadata = MappingProxyType({**self.metadata, "index": str(index + offset)})
        self.message = f"{self.message} (item {index} of its batch is item {index + offset} of the call)"
        self.args = (self.message,)

    def _facts(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "reason": self.reason,
            "metadata": dict(self.metadata),
            "request_id": self.request_id,
            "retry_delay_s": self.retry_delay_s,
            "text_before_error": self.text_before_error,
        }

    def _number(self, key: str) -> int | None:
        value = self.metadata.get(key, "")
        return int(value) if value.isdecimal() else None


class InvalidRequestError(TokendError):
    """The server refused the request as it stands; sending it again gives the same answer."""

    default_code = grpc.StatusCode.INVALID_ARGUMENT


class TooLargeError(InvalidRequestError):
    """A text, a batch, a list of ids or the reply is over a limit of the server."""

    @property
    def size(self) -> int | None:
        """What was sent, in the limit's own unit."""
        return self._number("size")

    @property
    def limit(self) -> int | None:
        """What the server takes at most."""
        return self._number("limit")


class InvalidOptionError(InvalidRequestError):
    """An option, or a combination of options, cannot be served."""

    @property
    def field(self) -> str:
        """The proto's name of the field."""
        return self.metadata.get("field", "")


class SpecialTokenRejectedError(InvalidRequestError):
    """`special_tokens` was REJECT and a text holds a control token."""

    @property
    def token(self) -> str:
        """The control token, a string of the tokenizer file."""
        return self.metadata.get("token", "")

    @property
    def position(self) -> int | None:
        """Where it starts in the text, in code points."""
        return self._number("position")


class UnknownTokenIdError(InvalidRequestError):
    """An id that the served tokenizer does not have."""

    @property
    def id(self) -> int | None:
        """The id."""
        return self._number("id")

    @property
    def max_id(self) -> int | None:
        """The greatest id of the served tokenizer."""
        return self._number("max_id")


class TokenizerMismatchError(TokendError):
    """The server serves another tokenizer file than `expected_fingerprint` names."""

    default_code = grpc.StatusCode.FAILED_PRECONDITION

    @property
    def expected(self) -> str:
        """The fingerprint that was asked for."""
        return self.metadata.get("expected", "")

    @property
    def served(self) -> str:
        """The fingerprint of the file that is served."""
        return self.metadata.get("served", "")


class UnauthenticatedError(TokendError):
    """The server wants a token, or does not know this one."""

    default_code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDeniedError(TokendError):
    """The token is known, and this call is not for it."""

    default_code = grpc.StatusCode.PERMISSION_DENIED


class UnavailableError(TokendError):
    """No server took the call, after the retries: unreachable, overloaded, loading or shutting down."""

    default_code = grpc.StatusCode.UNAVAILABLE


class DeadlineExceededError(TokendError, TimeoutError):
    """No answer within `timeout_s`; also a `TimeoutError`."""

    default_code = grpc.StatusCode.DEADLINE_EXCEEDED


class CallCancelledError(TokendError):
    """The call was ended from this side, for example by `close()` in another thread."""

    default_code = grpc.StatusCode.CANCELLED


class UnsupportedError(TokendError):
    """The server does not know this method: it is older than the client, or no tokend at all."""

    default_code = grpc.StatusCode.UNIMPLEMENTED


class InternalError(TokendError):
    """The server failed; its operators find the request under `request_id`."""

    default_code = grpc.StatusCode.INTERNAL


def _rebuilt(kind: type[TokendError], message: str, facts: dict[str, Any]) -> TokendError:
    return kind(message, **facts)
