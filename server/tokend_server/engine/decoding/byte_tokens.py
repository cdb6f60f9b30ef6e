"""Tokens that are bytes: byte-level files, and byte-fallback files read promptly.

Pending bytes are always a proper prefix of one character, so they stand for exactly one U+FFFD when nothing
completes them.
"""

from codecs import utf_8_decode
from collections.abc import Sequence

from tokend_server.engine.decoders import DecoderPlan
from tokend_server.engine.decoding.interface import FFFD, OpenSequence, TextDecoder
from tokend_server.engine.decoding.opening import Opening, first_index
from tokend_server.engine.decoding.tables import SkipPair, mixed_table
from tokend_server.engine.decoding.utf8 import COMPLETE, INVALID, NEXT_STATE

__all__ = ["ByteDecoder", "ByteSequence"]


class ByteDecoder(TextDecoder):
    """Decoder of a byte-level file.

    Args:
        plan: How the file's decoder is served.
        raw: Bytes of each id by id, replacement id included, nothing for those that are dropped.
        first: Bytes of each id when it is the first that counts, if that makes a difference.
        dropped: Ids that are dropped.
    """

    __slots__ = ("_dropped", "_first", "_mixed", "_raw")

    def __init__(
        self,
        plan: DecoderPlan,
        *,
        raw: SkipPair[list[bytes]],
        first: list[bytes] | None,
        dropped: SkipPair[frozenset[int]],
    ) -> None:
        super().__init__(plan, replacement_id=len(raw.kept) - 1)
        self._raw = raw
        self._mixed = mixed_table(raw, dropped)
        self._first = first
        self._dropped = dropped

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of a whole list of ids: their bytes joined, and read as UTF-8."""
        return self._edited(self._joined(ids, skip_special_tokens).decode("utf-8", "replace"))

    def raw_bytes(self, ids: Sequence[int], *, skip_special_tokens: bool) -> bytes:
        """The bytes of the ids, with the decoder's edits."""
        data = self._joined(ids, skip_special_tokens)
        for edit in self._plan.edits:
            data = edit.edit_bytes(data)
        return data

    def _joined(self, ids: Sequence[int], skip_special_tokens: bool) -> bytes:
        raw = self._raw.of(skip_special_tokens=skip_special_tokens)
        parts = [raw[token_id] for token_id in ids]
        if self._first is not None:
            dropped = self._dropped.of(skip_special_tokens=skip_special_tokens)
            index = first_index(ids, dropped)
            if index < len(ids):
                parts[index] = self._first[ids[index]]
        return b"".join(parts)

    def _open(self, *, skip_special_tokens: bool, hold_byte_runs: bool) -> OpenSequence:
        del hold_byte_runs  # there are no runs: bytes join across all tokens
        opening = Opening(
            first=self._first,
            dropped=self._dropped.of(skip_special_tokens=skip_special_tokens),
            edits=self._fresh_edits(),
        )
        return ByteSequence(
            self._mixed.of(skip_special_tokens=skip_special_tokens),
            self._raw.of(skip_special_tokens=skip_special_tokens),
            opening if opening.needed else None,
        )


class ByteSequence(OpenSequence):
    """A stream whose ids are bytes.

    Args:
        mixed: What each id gives: str if its bytes are whole characters, else bytes; `""` if it is dropped.
        raw: The bytes of each id.
        opening: What has to be minded beside the tables; None for the plain, fast way.
    """

    __slots__ = ("_mixed", "_opening", "_pending", "_raw")

    def __init__(self, mixed: list[str | bytes], raw: list[bytes], opening: Opening[bytes] | None) -> None:
        self._mixed = mixed
        self._raw = raw
        self._opening = opening
        self._pending = b""

    def push(self, ids: Sequence[int]) -> str:
        """The characters that these ids complete; an open one is held."""
        if self._opening is not None:
            return self._push_opening(ids, self._opening)
        if len(ids) == 1:
            entry = self._mixed[ids[0]]
            if entry.__class__ is str:
                if self._pending and entry:
                    self._pending = b""
                    return FFFD + entry
                return entry
            return self._read(self._pending + entry)  # type: ignore[operator]
        raw = self._raw
        return self._read(self._pending + b"".join([raw[token_id] for token_id in ids]))

    def _read(self, data: bytes) -> str:
        """The whole characters of the pending and new bytes; what is open becomes the pending bytes."""
        text, n_used = utf_8_decode(data, "replace", False)
        data = data[n_used:]
        if (
            len(data) == 2 and data[0] == 0xED and data[1] > 0x9F
        ):  # half a surrogate: Python waits for the rest
            self._pending = b""
            return text + FFFD + FFFD
        self._pending = data
        return text

    def finish(self) -> str:
        """U+FFFD for a character that stayed open, unless all of it is the prompt's."""
        opening = self._opening
        text = FFFD if self._pending and not (opening and opening.prompt_open) else ""
        self._pending = b""
        return opening.edit(text) if opening else text

    @property
    def pending_bytes(self) -> int:
        """Bytes of the open character, at most 3; those of a prompt are counted too."""
        return len(self._pending)

    def prime(self, prompt_ids: Sequence[int]) -> None:
        """Take a prompt as context; bytes that it leaves open stay pending."""
        self.push(prompt_ids)
        if self._pending:
            self._opening = self._opening or Opening()
            self._opening.prompt_open = True

    def _push_opening(self, ids: Sequence[int], opening: Opening[bytes]) -> str:
        """As `push`, but for the start of a sequence, and where its text is edited."""
        text = ""
        self._opening = None  # the plain way, for the parts
        try:
            if opening.prompt_open:
                self._settle_prompt(ids, opening)
            if opening.first is not None:
                index = first_index(ids, opening.dropped)
                if index < len(ids):
                    text = self._read(opening.first[ids[index]])
                    opening.first = None
                ids = ids[index + 1 :]
            if len(ids):
                text += self.push(ids)
        finally:
            self._opening = opening
        text = opening.edit(text)
        if not opening.needed:
            self._opening = None
        return text

    def _settle_prompt(self, ids: Sequence[int], opening: Opening[bytes]) -> None:
        """Find out whether the first ids go on with the character that the prompt left open."""
        raw = self._raw
        data = next((raw[token_id] for token_id in ids if raw[token_id]), None)
        if data is None:
            return
        opening.prompt_open = False
        state = COMPLETE
        for byte in (*self._pending, data[0]):
            state = NEXT_STATE[state][byte]
        if state == INVALID:
            # Its U+FFFD is text of the prompt: not sent, but the edits have to have seen it.
            opening.edit(FFFD)
            self._pending = b""
