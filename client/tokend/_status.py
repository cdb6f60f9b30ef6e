"""From gRPC's way of failing to ours: status, google.rpc.Status details and trailing metadata."""

from collections.abc import Iterable
from typing import Protocol, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tokend import errors
from tokend.v1 import error_reason_pb2, types_pb2

__all__ = ["FailedCall", "error_of_answer", "error_of_call"]

REQUEST_ID_KEY = "tokend-request-id"

_BY_REASON: dict[str, type[errors.TokendError]] = {
    "TEXT_TOO_LARGE": errors.TooLargeError,
    "BATCH_TOO_LARGE": errors.TooLargeError,
    "TOO_MANY_IDS": errors.TooLargeError,
    "TOO_MANY_SEQUENCES": errors.TooLargeError,
    "REPLY_TOO_LARGE": errors.TooLargeError,
    "SPECIAL_TOKEN_REJECTED": errors.SpecialTokenRejectedError,
    "UNKNOWN_TOKEN_ID": errors.UnknownTokenIdError,
    "INVALID_OPTION": errors.InvalidOptionError,
    "TOKENIZER_MISMATCH": errors.TokenizerMismatchError,
}
_BY_CODE: dict[grpc.StatusCode, type[errors.TokendError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidRequestError,
    # Only gRPC itself uses this code here: a message over the 64 MiB that both sides allow.
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.TooLargeError,
    grpc.StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDeniedError,
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceededError,
    grpc.StatusCode.CANCELLED: errors.CallCancelledError,
    grpc.StatusCode.UNIMPLEMENTED: errors.UnsupportedError,
    grpc.StatusCode.INTERNAL: errors.InternalError,
    grpc.StatusCode.UNKNOWN: errors.InternalError,
    grpc.StatusCode.DATA_LOSS: errors.InternalError,
}
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class FailedCall(Protocol):
    """What is read of a failed call; `grpc.aio.AioRpcError` has it but is no `grpc.Call`."""

    def code(self) -> grpc.StatusCode:
        """The status code."""

    def details(self) -> str | None:
        """The status message."""

    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """The metadata that came with the status."""


def error_of_call(failed: grpc.RpcError, *, ended_here: bool = False) -> errors.TokendError:
    """Translates the exception that a failed RPC raised.

    Args:
        failed: The exception.
        ended_here: This side has cancelled the call. CANCELLED comes from a server too: when it stops, gRPC cancels
            what reaches it until its clients have left. That is a server which did not take the call.
    """
    call = cast("FailedCall", failed)
    code = call.code()
    message = call.details() or code.name
    reason, metadata, retry_delay_s = _details(call)
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code, errors.TokendError)
    if code is grpc.StatusCode.CANCELLED and not ended_here:
        kind = errors.UnavailableError
    return kind(
        message,
        code=code,
        reason=reason,
        metadata=metadata,
        request_id=_request_id(call),
        retry_delay_s=retry_delay_s,
    )


def error_of_answer(answer: types_pb2.Error, *, text_before_error: str = "") -> errors.TokendError:
    """Translates an `Error` that stands inside a stream's answer."""
    code = _CODES.get(answer.code, grpc.StatusCode.UNKNOWN)
    reason = _reason_name(answer.reason)
    metadata = dict(answer.metadata)
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code, errors.TokendError)
    return kind(
        answer.message or code.name,
        code=code,
        reason=reason,
        metadata=metadata,
        request_id=metadata.get("request_id"),
        text_before_error=text_before_error,
    )


def _details(call: FailedCall) -> tuple[str, dict[str, str], float | None]:
    try:
        # The stub types want a grpc.Call; from_call reads only what FailedCall has.
        status = rpc_status.from_call(cast("grpc.Call", call))
    except (ValueError, DecodeError):
        # Details that disagree with the status (a proxy between rewrote one): the plain status stands.
        status = None
    reason, metadata, retry_delay_s = "", dict[str, str](), None
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        delay = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(delay):
            retry_delay_s = delay.retry_delay.ToTimedelta().total_seconds()
    return reason, metadata, retry_delay_s


def _request_id(call: FailedCall) -> str | None:
    for key, value in call.trailing_metadata() or ():
        if key == REQUEST_ID_KEY and isinstance(value, str):
            return value
    return None


def _reason_name(reason: int) -> str:
    try:
        name = error_reason_pb2.ErrorReason.Name(reason)  # type: ignore[arg-type]  # a plain int is what arrives
    except ValueError:
        return ""  # a newer server's reason; code and message still tell
    name = name.removeprefix("ERROR_REASON_")
    return "" if name == "UNSPECIFIED" else name
