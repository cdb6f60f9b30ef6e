"""Byte-fallback files: text tokens, and byte tokens `<0xNN>` whose runs are read as UTF-8.

The library reads a run when it ends, and gives one U+FFFD for each of its bytes if it is not all UTF-8. So a
stream has a choice. Promptly: each character as soon as it is whole, each maximal invalid part one U+FFFD
(`ByteSequence`). Or exactly: a run is held while it may still be valid (`HoldSequence`).
"""

import sys
from codecs import utf_8_decode
from collections.abc import Sequence

from tokend_server.engine.decoders import DecoderPlan
from tokend_server.engine.decoding.byte_tokens import ByteDecoder, ByteSequence
from tokend_server.engine.decoding.interface import FFFD, OpenSequence, TextDecoder
from tokend_server.engine.decoding.opening import Opening
from tokend_server.engine.decoding.tables import SkipPair, skip_tables
from tokend_server.engine.decoding.utf8 import COMPLETE, INVALID, NEXT_STATE
from tokend_server.engine.edits import Edit

__all__ = ["MAX_HELD_RUN_BYTES", "ByteRunDecoder", "HoldSequence", "PromptSequence"]

MAX_HELD_RUN_BYTES = 65_536
"""A valid run longer than this is sent and judged in pieces of this size, so that a stream's memory is bounded."""

_RUN_END = 256
"""Table entry of a token that has no text and yet ends a run; bytes are 0..255."""


