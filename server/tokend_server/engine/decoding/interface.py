"""What the service sees of decoding: a decoder for one tokenizer file, and the sequences it opens."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tokend_server.engine.decoders import DecoderPlan
from tokend_server.engine.edits import Edit

__all__ = ["FFFD", "OpenSequence", "TextDecoder"]

FFFD = "\ufffd"
"""The replacement character, which stands for bytes that are no text."""


class OpenSequence(ABC):
    """One stream of ids that becomes text: state of a few words, one for each live sequence.

    Any way to cut the ids into pushes gives the same joined text. Not safe for use from two threads at once.
    """

    __slots__ = ()

    may_refuse = False
    """Whether `push` may raise a RequestError, for ids that are all known."""

    @abstractmethod
    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids add; what cannot be known yet is held.

        Args:
            ids: The next ids of the sequence, any number; none gives no text. Each is known to the vocabulary, or
                a hole of it, or the decoder's `replacement_id`: the caller has applied its policy for unknown ids.

        Raises:
            IndexError: An id is above `replacement_id`; the sequence must not be used any more.
        """

    @abstractmethod
    def finish(self) -> str:
        """The text that is still held, now that nothing follows; a second call gives the empty string."""

    @property
    @abstractmethod
    def pending_bytes(self) -> int:
        """How much is held back now, in bytes."""

    @abstractmethod
    def prime(self, prompt_ids: Sequence[int]) -> None:
        """Take ids as context, before the first push: they set the state, their text is never sent.

        The text of the continuation is what Decode gives for it: a character that the prompt left open and the
        first ids complete is sent whole; if they do not go on with it, its U+FFFD was the prompt's, and is not sent.

        Args:
            prompt_ids: As for `push`; none changes nothing.
        """


class TextDecoder(ABC):
    """Text of ids, for one tokenizer file; immutable, so it may be shared by threads.

    Args:
        plan: How the file's decoder is served.
        replacement_id: The id above all of the vocabulary that stands for one ordinary token U+FFFD.
    """

    __slots__ = ("_plan", "replacement_id")

    replacement_id: int
    """A made-up id, one above the greatest: an ordinary token U+FFFD, in the place of an unknown id."""

    def __init__(self, plan: DecoderPlan, replacement_id: int) -> None:
        self._plan = plan
        self.replacement_id = replacement_id

    @property
    def mode(self) -> str:
        """The way of streaming, one word: a value of `DecoderKind`."""
        return self._plan.kind.value

    @property
    def reason(self) -> str:
        """One sentence: what is held back in this way of streaming, or why nothing can be streamed."""
        return self._plan.reason

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of a whole list of ids, as the library's Decode gives it.

        Args:
            ids: Known ids, holes (dropped, as by the library) and `replacement_id`; none gives the empty string.
            skip_special_tokens: Drop ids whose string is the content of a special token.

        Raises:
            IndexError: An id is above `replacement_id`.
        """
        sequence = self._open_whole(skip_special_tokens=skip_special_tokens)
        return sequence.push(ids) + sequence.finish()

    def raw_bytes(self, ids: Sequence[int], *, skip_special_tokens: bool) -> bytes:
        """The bytes of which the text is the lossy UTF-8 reading.

        In byte-fallback files the library gives one U+FFFD for every byte of a run that is not all UTF-8, good
        characters included; there the bytes are the tokens' own, so nothing of them is lost.

        Args:
            ids: As for `decode`.
            skip_special_tokens: As for `decode`.

        Raises:
            IndexError: An id is above `replacement_id`.
        """
        return self.decode(ids, skip_special_tokens=skip_special_tokens).encode()

    def open(
        self, *, skip_special_tokens: bool, hold_byte_runs: bool = False, prompt_ids: Sequence[int] = ()
    ) -> OpenSequence:
        """Open a sequence.

        Args:
            skip_special_tokens: As for `decode`.
            hold_byte_runs: Hold a run of byte tokens while it is valid, so that the joined text equals `decode`
                even on invalid runs. Only byte-fallback files know the difference.
            prompt_ids: Context before the first id, see `OpenSequence.prime`.

        Raises:
            IndexError: A prompt id is above `replacement_id`.
        """
        sequence = self._open(skip_special_tokens=skip_special_tokens, hold_byte_runs=hold_byte_runs)
        if prompt_ids:
            sequence.prime(prompt_ids)
        return sequence

    @abstractmethod
    def _open(self, *, skip_special_tokens: bool, hold_byte_runs: bool) -> OpenSequence:
        """A sequence without context."""

    def _open_whole(self, *, skip_special_tokens: bool) -> OpenSequence:
        """A sequence that is pushed once, for `decode`: exact, whatever has to be held."""
        return self._open(skip_special_tokens=skip_special_tokens, hold_byte_runs=True)

    def _edited(self, text: str) -> str:
        """A whole text with the decoder's edits."""
        for edit in self._plan.edits:
            text = edit.start().edit(text)
        return text

    def _fresh_edits(self) -> list[Edit]:
        """The decoder's edits for a new sequence."""
        return [edit.start() for edit in self._plan.edits]
