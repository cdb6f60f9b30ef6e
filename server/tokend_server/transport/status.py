"""The one table from domain errors to gRPC statuses, and the details that travel with them."""

from collections.abc import Mapping

import grpc
from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from tokend.v1 import error_reason_pb2, types_pb2
from tokend_server.errors import Reason, RequestError

__all__ = ["CODES", "DOMAIN", "Metadata", "code_number", "error_message", "error_trailer", "shorten"]

Metadata = tuple[tuple[str, str | bytes], ...]

DOMAIN = "tokend"
_MAX_MESSAGE_CHARACTERS = 400
_MAX_VALUE_CHARACTERS = 256

CODES: Mapping[Reason, grpc.StatusCode] = {
    Reason.TEXT_TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.BATCH_TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.TOO_MANY_IDS: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.TOO_MANY_SEQUENCES: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.REPLY_TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.MALFORMED_MESSAGE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.SPECIAL_TOKEN_REJECTED: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.UNKNOWN_TOKEN_ID: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_OPTION: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.TOKENIZER_MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.SERVER_OVERLOADED: grpc.StatusCode.UNAVAILABLE,
    Reason.SHUTTING_DOWN: grpc.StatusCode.UNAVAILABLE,
    Reason.TOKENIZER_LOADING: grpc.StatusCode.UNAVAILABLE,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
}


def code_number(reason: Reason) -> int:
    """Return the number of a reason's code, a `google.rpc.Code`."""
    number: int = CODES[reason].value[0]
    return number


def shorten(error: RequestError) -> None:
    """Cut what a status tells, so that it fits into the 8 KiB of metadata that every client takes.

    Only a token of the file can be so long. A character counts up to 9 bytes in a status and 4 in its details.
    """
    error.message = error.message[:_MAX_MESSAGE_CHARACTERS]
    for key, value in error.metadata.items():
        error.metadata[key] = value[:_MAX_VALUE_CHARACTERS]


def error_message(error: RequestError) -> types_pb2.Error:
    """Write an error as the message that a stream's answer carries."""
    return types_pb2.Error(
        code=code_number(error.reason),
        reason=error_reason_pb2.ErrorReason.Value(f"ERROR_REASON_{error.reason.value}"),
        message=error.message,
        metadata=error.metadata,
    )


def error_trailer(error: RequestError, *, pushback: bool = True) -> Metadata:
    """Write an error's details as trailing metadata.

    Args:
        error: What went wrong.
        pushback: Whether the front can send gRPC's own key for a pause before a retry; RetryInfo tells it in any case.

    Returns:
        `grpc-status-details-bin` with a `google.rpc.Status` (ErrorInfo, and RetryInfo where the call may be sent
        again), and then the pushback that gRPC's own retries obey. Both are trailing metadata, since initial
        metadata sent before an abort switches retries off.
    """
    status = Status(code=code_number(error.reason), message=error.message)
    _pack(status.details.add(), ErrorInfo(reason=error.reason.value, domain=DOMAIN, metadata=error.metadata))
    retry_after_ms: int | None = getattr(error, "retry_after_ms", None)
    if retry_after_ms is None:
        return (("grpc-status-details-bin", status.SerializeToString()),)
    retry = RetryInfo()
    retry.retry_delay.FromMilliseconds(retry_after_ms)
    _pack(status.details.add(), retry)
    details = ("grpc-status-details-bin", status.SerializeToString())
    return (details, ("grpc-retry-pushback-ms", str(retry_after_ms))) if pushback else (details,)


def _pack(detail: Any, message: ErrorInfo | RetryInfo) -> None:
    detail.Pack(message)
