"""Which permission each method takes. Health takes none: who asks is a probe that has no token."""

from collections.abc import Mapping, Sequence

from grpc_reflection.v1alpha import reflection_pb2

from tokend_server.service.access import Permission

__all__ = ["PERMISSIONS", "REFLECTION", "authorization_in"]

[REFLECTION] = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].methods

PERMISSIONS: Mapping[str, Permission] = {
    "Encode": Permission.TOKENIZE,
    "BatchEncode": Permission.TOKENIZE,
    "StreamEncode": Permission.TOKENIZE,
    "CountTokens": Permission.TOKENIZE,
    "Decode": Permission.TOKENIZE,
    "BatchDecode": Permission.TOKENIZE,
    "StreamDecode": Permission.TOKENIZE,
    "GetTokenizer": Permission.TOKENIZE,
    "LookupTokens": Permission.TOKENIZE,
    "DownloadTokenizer": Permission.DOWNLOAD,
    REFLECTION.name: Permission.ADMIN,
}
"""By the method's name. A method that is not here lets nobody in."""


def authorization_in(metadata: Sequence[tuple[str, str | bytes]]) -> str | bytes | None:
    """Return the first `authorization` of a call's metadata; None: there is none."""
    for key, value in metadata:
        if key == "authorization":
            return value
    return None
