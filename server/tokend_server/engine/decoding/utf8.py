"""Well-formed UTF-8 byte by byte: a state for what may follow, for code that must know at once.

Text itself is decoded by `codecs.utf_8_decode`, which is C. Two things it does not tell: that a byte makes a
run invalid (without an exception for each try), and that `ED A0`..`ED BF` can never become a character.

Source: The Unicode Standard, table 3-7.
"""

__all__ = ["COMPLETE", "INVALID", "NEXT_STATE"]

COMPLETE = 0
"""No character is open."""
INVALID = 8
"""What came is no UTF-8, whatever follows."""

_ONE, _TWO, _THREE, _AFTER_E0, _AFTER_ED, _AFTER_F0, _AFTER_F4 = range(1, 8)


def _row(*ranges: tuple[int, int, int]) -> bytes:
    """The next state for each byte: (first byte, last byte, state) where it is not INVALID."""
    row = bytearray([INVALID]) * 256
    for first, last, state in ranges:
        row[first : last + 1] = bytes([state]) * (last + 1 - first)
    return bytes(row)


NEXT_STATE = (
    _row(
        (0x00, 0x7F, COMPLETE),
        (0xC2, 0xDF, _ONE),
        (0xE1, 0xEF, _TWO),
        (0xE0, 0xE0, _AFTER_E0),
        (0xED, 0xED, _AFTER_ED),
        (0xF1, 0xF3, _THREE),
        (0xF0, 0xF0, _AFTER_F0),
        (0xF4, 0xF4, _AFTER_F4),
    ),
    _row((0x80, 0xBF, COMPLETE)),
    _row((0x80, 0xBF, _ONE)),
    _row((0x80, 0xBF, _TWO)),
    _row((0xA0, 0xBF, _ONE)),
    _row((0x80, 0x9F, _ONE)),
    _row((0x90, 0xBF, _TWO)),
    _row((0x80, 0x8F, _TWO)),
    _row(),
)
"""Next state by state and byte: `NEXT_STATE[state][byte]`."""
