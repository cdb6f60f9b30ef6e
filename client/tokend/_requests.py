"""From checked keywords to the messages' options. Pure; the keywords are listed in options.py."""

from collections.abc import Mapping
from dataclasses import dataclass

from tokend._arguments import checked_choice, checked_count, checked_flag, checked_strings
from tokend.options import (
    ByteRuns,
    DecodeOptions,
    EncodeOptions,
    OffsetUnit,
    SpecialTokens,
    TruncationSide,
    UnknownIds,
)
from tokend.v1 import types_pb2

__all__ = ["EncodeSettings", "checked_fingerprint", "decode_options", "encode_settings"]

_FINGERPRINT_CHARACTERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeSettings:
    """The options of one encode call, and what they mean for reading its reply."""

    options: types_pb2.EncodeOptions
    has_offsets: bool
    has_tokens: bool
    packed: bool
    """Ids come as bytes; the batch calls cannot join that with offsets, tokens or type ids."""


def encode_settings(
    keywords: EncodeOptions, *, fingerprint: str | None, pairs: bool = False
) -> EncodeSettings:
    """Checks the keywords of an encode call and builds its options.

    Args:
        keywords: What the caller gave.
        fingerprint: The client's own pin, which a keyword overrides.
        pairs: Whether the call has pairs, whose type ids are wanted.
    """
    _refuse_unknown(keywords, EncodeOptions.__annotations__)
    options = types_pb2.EncodeOptions()
    if "add_special_tokens" in keywords:
        options.add_special_tokens = checked_flag(keywords["add_special_tokens"], "add_special_tokens")
    if "special_tokens" in keywords:
        policy = checked_choice(keywords["special_tokens"], "special_tokens", SpecialTokens)
        options.special_tokens = types_pb2.SpecialTokens.Value(f"SPECIAL_TOKENS_{policy}")
    if "allowed_special_tokens" in keywords:
        allowed = checked_strings(keywords["allowed_special_tokens"], "allowed_special_tokens")
        options.allowed_special_tokens.extend(allowed)
    if "max_tokens" in keywords:
        options.truncation.max_tokens = checked_count(keywords["max_tokens"], "max_tokens", least=1)
    if "truncation_side" in keywords:
        side = checked_choice(keywords["truncation_side"], "truncation_side", TruncationSide)
        if "max_tokens" not in keywords:
            raise ValueError("truncation_side needs max_tokens: how many ids to truncate to")
        options.truncation.side = types_pb2.TruncationSide.Value(f"TRUNCATION_SIDE_{side}")
    unit = checked_choice(keywords.get("offsets", OffsetUnit.NONE), "offsets", OffsetUnit)
    if unit is not OffsetUnit.NONE:
        options.offsets = types_pb2.OffsetUnit.Value(f"OFFSET_UNIT_{unit}")
    options.include_tokens = checked_flag(keywords.get("include_tokens", False), "include_tokens")
    options.expected_fingerprint = _pin(keywords, fingerprint)
    has_offsets = unit is not OffsetUnit.NONE
    packed = not (has_offsets or options.include_tokens or pairs)
    options.id_format = types_pb2.ID_FORMAT_PACKED if packed else types_pb2.ID_FORMAT_LIST
    return EncodeSettings(
        options=options, has_offsets=has_offsets, has_tokens=options.include_tokens, packed=packed
    )


def decode_options(keywords: DecodeOptions, *, fingerprint: str | None) -> types_pb2.DecodeOptions:
    """Checks the keywords of a decode call and builds its options."""
    _refuse_unknown(keywords, DecodeOptions.__annotations__)
    options = types_pb2.DecodeOptions()
    if "skip_special_tokens" in keywords:
        options.skip_special_tokens = checked_flag(keywords["skip_special_tokens"], "skip_special_tokens")
    if "unknown_ids" in keywords:
        unknown = checked_choice(keywords["unknown_ids"], "unknown_ids", UnknownIds)
        options.unknown_ids = types_pb2.UnknownIds.Value(f"UNKNOWN_IDS_{unknown}")
    if "byte_runs" in keywords:
        runs = checked_choice(keywords["byte_runs"], "byte_runs", ByteRuns)
        options.byte_runs = types_pb2.ByteRuns.Value(f"BYTE_RUNS_{runs}")
    options.include_bytes = checked_flag(keywords.get("include_bytes", False), "include_bytes")
    options.expected_fingerprint = _pin(keywords, fingerprint)
    return options


def checked_fingerprint(value: object) -> str:
    """Checks a pin: the 64 hexadecimal digits of a sha256; upper case is read as lower."""
    if not isinstance(value, str):
        raise TypeError(f"expected_fingerprint is a str, not {type(value).__name__}")
    digits = value.lower()
    if len(digits) != _FINGERPRINT_CHARACTERS or not set(digits) <= set("0123456789abcdef"):
        raise ValueError("expected_fingerprint is not a sha256: 64 hexadecimal digits are needed")
    return digits


def _pin(keywords: EncodeOptions | DecodeOptions, fingerprint: str | None) -> str:
    if "expected_fingerprint" in keywords:
        return checked_fingerprint(keywords["expected_fingerprint"])
    return fingerprint or ""


def _refuse_unknown(keywords: Mapping[str, object], known: Mapping[str, object]) -> None:
    for name in keywords:
        if name not in known:
            raise TypeError(f"there is no option {name!r}; there are {', '.join(known)}")
