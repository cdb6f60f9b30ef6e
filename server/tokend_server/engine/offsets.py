"""Offsets in the unit that the caller counts in: code points, UTF-8 bytes or UTF-16 units."""

from collections.abc import Sequence
from enum import Enum, auto

__all__ = ["OffsetUnit", "convert_offsets"]


class OffsetUnit(Enum):
    """What `starts` and `ends` of an encoding count."""

    NONE = auto()
    """No offsets."""
    CODE_POINTS = auto()
    """Unicode code points, as Python and the reference count."""
    UTF8_BYTES = auto()
    """Bytes of the text in UTF-8, as Rust and Go count."""
    UTF16_UNITS = auto()
    """16-bit units of the text in UTF-16, as JavaScript and Java count."""


def convert_offsets(text: str, positions: Sequence[int], unit: OffsetUnit) -> list[int]:
    """Converts positions in a text from code points to another unit.

    Each stretch between two positions is measured once, so the cost is linear in the text and the positions,
    which the reference gives nearly in order. An empty list of positions gives an empty list.

    Args:
        text: The text that the positions belong to; no lone surrogates.
        positions: Code points from the start, each between 0 and the length of the text, in any order.
        unit: The unit to convert to; not NONE.

    Returns:
        The positions in `unit`, in the order given.
    """
    if unit is OffsetUnit.CODE_POINTS or text.isascii():
        return list(positions)
    encoding, bytes_per_unit = ("utf-8", 1) if unit is OffsetUnit.UTF8_BYTES else ("utf-16-le", 2)
    converted: dict[int, int] = {}
    before, units = 0, 0
    for position in sorted(set(positions)):
        units += len(text[before:position].encode(encoding)) // bytes_per_unit
        converted[position] = units
        before = position
    return [converted[position] for position in positions]
