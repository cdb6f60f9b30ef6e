"""Decoders that no table can stream: ids are held, and the library decodes them at the end.

Never through the library's DecodeStream, which loses the end of a text and can raise in the middle of it.
"""

from array import array
from collections.abc import Sequence

from tokenizers import Tokenizer

from tokend_server.engine.decoders import DecoderPlan
from tokend_server.engine.decoding.interface import FFFD, OpenSequence, TextDecoder
from tokend_server.engine.decoding.tables import common_length, dropped_ids
from tokend_server.engine.vocabulary import Vocabulary
from tokend_server.errors import InternalFault, LimitExceeded, Reason

__all__ = ["MAX_HELD_IDS", "HeldDecoder", "HeldSequence"]

MAX_HELD_IDS = 1_000_000
"""Ids that one sequence may hold, 4 bytes each, a prompt's included; more is TOO_MANY_IDS."""


class HeldDecoder(TextDecoder):
    """Decoder for everything else: correct, but with the whole text at the end.

    Args:
        plan: Why nothing is known before the end.
        tokenizer: The library's tokenizer; only its Decode is used.
        vocabulary: The vocabulary of the same tokenizer.
    """

    __slots__ = ("_dropped", "_tokenizer", "_vocabulary")

    def __init__(self, plan: DecoderPlan, *, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        super().__init__(plan, replacement_id=vocabulary.max_id + 1)
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._dropped = dropped_ids(vocabulary)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text by the library itself.

        Raises:
            IndexError: An id is above `replacement_id`.
            InternalFault: The library panics.
        """
        greatest = max(ids, default=0)
        if greatest > self.replacement_id:
            raise IndexError(greatest)
        try:
            if greatest == self.replacement_id:
                return self._decode_strings(ids, skip_special_tokens=skip_special_tokens)
            text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as panic:  # a panic of the library is no Exception
            raise InternalFault from panic
        return text

    def _decode_strings(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """As the library does it, but with U+FFFD among the token strings."""
        dropped = self._dropped.of(skip_special_tokens=skip_special_tokens)
        strings = [self._string_of(token_id) for token_id in ids if token_id not in dropped]
        decoder = self._tokenizer.decoder
        return " ".join(strings) if decoder is None else decoder.decode(strings)

    def _string_of(self, token_id: int) -> str:
        if token_id == self.replacement_id:
            return FFFD
        return self._vocabulary.strings[token_id] or ""

    def held_bytes(self, token_id: int) -> int:
        """What a held id counts for in `pending_bytes`: its string in UTF-8, as its text is not known yet."""
        return len(self._string_of(token_id).encode())

    def _open(self, *, skip_special_tokens: bool, hold_byte_runs: bool) -> OpenSequence:
        del hold_byte_runs  # everything is held
        return HeldSequence(self, skip_special_tokens=skip_special_tokens)


class HeldSequence(OpenSequence):
    """A stream that gives all its text at the end.

    Args:
        decoder: Decodes the ids.
        skip_special_tokens: As for `decode`.
    """

    __slots__ = ("_decoder", "_ids", "_n_pending_bytes", "_n_prompt_ids", "_skip_special_tokens")

    may_refuse = True

    def __init__(self, decoder: HeldDecoder, *, skip_special_tokens: bool) -> None:
        self._decoder = decoder
        self._skip_special_tokens = skip_special_tokens
        self._ids = array("I")
        self._n_prompt_ids = 0
        self._n_pending_bytes = 0

    def push(self, ids: Sequence[int]) -> str:
        """Nothing: the ids are held.

        Raises:
            IndexError: An id is above `replacement_id`.
            LimitExceeded: More than `MAX_HELD_IDS` would be held; none of these ids is taken.
        """
        n_ids = len(self._ids) + len(ids)
        if n_ids > MAX_HELD_IDS:
            raise LimitExceeded(
                Reason.TOO_MANY_IDS,
                f"this tokenizer's decoder needs the whole sequence, and {n_ids} ids are more than the "
                f"{MAX_HELD_IDS} that are held for one; end the sequence earlier",
                size=n_ids,
                limit=MAX_HELD_IDS,
            )
        self._n_pending_bytes += sum(map(self._decoder.held_bytes, ids))
        self._ids.extend(ids)
        return ""

    def finish(self) -> str:
        """The text of all ids, without that of the prompt.

        Raises:
            InternalFault: The library panics.
        """
        skip = self._skip_special_tokens
        text = self._decoder.decode(self._ids, skip_special_tokens=skip)
        prompt = self._decoder.decode(self._ids[: self._n_prompt_ids], skip_special_tokens=skip)
        self._ids = array("I")
        self._n_pending_bytes = self._n_prompt_ids = 0
        return text[common_length(text, prompt) :]

    @property
    def pending_bytes(self) -> int:
        """The held ids' strings in UTF-8, without the prompt's; their text is not known yet."""
        return self._n_pending_bytes

    def prime(self, prompt_ids: Sequence[int]) -> None:
        """Take a prompt as context: what Decode gives for it is cut from the text at the end.

        Raises:
            LimitExceeded: More than `MAX_HELD_IDS`.
        """
        self.push(prompt_ids)
        self._n_prompt_ids = len(self._ids)
        self._n_pending_bytes = 0
