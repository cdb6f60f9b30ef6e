"""The third guard of the fast engine: which texts of a call it may not have."""

import re
from collections.abc import Callable, Collection, Sequence

__all__ = ["RequestGate"]

_MOST_SEARCHES = 4
"""Up to so many code points each has a search of its own, which ends at once in a text of narrower characters."""


class RequestGate:
    """Picks the texts that go to the reference: those with an excluded code point or, it may be, a control token."""

    __slots__ = ("_holds_excluded", "_may_hold_control")

    def __init__(self, excluded: Collection[int], may_hold_control: Callable[[str], bool]) -> None:
        """Prepares the test.

        Args:
            excluded: Code points on which the engines differ.
            may_hold_control: Whether a control token may stand in a text; asked where they stay text.
        """
        self._holds_excluded = _excluded_test(excluded)
        self._may_hold_control = may_hold_control

    def held_back(self, texts: Sequence[str], *, keep_control: bool) -> list[int]:
        """Returns the places of the texts that the fast engine may not have, ascending; none for no texts.

        Args:
            texts: The texts of a call.
            keep_control: Whether control tokens stay text (TEXT, REJECT): then a text that may hold one is held back,
                since the reference counts or refuses it.
        """
        excluded, control = self._holds_excluded, self._may_hold_control
        if excluded is None:
            return [place for place, text in enumerate(texts) if control(text)] if keep_control else []
        if keep_control:
            return [place for place, text in enumerate(texts) if excluded(text) or control(text)]
        return [place for place, text in enumerate(texts) if excluded(text)]


def _excluded_test(excluded: Collection[int]) -> Callable[[str], object] | None:
    characters = sorted(map(chr, excluded))
    if not characters:
        return None
    if len(characters) == 1:
        only = characters[0]
        return lambda text: only in text
    if len(characters) <= _MOST_SEARCHES:
        return lambda text: any([character in text for character in characters])  # noqa: C419 (a list is faster here)
    search = re.compile(f"[{_ranges(characters)}]").search
    if characters[0].isascii():
        return search
    return lambda text: not text.isascii() and search(text)


def _ranges(characters: Sequence[str]) -> str:
    """Writes sorted characters as the inside of a character class."""
    ranges: list[list[int]] = []
    for code_point in map(ord, characters):
        if ranges and ranges[-1][1] == code_point - 1:
            ranges[-1][1] = code_point
        else:
            ranges.append([code_point, code_point])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)
