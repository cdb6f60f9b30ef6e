"""Options as the proto has them, read into the engine's and the service's own terms."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from tokend.v1 import types_pb2
from tokend_server.engine.offsets import OffsetUnit
from tokend_server.engine.reference import EncodeOptions
from tokend_server.engine.special_tokens import SpecialTokenPolicy
from tokend_server.engine.truncation import Truncation, TruncationSide
from tokend_server.errors import InvalidOption
from tokend_server.service.decode import DecodeOptions, UnknownIds

__all__ = ["EncodeOptionsReader", "RequestOptions", "read_decode_options"]

# Options that are kept as they were read, and the longest that are: allowed tokens can be any number.
_MOST_KNOWN = 256
_MOST_KNOWN_BYTES = 512

_N = TypeVar("_N", bound=int)
_T = TypeVar("_T")

_SPECIAL_TOKENS = {
    types_pb2.SPECIAL_TOKENS_PARSE: SpecialTokenPolicy.PARSE,
    types_pb2.SPECIAL_TOKENS_TEXT: SpecialTokenPolicy.TEXT,
    types_pb2.SPECIAL_TOKENS_REJECT: SpecialTokenPolicy.REJECT,
}
_SIDES = {
    types_pb2.TRUNCATION_SIDE_UNSPECIFIED: TruncationSide.RIGHT,
    types_pb2.TRUNCATION_SIDE_RIGHT: TruncationSide.RIGHT,
    types_pb2.TRUNCATION_SIDE_LEFT: TruncationSide.LEFT,
}
_OFFSETS = {
    types_pb2.OFFSET_UNIT_UNSPECIFIED: OffsetUnit.NONE,
    types_pb2.OFFSET_UNIT_NONE: OffsetUnit.NONE,
    types_pb2.OFFSET_UNIT_CODE_POINTS: OffsetUnit.CODE_POINTS,
    types_pb2.OFFSET_UNIT_UTF8_BYTES: OffsetUnit.UTF8_BYTES,
    types_pb2.OFFSET_UNIT_UTF16_UNITS: OffsetUnit.UTF16_UNITS,
}
_PACKED = {
    types_pb2.ID_FORMAT_UNSPECIFIED: False,
    types_pb2.ID_FORMAT_LIST: False,
    types_pb2.ID_FORMAT_PACKED: True,
}
_UNKNOWN_IDS = {
    types_pb2.UNKNOWN_IDS_UNSPECIFIED: UnknownIds.ERROR,
    types_pb2.UNKNOWN_IDS_ERROR: UnknownIds.ERROR,
    types_pb2.UNKNOWN_IDS_SKIP: UnknownIds.SKIP,
    types_pb2.UNKNOWN_IDS_REPLACE: UnknownIds.REPLACE,
}
_HOLD = {
    types_pb2.BYTE_RUNS_UNSPECIFIED: False,
    types_pb2.BYTE_RUNS_PROMPT: False,
    types_pb2.BYTE_RUNS_HOLD: True,
}


def _value(table: Mapping[_N, _T], number: _N, field: str) -> _T:
    try:
        return table[number]
    except KeyError:
        raise InvalidOption(field, number, f"{number} is no value that this server knows") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """EncodeOptions of a request: the engine's part, and what is the transport's and the service's."""

    encode: EncodeOptions
    packed: bool
    """Ids are asked for as little-endian uint32 bytes."""
    expected_fingerprint: str


class EncodeOptionsReader:
    """Reads EncodeOptions; knows the policy of a request that names none."""

    def __init__(self, default_policy: SpecialTokenPolicy) -> None:
        self._policies = {**_SPECIAL_TOKENS, types_pb2.SPECIAL_TOKENS_UNSPECIFIED: default_policy}
        # A caller asks with the same options again and again, and reading ten fields takes as long as encoding a word.
        self._read_known = lru_cache(_MOST_KNOWN)(self._read_bytes)

    def read(self, options: types_pb2.EncodeOptions) -> RequestOptions:
        """Read the options of one request or batch; unset fields have their documented defaults.

        Raises:
            InvalidOption: A value that this server does not know, or that is out of its range.
        """
        data = options.SerializeToString()
        return self._read_known(data) if len(data) <= _MOST_KNOWN_BYTES else self._read_bytes(data)

    def _read_bytes(self, data: bytes) -> RequestOptions:
        options = types_pb2.EncodeOptions.FromString(data)
        truncation = None
        if options.HasField("truncation"):
            if not options.truncation.max_tokens:
                raise InvalidOption(
                    "truncation.max_tokens", 0, "must be 1 or more; leave truncation out for no limit"
                )
            truncation = Truncation(
                max_tokens=options.truncation.max_tokens,
                side=_value(_SIDES, options.truncation.side, "truncation.side"),
            )
        encode = EncodeOptions(
            add_special_tokens=options.add_special_tokens if options.HasField("add_special_tokens") else True,
            policy=_value(self._policies, options.special_tokens, "special_tokens"),
            allowed_special_tokens=tuple(options.allowed_special_tokens),
            truncation=truncation,
            offsets=_value(_OFFSETS, options.offsets, "offsets"),
            include_tokens=options.include_tokens,
        )
        return RequestOptions(
            encode=encode,
            packed=_value(_PACKED, options.id_format, "id_format"),
            expected_fingerprint=options.expected_fingerprint,
        )


def read_decode_options(options: types_pb2.DecodeOptions) -> DecodeOptions:
    """Read DecodeOptions; unset fields have their documented defaults.

    Raises:
        InvalidOption: A value that this server does not know.
    """
    if not options.ByteSize():
        return _DECODE_DEFAULTS
    return DecodeOptions(
        skip_special_tokens=options.skip_special_tokens if options.HasField("skip_special_tokens") else True,
        unknown_ids=_value(_UNKNOWN_IDS, options.unknown_ids, "unknown_ids"),
        include_bytes=options.include_bytes,
        hold_byte_runs=_value(_HOLD, options.byte_runs, "byte_runs"),
        expected_fingerprint=options.expected_fingerprint,
    )


_DECODE_DEFAULTS = DecodeOptions()
