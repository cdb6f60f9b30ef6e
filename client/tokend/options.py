"""The options of a call, as keywords named like the proto's fields.

Choices are given by name in any case (`special_tokens="parse"`) or as a member of the enums here.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import TypedDict

__all__ = [
    "ByteRuns",
    "DecodeOptions",
    "EncodeOptions",
    "OffsetUnit",
    "SpecialTokens",
    "TruncationSide",
    "UnknownIds",
]


class SpecialTokens(StrEnum):
    """What becomes of a control token's string inside a text."""

    PARSE = "PARSE"
    """It becomes the control token, as in the reference."""
    TEXT = "TEXT"
    """It is text like any other; the server's default."""
    REJECT = "REJECT"
    """It is refused: SpecialTokenRejectedError."""


class TruncationSide(StrEnum):
    """The side on which truncation takes ids away."""

    RIGHT = "RIGHT"
    LEFT = "LEFT"


class OffsetUnit(StrEnum):
    """The unit of each token's place in the text."""

    NONE = "NONE"
    CODE_POINTS = "CODE_POINTS"
    """Indices of a Python str."""
    UTF8_BYTES = "UTF8_BYTES"
    UTF16_UNITS = "UTF16_UNITS"
    """Indices of a JavaScript or Java string."""


class UnknownIds(StrEnum):
    """What becomes of an id that the tokenizer does not have."""

    ERROR = "ERROR"
    SKIP = "SKIP"
    REPLACE = "REPLACE"
    """U+FFFD."""


class ByteRuns(StrEnum):
    """How a stream treats a run of byte-fallback tokens."""

    PROMPT = "PROMPT"
    """Each character at once; an invalid run may read otherwise than in `decode`."""
    HOLD = "HOLD"
    """Held until the run ends, so that the text is always that of `decode`."""


class EncodeOptions(TypedDict, total=False):
    """Options of `encode`, `encode_batch`, `encode_stream` and `count`; each may be left out."""

    add_special_tokens: bool
    """Add what the post-processor adds (BOS, [CLS]); default true."""
    special_tokens: SpecialTokens | str
    """PARSE, TEXT or REJECT; default: the server's."""
    allowed_special_tokens: Iterable[str]
    """Control tokens that are parsed under TEXT and REJECT too."""
    max_tokens: int
    """Truncate to so many ids, at least 1; default: no truncation."""
    truncation_side: TruncationSide | str
    """RIGHT (default) or LEFT; needs `max_tokens`."""
    offsets: OffsetUnit | str
    """NONE (default), CODE_POINTS, UTF8_BYTES or UTF16_UNITS."""
    include_tokens: bool
    """Return each id's token string; default false."""
    expected_fingerprint: str
    """The sha256 that the served file must have; default: the client's `expected_fingerprint`."""


class DecodeOptions(TypedDict, total=False):
    """Options of `decode`, `decode_batch`, `decode_stream` and `decoder`; each may be left out."""

    skip_special_tokens: bool
    """Leave special tokens out of the text; default true."""
    unknown_ids: UnknownIds | str
    """ERROR (default), SKIP or REPLACE."""
    include_bytes: bool
    """Return the bytes too, of which the text is the lossy reading; default false; not for streams."""
    byte_runs: ByteRuns | str
    """PROMPT (default) or HOLD; for streams only."""
    expected_fingerprint: str
    """The sha256 that the served file must have; default: the client's `expected_fingerprint`."""
