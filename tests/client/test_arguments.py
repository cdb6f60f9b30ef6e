"""How texts and ids are checked and packed, without any server."""

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokend._arguments import checked_text, checked_timeout, id_chunks, packed_ids
from tokend.results import unpacked_ids

ids_of_any_size = st.lists(st.integers(0, 2**32 - 1), max_size=50)


@given(ids_of_any_size)
def test_packed_ids_are_little_endian_words_and_unpack_to_the_same(ids: list[int]) -> None:
    packed = packed_ids(ids)
    assert packed == b"".join(token_id.to_bytes(4, "little") for token_id in ids)
    assert unpacked_ids(packed) == ids


@given(ids_of_any_size)
def test_every_kind_of_list_packs_alike(ids: list[int]) -> None:
    kinds: list[Any] = [
        tuple(ids),
        array("Q", ids),
        iter(ids),
        np.array(ids, dtype=np.uint32),
        np.array(ids, dtype=np.int64),
    ]
    kinds.append([np.uint32(token_id) for token_id in ids])
    for kind in kinds:
        assert packed_ids(kind) == packed_ids(ids)


class TensorLike:
    """What other libraries' arrays have in common: tolist, and a dtype that is not numpy's."""

    dtype = "int64"

    def __len__(self) -> int:
        return 2

    def tolist(self) -> list[int]:
        return [1, 2]


def test_arrays_of_other_libraries_are_read_through_tolist() -> None:
    assert packed_ids(TensorLike()) == packed_ids([1, 2])
    assert b"".join(id_chunks([TensorLike(), 3])) == packed_ids([1, 2, 3])


@pytest.mark.parametrize("ids", [[1, np.True_], np.array([True]), [None], [[1]], ["1"]])
def test_what_is_no_integer_is_no_id(ids: Any) -> None:
    with pytest.raises(TypeError):
        packed_ids(ids)


def test_a_matrix_is_no_list_of_ids() -> None:
    with pytest.raises(ValueError, match="2 dimensions"):
        packed_ids(np.zeros((2, 2), dtype=np.int64))


@given(st.lists(st.one_of(st.integers(0, 300), st.lists(st.integers(0, 300), max_size=4)), max_size=20))
def test_chunks_of_ids_and_lists_join_to_all_ids(items: list[Any]) -> None:
    flat = [token_id for item in items for token_id in (item if isinstance(item, list) else [item])]
    assert b"".join(id_chunks(items)) == packed_ids(flat)
    assert b"".join(id_chunks(iter(items))) == packed_ids(flat)
    assert b"".join(id_chunks(np.array(flat, dtype=np.int64))) == packed_ids(flat)


def test_a_list_goes_together_and_a_generator_goes_one_by_one() -> None:
    assert [len(chunk) // 4 for chunk in id_chunks(list(range(1000)))] == [512, 488]
    assert [len(chunk) // 4 for chunk in id_chunks(iter(range(3)))] == [1, 1, 1]
    assert [len(chunk) // 4 for chunk in id_chunks([[1, 2], [], [3]])] == [2, 0, 1]


def test_a_generator_is_drawn_one_id_at_a_time() -> None:
    drawn = []

    def ids() -> Iterator[int]:
        for token_id in range(5):
            drawn.append(token_id)
            yield token_id

    next(id_chunks(ids()))
    assert drawn == [0]


@given(st.text(max_size=30))
def test_a_text_is_measured_in_utf8_bytes_or_refused(text: str) -> None:
    surrogates = [place for place, character in enumerate(text) if "\ud800" <= character <= "\udfff"]
    if not surrogates:
        assert checked_text(text, "text") == len(text.encode())
        return
    with pytest.raises(ValueError, match=f"position {surrogates[0]},") as raised:
        checked_text(text, "text")
    assert raised.value.__context__ is None


@pytest.mark.parametrize("endless", [float("inf"), 1e300, 1e10, 10**400])
def test_a_time_limit_beyond_what_grpc_counts_is_none(endless: float) -> None:
    assert checked_timeout(endless, 5.0) is None
    assert checked_timeout(1e9, 5.0) == 1e9
