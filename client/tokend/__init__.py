"""Client of tokend: text to the ids of one frozen tokenizer, and back, over gRPC.

`Client` blocks and `AsyncClient` awaits; their methods are the same. Nothing connects before the first call.
"""

from tokend._arguments import Ids
from tokend._channel import Tls
from tokend._matrix import Padded, pad
from tokend._version import __version__
from tokend.aio import AsyncClient
from tokend.client import Client
from tokend.decoders import AsyncDecoder, Decoder
from tokend.errors import (
    CallCancelledError,
    DeadlineExceededError,
    InternalError,
    InvalidOptionError,
    InvalidRequestError,
    PermissionDeniedError,
    SpecialTokenRejectedError,
    TokendError,
    TokenizerMismatchError,
    TooLargeError,
    UnauthenticatedError,
    UnavailableError,
    UnknownTokenIdError,
    UnsupportedError,
)
from tokend.options import (
    ByteRuns,
    DecodeOptions,
    EncodeOptions,
    OffsetUnit,
    SpecialTokens,
    TruncationSide,
    UnknownIds,
)
from tokend.results import (
    Counts,
    Decoded,
    Encoded,
    EngineInfo,
    Limits,
    RoundTrip,
    Streaming,
    TokenInfo,
    TokenizerFile,
    TokenizerInfo,
)

__all__ = [
    "AsyncClient",
    "AsyncDecoder",
    "ByteRuns",
    "CallCancelledError",
    "Client",
    "Counts",
    "DeadlineExceededError",
    "DecodeOptions",
    "Decoded",
    "Decoder",
    "EncodeOptions",
    "Encoded",
    "EngineInfo",
    "Ids",
    "InternalError",
    "InvalidOptionError",
    "InvalidRequestError",
    "Limits",
    "OffsetUnit",
    "Padded",
    "PermissionDeniedError",
    "RoundTrip",
    "SpecialTokenRejectedError",
    "SpecialTokens",
    "Streaming",
    "Tls",
    "TokenInfo",
    "TokendError",
    "TokenizerFile",
    "TokenizerInfo",
    "TokenizerMismatchError",
    "TooLargeError",
    "TruncationSide",
    "UnauthenticatedError",
    "UnavailableError",
    "UnknownIds",
    "UnknownTokenIdError",
    "UnsupportedError",
    "__version__",
    "pad",
]
