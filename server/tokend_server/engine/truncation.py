"""Truncation asked for by a request, cut as the reference cuts, without touching a shared tokenizer."""

from dataclasses import dataclass
from enum import Enum

from tokenizers import Encoding

__all__ = ["Truncation", "TruncationSide", "kept_lengths", "truncate_encoding"]

_LARGEST_CUT = 16


class TruncationSide(Enum):
    """The side on which ids are cut off."""

    RIGHT = "right"
    """The end is cut off; the start stays."""
    LEFT = "left"
    """The start is cut off; the end stays."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Truncation:
    """The most ids that an answer may have, those of the post-processor included."""

    max_tokens: int
    side: TruncationSide = TruncationSide.RIGHT


def kept_lengths(n_first: int, n_second: int, budget: int) -> tuple[int, int]:
    """Splits a budget of ids between the two texts of a pair, longest first.

    Without a second text pass 0 for it: the first keeps what the budget allows.

    Args:
        n_first: Ids of the first text.
        n_second: Ids of the second text.
        budget: Ids that both may keep together, at least 0.

    Returns:
        How many ids each text keeps.

    Source: `TruncationStrategy::LongestFirst` of the reference library.
    """
    if n_first + n_second <= budget:
        return n_first, n_second
    shorter, longer = sorted((n_first, n_second))
    # The reference leaves the shorter text whole where that fits, and halves the budget otherwise.
    longer = shorter if shorter > budget else max(shorter, budget - shorter)
    if shorter + longer > budget:
        shorter = budget // 2
        longer = shorter + budget % 2
    return (longer, shorter) if n_first > n_second else (shorter, longer)


def truncate_encoding(encoding: Encoding, n_tokens: int, side: TruncationSide) -> None:
    """Cuts an encoding of this request in place.

    Args:
        encoding: An encoding that nobody else holds.
        n_tokens: How many ids it keeps; no effect where it has no more.
        side: The side on which ids are cut off.
    """
    # The library keeps each cut-off piece of n_tokens ids as an Encoding of its own, 500 bytes and more: 4
    # million ids cut to one would take gigabytes. Cutting by stages drops the pieces of the stage before. The last
    # stage cuts off one id, since a post-processor joins every piece of one text with every piece of the other.
    while (length := len(encoding)) > n_tokens:
        stage = n_tokens if length == n_tokens + 1 else max(n_tokens + 1, length // _LARGEST_CUT)
        encoding.truncate(stage, direction=side.value)
