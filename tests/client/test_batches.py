"""Cutting texts into batches, and the window of batches on their way."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokend
from tokend._batches import Batch, BatchCutter, cut_batches
from tokend._encode_window import EncodeWindow
from tokend._requests import encode_settings
from tokend.v1 import tokenizer_service_pb2 as pb

texts_of_all_sizes = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=40)


@given(texts=texts_of_all_sizes, max_texts=st.integers(1, 10), max_bytes=st.integers(1, 40))
def test_batches_hold_all_texts_in_order_and_stay_under_their_bounds(
    texts: list[str], max_texts: int, max_bytes: int
) -> None:
    batches = list(cut_batches(texts, BatchCutter(max_texts=max_texts, max_bytes=max_bytes)))
    assert [text for batch in batches for text in batch.texts] == texts
    for batch in batches:
        assert texts[batch.start : batch.start + len(batch)] == batch.texts
        assert 1 <= len(batch) <= max_texts
        assert len(batch) == 1 or sum(len(text.encode()) for text in batch.texts) <= max_bytes


def test_an_exception_comes_after_the_batch_of_the_texts_before_it() -> None:
    def texts() -> Iterator[str]:
        yield "a"
        raise KeyError

    batches = cut_batches(texts(), BatchCutter(max_texts=10, max_bytes=10))
    assert next(batches).texts == ["a"]
    with pytest.raises(KeyError):
        next(batches)


def test_attempts_to_resume_are_bounded_and_start_again_with_progress() -> None:
    settings = encode_settings({}, fingerprint=None)
    window = EncodeWindow(settings=settings, in_flight=2, randomness=lambda: 0.5)
    error = tokend.UnavailableError("away")

    pauses = [window.pause_s(error) for _ in range(7)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])
    with pytest.raises(tokend.UnavailableError):
        window.pause_s(error)
    window.unanswered.append(Batch(start=0))
    window.take(pb.StreamEncodeResponse(batch_id=0, result=pb.BatchEncodeResponse()))
    assert window.pause_s(error) == pytest.approx(0.1)


def test_the_servers_wish_to_wait_longer_is_heard() -> None:
    window = EncodeWindow(settings=encode_settings({}, fingerprint=None), in_flight=1)
    assert window.pause_s(tokend.UnavailableError("busy", retry_delay_s=3.0)) == pytest.approx(3.0)
