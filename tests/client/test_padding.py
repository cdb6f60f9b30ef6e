"""Padding to a matrix."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokend
from tokend._arguments import packed_ids


def encoded(ids: list[int]) -> tokend.Encoded:
    return tokend.Encoded(packed_ids=packed_ids(ids), token_count=len(ids), total_token_count=len(ids))


@given(
    rows=st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=6), max_size=6),
    pad_id=st.integers(0, 2**32 - 1),
    side=st.sampled_from(["left", "right"]),
    extra=st.integers(0, 3),
)
def test_the_mask_picks_each_rows_own_ids_out_of_the_matrix(
    rows: list[list[int]], pad_id: int, side: str, extra: int
) -> None:
    length = max(map(len, rows), default=0) + extra
    padded = tokend.pad([encoded(row) for row in rows], pad_id=pad_id, side=side, length=length)
    assert all(len(row) == length for row in padded.ids + padded.mask)
    for row, padded_row, mask in zip(rows, padded.ids, padded.mask, strict=True):
        assert [token_id for token_id, real in zip(padded_row, mask, strict=True) if real] == row
        assert {token_id for token_id, real in zip(padded_row, mask, strict=True) if not real} <= {pad_id}
        assert mask == sorted(mask, reverse=side == "right")
    ids, mask_array = padded.numpy()
    assert ids.shape == mask_array.shape == (len(rows), length)
    assert ids.dtype == mask_array.dtype == np.int64
    assert (ids.tolist(), mask_array.tolist()) == (padded.ids, padded.mask)


def test_nothing_is_cut_off() -> None:
    with pytest.raises(ValueError, match=r"encodings\[1\] has 3 ids, more than length 2"):
        tokend.pad([[1], [1, 2, 3]], pad_id=0, length=2)


def test_lists_and_encodings_pad_alike() -> None:
    assert tokend.pad([[1], encoded([2, 3])], pad_id=0) == tokend.pad([encoded([1]), [2, 3]], pad_id=0)


@pytest.mark.parametrize("side", ["top", ""])
def test_an_unknown_side_is_refused(side: str) -> None:
    with pytest.raises(ValueError, match="side"):
        tokend.pad([[1]], pad_id=0, side=side)


def test_without_numpy_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    one = encoded([1])
    assert one.ids == [1]
    with pytest.raises(ImportError, match=r"tokend\[numpy\]"):
        one.numpy()
    with pytest.raises(ImportError, match=r"tokend\[numpy\]"):
        tokend.pad([one], pad_id=0).numpy()
