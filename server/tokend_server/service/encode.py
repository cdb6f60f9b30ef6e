"""Encode, BatchEncode and CountTokens: texts to ids, checked against the limits."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokend_server.engine.frozen import FrozenTokenizer
from tokend_server.engine.packed import PackedBatch
from tokend_server.engine.reference import Encoded, EncodeOptions
from tokend_server.errors import InvalidOption, RequestError
from tokend_server.service.limits import Limits
from tokend_server.service.usage import Usage

__all__ = ["Counted", "EncodeService", "EncodedBatch", "EncodedPack"]

# Work of about this size between two looks at the total: enough to fill the engine, small against the whole.
_COUNT_STEP_CHARACTERS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBatch:
    """One encoded batch, in the order of its texts."""

    encodings: list[Encoded]
    usage: Usage


# Not frozen, as it is made for each call: that would triple what making it costs.
@dataclass(slots=True, kw_only=True)
class EncodedPack:
    """One encoded batch whose ids are packed."""

    pack: PackedBatch
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Counts of a CountTokens call."""

    counts: list[int]
    """One for each text that was counted, in order; it ends with the text that passed `stop_after`."""
    total: int
    stopped: bool
    """The total passed `stop_after`, so texts after the last count were not looked at."""
    usage: Usage


class EncodeService:
    """Encoding calls on one frozen tokenizer; safe to share between threads."""

    def __init__(self, tokenizer: FrozenTokenizer, limits: Limits) -> None:
        self.tokenizer = tokenizer
        self.limits = limits

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        options: EncodeOptions,
        *,
        expected_fingerprint: str = "",
        single: bool = False,
    ) -> EncodedBatch:
        """Encode a batch, all or nothing.

        Args:
            texts: The texts; none is a valid, empty batch.
            pairs: As many second texts, or None.
            options: For all of them.
            expected_fingerprint: "" or the fingerprint that must be served.
            single: The call is about one text, so that errors name no index.

        Returns:
            What the reference gives for each text, in order.

        Raises:
            TokenizerMismatch: Another tokenizer is expected.
            LimitExceeded: TEXT_TOO_LARGE or BATCH_TOO_LARGE.
            InvalidOption: `pairs` is not as long as `texts`, or an option is out of its range.
            SpecialTokenRejected: A control token in a text under REJECT.
            InternalFault: The library failed on a text.
        """
        self._check(texts, pairs, expected_fingerprint, single=single)
        try:
            encodings = self.tokenizer.encoder.encode(texts, pairs, options)
        except RequestError as error:
            if single:
                error.metadata.pop("index", None)
            raise
        return EncodedBatch(
            encodings=encodings,
            usage=Usage.of_texts(
                texts,
                pairs,
                n_tokens=sum([len(encoded.ids) for encoded in encodings]),
                special_texts=sum([encoded.special_text_count for encoded in encodings]),
            ),
        )

    def encode_packed(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        options: EncodeOptions,
        *,
        expected_fingerprint: str = "",
        single: bool = False,
    ) -> EncodedPack:
        """Encode a batch into one buffer of ids, all or nothing; else as `encode`.

        Args:
            texts: The texts; none is a valid, empty batch.
            pairs: As many second texts, or None.
            options: For all of them; offsets and token strings have no place in the answer.
            expected_fingerprint: "" or the fingerprint that must be served.
            single: As for `encode`.

        Returns:
            The ids of all texts, in order.

        Raises:
            RequestError: As `encode`.
        """
        self._check(texts, pairs, expected_fingerprint, single=single)
        try:
            pack = self.tokenizer.encoder.encode_packed(texts, pairs, options)
        except RequestError as error:
            if single:
                error.metadata.pop("index", None)
            raise
        return EncodedPack(
            pack=pack,
            usage=Usage.of_texts(
                texts,
                pairs,
                n_tokens=len(pack.packed_ids) // 4,
                special_texts=sum(pack.special_text_counts),
            ),
        )

    def _check(
        self, texts: Sequence[str], pairs: Sequence[str] | None, expected_fingerprint: str, *, single: bool
    ) -> None:
        """Refuse what no engine need look at."""
        self.tokenizer.check_fingerprint(expected_fingerprint)
        if pairs is not None and len(pairs) != len(texts):
            raise InvalidOption(
                "pairs",
                len(pairs),
                f"{len(pairs)} pairs for {len(texts)} texts; send one for each text, or none",
            )
        self.limits.check_batch(texts, pairs, single=single)

    def count(
        self,
        texts: Sequence[str],
        options: EncodeOptions,
        *,
        stop_after: int = 0,
        expected_fingerprint: str = "",
    ) -> Counted:
        """Count the ids that `encode` would give.

        Args:
            texts: The texts; none gives no counts.
            options: As for `encode`; truncation counts what is left.
            stop_after: The work ends once the total passes this; 0: no limit.
            expected_fingerprint: "" or the fingerprint that must be served.

        Returns:
            The counts, up to the text that passed `stop_after`.

        Raises:
            RequestError: As `encode`.
        """
        self.tokenizer.check_fingerprint(expected_fingerprint)
        self.limits.check_batch(texts, None)
        if not stop_after:
            counts = self.tokenizer.encoder.count(texts, None, options)
            usage = Usage.of_texts(texts, n_tokens=sum(counts))
            return Counted(counts=counts, total=sum(counts), stopped=False, usage=usage)
        counts, total, stopped = self._count_up_to(texts, options, stop_after)
        usage = Usage.of_texts(texts[: len(counts)], n_tokens=total)
        return Counted(counts=counts, total=total, stopped=stopped, usage=usage)

    def _count_up_to(
        self, texts: Sequence[str], options: EncodeOptions, stop_after: int
    ) -> tuple[list[int], int, bool]:
        counts: list[int] = []
        total = 0
        while len(counts) < len(texts):
            start = len(counts)
            try:
                step = self.tokenizer.encoder.count(texts[start : _step_end(texts, start)], None, options)
            except RequestError as error:
                if "index" in error.metadata:
                    error.metadata["index"] = str(int(error.metadata["index"]) + start)
                raise
            for n_tokens in step:
                counts.append(n_tokens)
                total += n_tokens
                if total > stop_after:
                    return counts, total, True
        return counts, total, False


def _step_end(texts: Sequence[str], start: int) -> int:
    """Find where the next step of a count that may stop ends; a step has at least one text."""
    characters = 0
    for index in range(start, len(texts)):
        characters += len(texts[index])
        if characters >= _COUNT_STEP_CHARACTERS:
            return index + 1
    return len(texts)
