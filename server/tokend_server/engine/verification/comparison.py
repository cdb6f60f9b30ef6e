"""One fast engine against the reference, batch by batch."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise

from tokend_server.engine.encode_options import EncodeOptions
from tokend_server.engine.fast import FastEngine
from tokend_server.engine.packed import pack_ids
from tokend_server.engine.reference import ReferenceEncoder
from tokend_server.engine.special_tokens import SpecialTokenPolicy
from tokend_server.errors import RequestError

__all__ = ["EVERY_MODE", "Comparison", "Difference", "Expected", "Mode", "Tally", "batches"]

_BATCH_CHARACTERS = 500_000
_BATCH_TEXTS = 4_000
_MOST_PIECES = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """What a request may ask for, as far as the fast engine serves it."""

    policy: SpecialTokenPolicy
    add_special_tokens: bool

    @property
    def keeps_control(self) -> bool:
        """Whether control tokens stay text."""
        return self.policy is not SpecialTokenPolicy.PARSE

    def __str__(self) -> str:
        return f"{self.policy.name}{'' if self.add_special_tokens else ', nothing added'}"


EVERY_MODE = tuple(
    Mode(policy=policy, add_special_tokens=add) for policy in SpecialTokenPolicy for add in (True, False)
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A text that the engines cut differently. It was made here, so it may be told."""

    text: str
    mode: str
    expected: list[int] | None
    """None: the reference refuses the text."""
    found: list[int] | None
    """None: the fast engine raised an error."""


@dataclass(kw_only=True, slots=True)
class Tally:
    """How much was compared."""

    n_texts: int = 0
    """Texts, once for each mode in which they were compared."""
    n_bytes: int = 0
    n_ids: int = 0
    n_explained: int = 0
    """Texts that differ and hold an excluded code point."""
    differences: list[Difference] = field(default_factory=list)
    """Texts that differ and hold none; the first few."""

    def add(self, texts: Sequence[str], expected: "Expected", n_modes: int) -> None:
        """Counts what is about to be compared."""
        self.n_texts += n_modes * len(texts)
        self.n_bytes += n_modes * sum([len(text.encode()) for text in texts])
        self.n_ids += n_modes * expected.n_ids


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What the reference gives for some texts: by text, and in the form in which the fast engine answers."""

    ids: list[list[int] | None]
    """None: it refuses the text, and whatever is found differs from that."""
    packed: bytes
    bounds: list[int]
    """Empty where a text is refused, so that no answer fits."""

    @classmethod
    def of(cls, ids: list[list[int] | None]) -> "Expected":
        """Packs the ids."""
        known = [each for each in ids if each is not None]
        return cls(
            ids=ids,
            packed=pack_ids(chain.from_iterable(known)),
            bounds=[*accumulate(map(len, known), initial=0)] if len(known) == len(ids) else [],
        )

    @property
    def n_ids(self) -> int:
        """How many ids there are."""
        return len(self.packed) // 4


class Comparison:
    """Compares what two engines make of texts; a panic of the fast one is let through."""

    def __init__(self, engine: FastEngine, reference: ReferenceEncoder) -> None:
        self._engine = engine
        self._reference = reference
        self._may_hold_control = reference.may_hold_control_token

    def is_served(self, text: str, mode: Mode) -> bool:
        """Whether the fast engine would get this text: where control tokens stay text, it must hold none."""
        return not (mode.keeps_control and self._may_hold_control(text))

    def expected(self, texts: Sequence[str], mode: Mode) -> "Expected":
        """Asks the reference."""
        return Expected.of(self._expected(texts, mode))

    def _expected(self, texts: Sequence[str], mode: Mode) -> list[list[int] | None]:
        options = EncodeOptions(policy=mode.policy, add_special_tokens=mode.add_special_tokens)
        try:
            return [encoded.ids for encoded in self._reference.encode(texts, None, options)]
        except RequestError:
            if len(texts) == 1:
                return [None]
            return [ids for text in texts for ids in self._expected([text], mode)]

    def differing(self, texts: Sequence[str], mode: Mode, expected: "Expected") -> list[int]:
        """Compares the fast engine with what is expected.

        Args:
            texts: The texts.
            mode: What is asked of the fast engine.
            expected: What the reference gives for them.

        Returns:
            The places of the texts that differ, ascending.
        """
        try:
            packed, bounds = self._flat(texts, mode)
        except Exception:  # noqa: BLE001 (which text it is is found below)
            found = [self.found(text, mode) for text in texts]
        else:
            # Nearly every batch ends here.
            if packed == expected.packed and bounds == expected.bounds:
                return []
            ids = array("I", packed)
            found = [ids[start:end].tolist() for start, end in pairwise(bounds)]
            found += [None] * (len(texts) - len(found))
        return [
            place
            for place, (wanted, got) in enumerate(zip(expected.ids, found, strict=True))
            if wanted is None or wanted != got
        ]

    def found(self, text: str, mode: Mode) -> list[int] | None:
        """Returns the fast engine's ids of one text, or None where it raises an error."""
        try:
            return array("I", self._flat([text], mode)[0]).tolist()
        except Exception:  # noqa: BLE001 (an error is a difference, whatever it says)
            return None

    def difference(self, text: str, mode: Mode) -> Difference:
        """Describes a text that differed, cut down to what is needed to see it.

        One that does not differ by itself, but did beside other texts, stays whole and gets a note.
        """
        note = ""
        if self._differs(text, mode):
            text = self._shrunk(text, mode)
        else:
            note = ", beside other texts only"
        expected, found = self._expected([text], mode)[0], self.found(text, mode)
        return Difference(text=text, mode=f"{mode}{note}", expected=expected, found=found)

    def _differs(self, text: str, mode: Mode) -> bool:
        expected = self._expected([text], mode)[0]
        return expected is None or expected != self.found(text, mode)

    def _shrunk(self, text: str, mode: Mode) -> str:
        """Drops ever smaller pieces of a text while it still differs."""
        length = len(text) // 2
        while length:
            start = 0
            while start < len(text):
                shorter = text[:start] + text[start + length :]
                if shorter and self.is_served(shorter, mode) and self._differs(shorter, mode):
                    text = shorter
                else:
                    start += length
            # A long text is told well enough without its last characters weighed one by one.
            length = length // 2 if length > 1 and len(text) // length < _MOST_PIECES else 0
        return text

    def _flat(self, texts: Sequence[str], mode: Mode) -> tuple[bytes, list[int]]:
        return self._engine.encode_flat(
            list(texts), add_special_tokens=mode.add_special_tokens, keep_control=mode.keeps_control
        )


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yields texts in batches that fill an engine and do not fill the memory."""
    batch: list[str] = []
    n_characters = 0
    for text in texts:
        batch.append(text)
        n_characters += len(text)
        if n_characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_TEXTS:
            yield batch
            batch, n_characters = [], 0
    if batch:
        yield batch