class ByteRunDecoder(ByteDecoder):
    """Decoder of a byte-fallback file.

    Args:
        plan: How the file's decoder is served.
        texts: Text of each id by id, replacement id included.
        byte_values: The byte of each id that is a byte token.
        dropped: Ids that are dropped; they do not end a run.
    """

    __slots__ = ("_entries", "_run_ends")

    def __init__(
        self,
        plan: DecoderPlan,
        *,
        texts: Sequence[str],
        byte_values: dict[int, int],
        dropped: SkipPair[frozenset[int]],
    ) -> None:
        raw = [text.encode() for text in texts]
        entries: list[str | int] = [text or _RUN_END for text in texts]
        for token_id, byte in byte_values.items():
            raw[token_id] = bytes((byte,))
            entries[token_id] = byte
        super().__init__(plan, raw=skip_tables(raw, dropped, b""), first=None, dropped=dropped)
        self._entries = skip_tables(entries, dropped, "")
        silent = frozenset(token_id for token_id, entry in enumerate(entries) if entry == _RUN_END)
        self._run_ends = SkipPair(silent - dropped.kept, silent - dropped.skipped)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of a whole list of ids; a run that is not all UTF-8 is one U+FFFD a byte."""
        if self._run_ends.of(skip_special_tokens=skip_special_tokens).isdisjoint(ids):
            try:
                return self._edited(self._joined(ids, skip_special_tokens).decode())
            except UnicodeDecodeError:
                pass
        return TextDecoder.decode(self, ids, skip_special_tokens=skip_special_tokens)

    def _open(self, *, skip_special_tokens: bool, hold_byte_runs: bool) -> OpenSequence:
        if hold_byte_runs:
            entries = self._entries.of(skip_special_tokens=skip_special_tokens)
            return HoldSequence(entries, self._fresh_edits(), max_held_bytes=MAX_HELD_RUN_BYTES)
        opening: Opening[bytes] = Opening(edits=self._fresh_edits())
        parts = (
            self._mixed.of(skip_special_tokens=skip_special_tokens),
            self._raw.of(skip_special_tokens=skip_special_tokens),
            opening if opening.needed else None,
        )
        run_ends = self._run_ends.of(skip_special_tokens=skip_special_tokens)
        return PromptSequence(*parts, run_ends) if run_ends else ByteSequence(*parts)

    def _open_whole(self, *, skip_special_tokens: bool) -> OpenSequence:
        entries = self._entries.of(skip_special_tokens=skip_special_tokens)
        return HoldSequence(entries, self._fresh_edits(), max_held_bytes=sys.maxsize)


class PromptSequence(ByteSequence):
    """A `ByteSequence` for the rare file in which a token without text ends a run.

    A text token ends a run by itself, since its first byte never continues a character.

    Args:
        mixed: As for `ByteSequence`.
        raw: As for `ByteSequence`.
        opening: As for `ByteSequence`.
        run_ends: Ids of tokens without text.
    """

    __slots__ = ("_run_ends",)

    def __init__(
        self,
        mixed: list[str | bytes],
        raw: list[bytes],
        opening: Opening[bytes] | None,
        run_ends: frozenset[int],
    ) -> None:
        super().__init__(mixed, raw, opening)
        self._run_ends = run_ends

    def push(self, ids: Sequence[int]) -> str:
        """The characters that these ids complete; an open one is held."""
        run_ends = self._run_ends
        if run_ends.isdisjoint(ids):
            return super().push(ids)
        parts: list[str] = []
        start = 0
        for index, token_id in enumerate(ids):
            if token_id in run_ends:
                parts += (super().push(ids[start:index]), self._end_run())
                start = index + 1
        parts.append(super().push(ids[start:]))
        return "".join(parts)

    def _end_run(self) -> str:
        opening = self._opening
        text = self.finish()
        if opening is not None and opening.prompt_open:
            opening.prompt_open = False
            opening.edit(FFFD)  # the prompt's own: the edits have to have seen it
        return text


class HoldSequence(OpenSequence):
    """A stream that holds a run of byte tokens while it is valid, and so always equals Decode.

    Once a run is known to be invalid it gives one U+FFFD a byte at once, and holds nothing. Of a run that a
    prompt began, the prompt's bytes count for its validity, and only the rest gives text.

    Args:
        entries: What each id gives: str for text (`""` if it is dropped), the value of a byte, or 256 for a token
            that ends a run without text.
        edits: Edits of the text, as they stand for this sequence.
        max_held_bytes: A run longer than this is sent and judged in pieces.
    """

    __slots__ = ("_edits", "_entries", "_max_held_bytes", "_n_prompt_bytes", "_run", "_state")

    def __init__(self, entries: list[str | int], edits: list[Edit], *, max_held_bytes: int) -> None:
        self._entries = entries
        self._edits = edits
        self._max_held_bytes = max_held_bytes
        self._run: bytearray | None = None
        """Bytes of the open run, none of them sent; None between runs, empty once the run is invalid."""
        self._state = COMPLETE
        self._n_prompt_bytes = 0
        """How many of the run's held bytes are the prompt's."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that is known for certain; a run that may still be valid is held."""
        entries = self._entries
        if self._run is not None:
            text = self._walk(ids)
        elif len(ids) == 1 and (entry := entries[ids[0]]).__class__ is str:
            text = entry
        else:
            try:
                text = "".join([entries[token_id] for token_id in ids])  # type: ignore[misc]  # see except
            except TypeError:
                text = self._walk(ids)
        return self._edit(text) if self._edits else text

    def finish(self) -> str:
        """The text of the run that is open at the end."""
        return self._edit(self._close_run())

    @property
    def pending_bytes(self) -> int:
        """Bytes of the held run, those of a prompt's open character too."""
        return len(self._run) if self._run else 0

    def prime(self, prompt_ids: Sequence[int]) -> None:
        """Take a prompt as context; of a run that it leaves open, the state and the open character stay."""
        self.push(prompt_ids)
        if self._run:
            text, n_sent = utf_8_decode(self._run, "strict", False)
            self._edit(text)
            del self._run[:n_sent]
            self._n_prompt_bytes = len(self._run)

    def _walk(self, ids: Sequence[int]) -> str:
        """One id after the other, where byte tokens are among them."""
        parts: list[str] = []
        for token_id in ids:
            entry = self._entries[token_id]
            if isinstance(entry, str):
                if entry:
                    if self._run is not None:
                        parts.append(self._close_run())
                    parts.append(entry)
            elif entry == _RUN_END:
                parts.append(self._close_run())
            elif self._state == INVALID:
                parts.append(FFFD)
            else:
                parts.append(self._take_byte(entry))
        return "".join(parts)

    def _take_byte(self, byte: int) -> str:
        """One more byte of a run that is valid so far; the text that it settles, mostly none."""
        if self._run is None:
            self._run = bytearray()
        run = self._run
        run.append(byte)
        self._state = NEXT_STATE[self._state][byte]
        if self._state == INVALID:
            return self._give_up(run)
        if len(run) < self._max_held_bytes:
            return ""
        text, n_sent = utf_8_decode(run, "strict", False)
        del run[:n_sent]
        self._n_prompt_bytes = 0
        return text

    def _give_up(self, run: bytearray) -> str:
        """One U+FFFD for each held byte that is not the prompt's."""
        text = FFFD * (len(run) - self._n_prompt_bytes)
        run.clear()
        self._n_prompt_bytes = 0
        return text

    def _close_run(self) -> str:
        """The text of the open run, now that it has ended; nothing if none is open."""
        run = self._run
        if run is None:
            return ""
        if self._state == COMPLETE:
            text = run.decode()
        elif self._state == INVALID:
            text = ""  # all of it was sent
        elif self._n_prompt_bytes == len(run):
            self._edit(FFFD)  # the prompt's own: the edits have to have seen it
            text = ""
        else:
            text = self._give_up(run)
        self._run = None
        self._state = COMPLETE
        self._n_prompt_bytes = 0
        return text

    def _edit(self, text: str) -> str:
        for edit in self._edits:
            text = edit.edit(text)
        if any(edit.done for edit in self._edits):
            self._edits = [edit for edit in self._edits if not edit.done]
        return text
