"""Decode and BatchDecode: ids to text, and the rules about ids that StreamDecode shares."""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from tokend_server.engine.frozen import FrozenTokenizer
from tokend_server.errors import InvalidOption, UnknownTokenId
from tokend_server.service.limits import Limits

__all__ = ["DecodeOptions", "DecodeService", "Decoded", "UnknownIds", "read_ids"]


class UnknownIds(Enum):
    """What becomes of an id that the tokenizer does not have."""

    ERROR = auto()
    """The call, or in a stream the sequence, fails and names the id."""
    SKIP = auto()
    """The id is dropped, as the library does, and counted."""
    REPLACE = auto()
    """One U+FFFD stands for it, as an ordinary token would, and it is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """How ids become text; the defaults are the reference's."""

    skip_special_tokens: bool = True
    unknown_ids: UnknownIds = UnknownIds.ERROR
    include_bytes: bool = False
    hold_byte_runs: bool = False
    expected_fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """One decoded list of ids."""

    text: str
    raw_bytes: bytes
    """The bytes of which `text` is the lossy UTF-8 reading; empty unless asked for."""
    unknown_id_count: int
    n_tokens: int
    """The ids that were sent, unknown and skipped ones included."""


def read_ids(ids: Sequence[int], packed_ids: bytes) -> Sequence[int]:
    """Read ids that come listed or packed.

    Args:
        ids: The listed ids, maybe none.
        packed_ids: Little-endian uint32 values, maybe none.

    Returns:
        The ids, in order; both empty is an empty list.

    Raises:
        InvalidOption: Both are set, or the packed bytes are not a multiple of 4.
    """
    if not packed_ids:
        return ids
    if ids:
        raise InvalidOption(
            "packed_ids", len(packed_ids), "ids and packed_ids are both set; send one of them"
        )
    if len(packed_ids) % 4:
        raise InvalidOption(
            "packed_ids",
            len(packed_ids),
            f"{len(packed_ids)} bytes are not a multiple of 4; send uint32 values",
        )
    unpacked = array("I")
    unpacked.frombytes(packed_ids)
    if sys.byteorder == "big":
        unpacked.byteswap()
    return unpacked


class DecodeService:
    """Decoding calls on one frozen tokenizer; safe to share between threads."""

    def __init__(self, tokenizer: FrozenTokenizer, limits: Limits) -> None:
        self.tokenizer = tokenizer
        self.limits = limits

    def decode(self, ids: Sequence[int], packed_ids: bytes, options: DecodeOptions) -> Decoded:
        """Decode one list of ids.

        Args:
            ids: The listed ids.
            packed_ids: Or the same as little-endian uint32 bytes.
            options: How.

        Returns:
            What `Tokenizer.decode` of the library gives for the same ids; "" for none.

        Raises:
            TokenizerMismatch: Another tokenizer is expected.
            InvalidOption: `ids` and `packed_ids` are both set, or the bytes are no uint32 values.
            LimitExceeded: TOO_MANY_IDS.
            UnknownTokenId: An unknown id under ERROR.
        """
        self.tokenizer.check_fingerprint(options.expected_fingerprint)
        given = read_ids(ids, packed_ids)
        self.limits.check_ids(len(given))
        return self._decode(given, options)

    def decode_batch(
        self, sequences: Sequence[tuple[Sequence[int], bytes]], options: DecodeOptions
    ) -> list[Decoded]:
        """Decode several lists of ids, all or nothing; the error names the list's place.

        Args:
            sequences: Pairs of listed and packed ids, as in `decode`.
            options: For all of them.

        Returns:
            One result a list, in order.

        Raises:
            LimitExceeded: BATCH_TOO_LARGE for their number, TOO_MANY_IDS for all their ids together.
            RequestError: As `decode`, with the list's place as `index` and an unknown id's place in it as `position`.
        """
        self.tokenizer.check_fingerprint(options.expected_fingerprint)
        self.limits.check_batch_length(len(sequences))
        lists: list[Sequence[int]] = []
        n_ids = 0
        for index, (ids, packed_ids) in enumerate(sequences):
            try:
                lists.append(read_ids(ids, packed_ids))
            except InvalidOption as error:
                error.metadata["index"] = str(index)
                raise
            n_ids += len(lists[-1])
            self.limits.check_ids(n_ids, index=index)
        results = []
        for index, given in enumerate(lists):
            try:
                results.append(self._decode(given, options))
            except UnknownTokenId as error:
                error.metadata |= {"index": str(index), "position": str(error.index)}
                raise
        return results

    def _decode(self, given: Sequence[int], options: DecodeOptions) -> Decoded:
        ids, n_unknown = self.resolve_unknown(given, options.unknown_ids)
        decoder = self.tokenizer.decoder
        skip = options.skip_special_tokens
        return Decoded(
            text=decoder.decode(ids, skip_special_tokens=skip),
            raw_bytes=decoder.raw_bytes(ids, skip_special_tokens=skip) if options.include_bytes else b"",
            unknown_id_count=n_unknown,
            n_tokens=len(given),
        )

    def resolve_unknown(
        self, ids: Sequence[int], policy: UnknownIds, *, first_index: int = 0
    ) -> tuple[Sequence[int], int]:
        """Apply the unknown-id policy.

        Args:
            ids: Ids as sent.
            policy: What to do with unknown ones.
            first_index: Where the first of them stands in the caller's list, for the error.

        Returns:
            The ids to decode, and how many unknown ones were skipped or replaced.

        Raises:
            UnknownTokenId: An unknown id under ERROR.
        """
        vocabulary = self.tokenizer.vocabulary
        first = vocabulary.first_unknown(ids)
        if first is None:
            return ids, 0
        if policy is UnknownIds.ERROR:
            raise UnknownTokenId(ids[first], index=first_index + first, max_id=vocabulary.max_id)
        known = vocabulary.is_known
        kept = [token_id for token_id in ids if known(token_id)]
        n_unknown = len(ids) - len(kept)
        if policy is UnknownIds.SKIP:
            return kept, n_unknown
        replacement = self.tokenizer.decoder.replacement_id
        return [token_id if known(token_id) else replacement for token_id in ids], n_unknown
