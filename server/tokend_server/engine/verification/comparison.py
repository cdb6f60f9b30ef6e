"""One fast engine against the reference, batch by batch."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

from tokend_server.engine.encode_options import EncodeOptions
from tokend_server.engine.fast import FastEngine
from tokend_server.engine.packed import pack_ids
from tokend_server.engine.reference import ReferenceEncoder
from tokend_server.engine.special_tokens import SpecialTokenPolicy
from tokend_server.errors import RequestError

__all__ = ["EVERY_MODE", "Comparison", "Difference", "Mode", "Tally", "batches"]

_BATCH_CHARACTERS = 500_000
_BATCH_TEXTS = 4_000


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
    n_bytes: int = 0
    n_ids: int = 0
    n_explained: int = 0
    """Texts that differ and hold an excluded code point."""
    differences: list[Difference] = field(default_factory=list)
    """Texts that differ and hold none."""


class Comparison:
    """Compares what two engines make of texts; a panic of the fast one is let through."""

    def __init__(self, engine: FastEngine, reference: ReferenceEncoder) -> None:
        self._engine = engine
        self._reference = reference
        self._may_hold_control = reference.may_hold_control_token

    def is_served(self, text: str, mode: Mode) -> bool:
        """Whether the fast engine would get this text: where control tokens stay text, it must hold none."""
        return not (mode.keeps_control and self._may_hold_control(text))

    def expected(self, texts: Sequence[str], mode: Mode) -> list[list[int] | None]:
        """Returns the reference's ids of each text, or None where it refuses one."""
        options = EncodeOptions(policy=mode.policy, add_special_tokens=mode.add_special_tokens)
        try:
            return [encoded.ids for encoded in self._reference.encode(texts, None, options)]
        except RequestError:
            if len(texts) == 1:
                return [None]
            return [ids for text in texts for ids in self.expected([text], mode)]

    def differing(
        self, texts: Sequence[str], mode: Mode, expected: Sequence[list[int] | None], tally: Tally
    ) -> list[int]:
        """Compares the fast engine with what is expected.

        Args:
            texts: The texts.
            mode: What is asked of the fast engine.
            expected: The ids of each text; None differs from whatever is found.
            tally: Counts what was compared.

        Returns:
            The places of the texts that differ, ascending.
        """
        tally.n_texts += len(texts)
        tally.n_bytes += sum([len(text.encode()) for text in texts])
        tally.n_ids += sum([len(ids) for ids in expected if ids is not None])
        try:
            packed, bounds = self._flat(texts, mode)
        except Exception:  # noqa: BLE001 (which text it is is found below)
            return [
                place
                for place, ids in enumerate(expected)
                if ids is None or self.found(texts[place], mode) != ids
            ]
        # Equal lengths and equal bytes at once: nearly every batch ends here.
        if None not in expected and packed == pack_ids(chain.from_iterable(filter(None, expected))):
            lengths = [end - start for start, end in pairwise(bounds)]
            if lengths == [len(ids) for ids in expected if ids is not None]:
                return []
        ids = array("I", packed)
        spans = list(pairwise(bounds))
        return [
            place
            for place, wanted in enumerate(expected)
            if wanted is None or place >= len(spans) or ids[slice(*spans[place])].tolist() != wanted
        ]

    def found(self, text: str, mode: Mode) -> list[int] | None:
        """Returns the fast engine's ids of one text, or None where it raises an error."""
        try:
            return array("I", self._flat([text], mode)[0]).tolist()
        except Exception:  # noqa: BLE001 (an error is a difference, whatever it says)
            return None

    def difference(self, text: str, mode: Mode) -> Difference | None:
        """Compares one text by itself; None where the engines agree."""
        expected, found = self.expected([text], mode)[0], self.found(text, mode)
        if expected is not None and expected == found:
            return None
        return Difference(text=text, mode=str(mode), expected=expected, found=found)

    def unrepeated(self, text: str, mode: Mode) -> Difference:
        """Describes a text that differed in a batch, and does not by itself."""
        return Difference(text=text, mode=f"{mode}, in a batch", expected=self.expected([text], mode)[0], found=None)

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
