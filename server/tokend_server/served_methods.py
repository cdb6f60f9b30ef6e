"""The methods of the services that are served, as the metrics name them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor

__all__ = ["CODES", "DECODING", "ENCODING", "SERVICE", "WORK_METHODS", "Method", "methods_of"]

SERVICE = "tokend.v1.TokenizerService"
ENCODING = ("Encode", "BatchEncode", "StreamEncode", "CountTokens")
DECODING = ("Decode", "BatchDecode", "StreamDecode")
# The methods that move tokens.
WORK_METHODS = ENCODING + DECODING
# gRPC's codes by number, spelled as go-grpc-middleware spells them.
CODES = (
    "OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists",
    "PermissionDenied", "ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented",
    "Internal", "Unavailable", "DataLoss", "Unauthenticated",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A method of a served gRPC service, as go-grpc-middleware labels it."""

    service: str
    name: str
    type: str
    """`unary`, `client_stream`, `server_stream` or `bidi_stream`."""

    @property
    def path(self) -> str:
        """The method's name on the wire."""
        return f"/{self.service}/{self.name}"


def methods_of(service: "ServiceDescriptor") -> tuple[Method, ...]:
    """Return the methods of a protobuf `ServiceDescriptor`, in its order."""
    types = {
        (False, False): "unary",
        (True, False): "client_stream",
        (False, True): "server_stream",
        (True, True): "bidi_stream",
    }
    return tuple(
        Method(
            service=service.full_name,
            name=each.name,
            type=types[each.client_streaming, each.server_streaming],
        )
        for each in service.methods
    )
