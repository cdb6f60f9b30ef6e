"""Tables by id, made once at load: what each id gives when special tokens are kept, and when they are skipped."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tokend_server.engine.decoders import Stage, stage_function
from tokend_server.engine.vocabulary import Vocabulary

__all__ = ["SkipPair", "TokenForms", "common_length", "dropped_ids", "mixed_table", "skip_tables"]

T = TypeVar("T")
REPLACEMENT_STRING = "\ufffd"


@dataclass(frozen=True, slots=True)
class SkipPair(Generic[T]):
    """Two of a thing: one for special tokens kept, one for special tokens skipped."""

    kept: T
    skipped: T

    def of(self, *, skip_special_tokens: bool) -> T:
        """The one that is asked for."""
        return self.skipped if skip_special_tokens else self.kept


def dropped_ids(vocabulary: Vocabulary) -> SkipPair[frozenset[int]]:
    """Ids that do not exist for the decoder: holes, and skipped special tokens."""
    return SkipPair(
        vocabulary.dropped(skip_special_tokens=False),
        vocabulary.dropped(skip_special_tokens=True),
    )


def skip_tables(entries: Sequence[T], dropped: SkipPair[frozenset[int]], nothing: T) -> SkipPair[list[T]]:
    """Two tables that share their entries, with `nothing` for each dropped id.

    Args:
        entries: What each id gives, by id, the replacement id last.
        dropped: Ids that are dropped.
        nothing: The entry of a dropped id.
    """
    kept = list(entries)
    for token_id in dropped.kept:
        kept[token_id] = nothing
    skipped = list(kept)
    for token_id in dropped.skipped:
        skipped[token_id] = nothing
    return SkipPair(kept, skipped)


def mixed_table(raw: SkipPair[list[bytes]], dropped: SkipPair[frozenset[int]]) -> SkipPair[list[str | bytes]]:
    """For each id its text where its bytes are whole characters, else its bytes.

    Args:
        raw: Bytes of each id.
        dropped: Ids that are dropped; they give the empty string.
    """
    mixed: list[str | bytes] = []
    for data in raw.kept:
        try:
            mixed.append(data.decode())
        except UnicodeDecodeError:
            mixed.append(data)
    return skip_tables(mixed, dropped, "")


class TokenForms:
    """The text of each token by the library's own stages, in each place where it may stand.

    Args:
        vocabulary: Whose strings are taken, with U+FFFD behind them for the replacement id.
        stages: Stages that map each token on its own.
    """

    def __init__(self, vocabulary: Vocabulary, stages: Sequence[Stage]) -> None:
        self._strings = [string or "" for string in vocabulary.strings]
        self._strings.append(REPLACEMENT_STRING)
        self._stages = stages

    def alone(self) -> list[str]:
        """Each token as the only one."""
        if not self._stages:
            return self._strings
        function = stage_function(self._stages)
        return [function([string]) for string in self._strings]

    def later(self) -> list[str]:
        """Each token with another one before it."""
        function = stage_function(self._stages)
        n_before = len(function(["x"]))
        return [function(["x", string])[n_before:] for string in self._strings]

    def followed(self) -> list[str]:
        """Each token with an empty one behind it."""
        function = stage_function(self._stages)
        n_behind = len(function([""]))
        texts = (function([string, ""]) for string in self._strings)
        return [text[: len(text) - n_behind] for text in texts]


def common_length(one: str, other: str) -> int:
    """How many characters two strings have in common at their starts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))
