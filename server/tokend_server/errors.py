"""What can go wrong, in the domain's own terms. Knows no gRPC: transport/status.py maps it.

No exception here ever carries a caller's text: messages and metadata hold ids, limits, sizes, positions and
strings that the tokenizer file owns.
"""

import re
from enum import StrEnum

__all__ = [
    "CredentialsError",
    "InternalFault",
    "InvalidOption",
    "LimitExceeded",
    "MalformedMessage",
    "PermissionDenied",
    "Reason",
    "RequestError",
    "ServerOverloaded",
    "ShuttingDown",
    "SpecialTokenRejected",
    "TokenizerFileError",
    "TokenizerLoading",
    "TokenizerMismatch",
    "Unauthenticated",
    "UnknownTokenId",
]


class Reason(StrEnum):
    """The machine-readable cause of a refused request; one for each value of the proto's `ErrorReason`."""

    TEXT_TOO_LARGE = "TEXT_TOO_LARGE"
    BATCH_TOO_LARGE = "BATCH_TOO_LARGE"
    TOO_MANY_IDS = "TOO_MANY_IDS"
    TOO_MANY_SEQUENCES = "TOO_MANY_SEQUENCES"
    REPLY_TOO_LARGE = "REPLY_TOO_LARGE"
    MALFORMED_MESSAGE = "MALFORMED_MESSAGE"
    SPECIAL_TOKEN_REJECTED = "SPECIAL_TOKEN_REJECTED"  # noqa: S105 (no password)
    UNKNOWN_TOKEN_ID = "UNKNOWN_TOKEN_ID"  # noqa: S105 (no password)
    INVALID_OPTION = "INVALID_OPTION"
    TOKENIZER_MISMATCH = "TOKENIZER_MISMATCH"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    SERVER_OVERLOADED = "SERVER_OVERLOADED"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    TOKENIZER_LOADING = "TOKENIZER_LOADING"
    INTERNAL = "INTERNAL"


class TokenizerFileError(Exception):
    """A tokenizer file that cannot be served; the start ends with exit code 2 and this one line."""


class CredentialsError(Exception):
    """Files of tokens or certificates that cannot be used. At the start it ends with exit code 2 and this one line."""


class RequestError(Exception):
    """A request that is refused: the reason, one sentence, and metadata by the table in docs/errors.md."""

    def __init__(self, reason: Reason, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = {key: str(value) for key, value in metadata.items() if value is not None}


class LimitExceeded(RequestError):
    """Something is larger than a limit of this server: `size`, `limit` and, in a batch, `index`."""

    def __init__(
        self, reason: Reason, message: str, *, size: int, limit: int, index: int | None = None
    ) -> None:
        super().__init__(reason, message, size=size, limit=limit, index=index)


class MalformedMessage(RequestError):
    """The bytes are not the declared message, or a string field in them is not UTF-8."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.MALFORMED_MESSAGE, message)


class SpecialTokenRejected(RequestError):
    """REJECT was asked for and the text holds a control token, at `position` (code points)."""

    def __init__(self, *, token: str, position: int, index: int | None = None) -> None:
        where = "" if index is None else f" of item {index}"
        super().__init__(
            Reason.SPECIAL_TOKEN_REJECTED,
            f"the text{where} holds the control token {token!r} at code point {position}, and special_tokens is "
            "REJECT; remove it, allow it in allowed_special_tokens, or ask for TEXT",
            token=token,
            position=position,
            index=index,
        )


class UnknownTokenId(RequestError):
    """An id that the served tokenizer does not have: above `max_id`, or a hole below it."""

    def __init__(self, token_id: int, *, index: int, max_id: int) -> None:
        self.index = index
        super().__init__(
            Reason.UNKNOWN_TOKEN_ID,
            f"id {token_id} at index {index} is not an id of the served tokenizer (greatest id: {max_id}); send its own ids, "
            "or ask for unknown_ids SKIP or REPLACE",
            id=token_id,
            index=index,
            max_id=max_id,
        )


class InvalidOption(RequestError):
    """A field whose value cannot be served: `field` is its name in the proto, `value` never a caller's text."""

    def __init__(self, field: str, value: object, message: str) -> None:
        super().__init__(Reason.INVALID_OPTION, f"{field}: {message}", field=field, value=value)


class TokenizerMismatch(RequestError):
    """The caller pinned another tokenizer file than the one that is served."""

    def __init__(self, *, expected: str, served: str) -> None:
        super().__init__(
            Reason.TOKENIZER_MISMATCH,
            f"this server serves the tokenizer {served[:12]}, not the expected one; reach another server, or change "
            "expected_fingerprint",
            # What is no sha256 is some text of the caller's, and is not repeated.
            expected=expected if re.fullmatch("[0-9a-f]{64}", expected) else None,
            served=served,
        )


class Unauthenticated(RequestError):
    """The call shows no token that is known here."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.UNAUTHENTICATED, message)


class PermissionDenied(RequestError):
    """The caller is known, and its token is not for this call."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.PERMISSION_DENIED, message)


class ServerOverloaded(RequestError):
    """More is in work than this server takes; the same call may be sent again after `retry_after_ms`."""

    def __init__(self, message: str, *, retry_after_ms: int) -> None:
        super().__init__(Reason.SERVER_OVERLOADED, message)
        self.retry_after_ms = retry_after_ms


class TokenizerLoading(RequestError):
    """The server listens, and its tokenizer is not loaded and checked yet."""

    retry_after_ms = 500

    def __init__(self) -> None:
        super().__init__(
            Reason.TOKENIZER_LOADING, "this server is still loading its tokenizer; try again in a moment"
        )


class ShuttingDown(RequestError):
    """The server drains; another one takes the call."""

    retry_after_ms = 100

    def __init__(self) -> None:
        super().__init__(Reason.SHUTTING_DOWN, "this server is shutting down; send the call to another one")


class InternalFault(RequestError):
    """A fault of the server or of a library below it; the sentence is fixed, the log has the rest."""

    def __init__(self, *, index: int | None = None) -> None:
        super().__init__(
            Reason.INTERNAL,
            "the server failed on this request; report the request id to its operators",
            index=index,
        )
