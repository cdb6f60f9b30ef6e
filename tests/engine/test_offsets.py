"""Offsets in the three units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokend_server.engine.offsets import OffsetUnit, convert_offsets

MIXED = "aé北🙂e\u0301\n"


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        (OffsetUnit.CODE_POINTS, [0, 1, 2, 3, 4, 5, 6, 7]),
        (OffsetUnit.UTF8_BYTES, [0, 1, 3, 6, 10, 11, 13, 14]),
        (OffsetUnit.UTF16_UNITS, [0, 1, 2, 3, 5, 6, 7, 8]),
    ],
)
def test_each_unit_counts_what_it_says(unit, expected):
    assert convert_offsets(MIXED, range(8), unit) == expected


@pytest.mark.parametrize("unit", [OffsetUnit.CODE_POINTS, OffsetUnit.UTF8_BYTES, OffsetUnit.UTF16_UNITS])
def test_no_positions_and_no_text_give_nothing(unit):
    assert convert_offsets("", [], unit) == []
    assert convert_offsets("é", [], unit) == []
    assert convert_offsets("", [0, 0], unit) == [0, 0]


@given(text=st.text(), data=st.data())
def test_positions_in_any_order_equal_the_length_of_what_stands_before_them(text, data):
    positions = data.draw(st.lists(st.integers(0, len(text))))
    assert convert_offsets(text, positions, OffsetUnit.CODE_POINTS) == positions
    assert convert_offsets(text, positions, OffsetUnit.UTF8_BYTES) == [
        len(text[:position].encode()) for position in positions
    ]
    assert convert_offsets(text, positions, OffsetUnit.UTF16_UNITS) == [
        len(text[:position].encode("utf-16-le")) // 2 for position in positions
    ]
