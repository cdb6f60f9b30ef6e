"""Tokens that are text on their own: Metaspace, WordPiece, Replace and Strip for each token, no decoder at all."""

from collections.abc import Sequence

from tokend_server.engine.decoders import DecoderPlan
from tokend_server.engine.decoding.interface import OpenSequence, TextDecoder
from tokend_server.engine.decoding.opening import Opening, first_index
from tokend_server.engine.decoding.tables import SkipPair, skip_tables

__all__ = ["TextSequence", "TextTokenDecoder"]


class TextTokenDecoder(TextDecoder):
    """Decoder of a file whose tokens are text.

    Args:
        plan: How the file's decoder is served.
        texts: Text of each id by id, replacement id included.
        first: Text of each id when it is the first that counts, if that makes a difference.
        dropped: Ids that are dropped.
    """

    __slots__ = ("_dropped", "_first", "_texts")

    def __init__(
        self,
        plan: DecoderPlan,
        *,
        texts: Sequence[str],
        first: Sequence[str] | None,
        dropped: SkipPair[frozenset[int]],
    ) -> None:
        super().__init__(plan, replacement_id=len(texts) - 1)
        self._texts = skip_tables(texts, dropped, "")
        self._first = first
        self._dropped = dropped

    def _open(self, *, skip_special_tokens: bool, hold_byte_runs: bool) -> OpenSequence:
        del hold_byte_runs  # there are none
        opening = Opening(
            first=self._first,
            dropped=self._dropped.of(skip_special_tokens=skip_special_tokens),
            edits=self._fresh_edits(),
        )
        texts = self._texts.of(skip_special_tokens=skip_special_tokens)
        return TextSequence(texts, opening if opening.needed else None)


class TextSequence(OpenSequence):
    """A stream whose ids are text: nothing is ever held.

    Args:
        texts: Text of each id.
        opening: What has to be minded beside the table; None for the plain, fast way.
    """

    __slots__ = ("_opening", "_texts")

    def __init__(self, texts: list[str], opening: Opening[str] | None) -> None:
        self._texts = texts
        self._opening = opening

    def push(self, ids: Sequence[int]) -> str:
        """The text of these ids."""
        texts = self._texts
        opening = self._opening
        if opening is None:
            return texts[ids[0]] if len(ids) == 1 else "".join([texts[token_id] for token_id in ids])
        parts = [texts[token_id] for token_id in ids]
        if opening.first is not None:
            index = first_index(ids, opening.dropped)
            if index < len(ids):
                parts[index] = opening.first[ids[index]]
                opening.first = None
        text = opening.edit("".join(parts))
        if not opening.needed:
            self._opening = None
        return text

    def finish(self) -> str:
        """Nothing: nothing was held."""
        return ""

    @property
    def pending_bytes(self) -> int:
        """Always 0."""
        return 0

    def prime(self, prompt_ids: Sequence[int]) -> None:
        """Take a prompt as context: the first token was in it."""
        self.push(prompt_ids)
