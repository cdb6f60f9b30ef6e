"""Ids as the wire has them: one buffer for a batch, little-endian uint32, without a Python object for a token."""

import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokend_server.engine.encode_options import Encoded

__all__ = ["PackedBatch", "pack_ids"]


# Not frozen, as it is made for each call: that would triple what making it costs.
@dataclass(kw_only=True, slots=True)
class PackedBatch:
    """The ids of a batch, and of each text how many there are."""

    packed_ids: bytes
    """The ids of all texts joined."""
    token_counts: list[int]
    """How many ids each text has, in order."""
    total_token_counts: list[int]
    """How many each had before truncation."""
    special_text_counts: list[int]
    """How many control tokens stayed text in each."""

    @classmethod
    def of(cls, encodings: Sequence[Encoded]) -> "PackedBatch":
        """Packs what has lists of ids; no encodings give an empty batch."""
        return cls(
            packed_ids=b"".join([pack_ids(encoded.ids) for encoded in encodings]),
            token_counts=[len(encoded.ids) for encoded in encodings],
            total_token_counts=[encoded.total_token_count for encoded in encodings],
            special_text_counts=[encoded.special_text_count for encoded in encodings],
        )


def pack_ids(ids: Iterable[int]) -> bytes:
    """Returns ids as little-endian uint32."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
