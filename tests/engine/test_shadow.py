"""The shadow check: what is sampled, what it may cost, and what it says."""

import random
import threading
from array import array

import pytest

from tokend_server.engine.encode_options import Encoded, EncodeOptions
from tokend_server.engine.shadow import ShadowCheck, ShadowResult
from tokend_server.errors import InternalFault

OPTIONS = EncodeOptions()


def lengths(texts, _pairs, _options):
    return [Encoded(ids=[len(text)], total_token_count=1) for text in texts]


def packed(*ids):
    return array("I", ids).tobytes()


class Watched:
    """A shadow check whose results are kept, on a clock that the test moves."""

    def __init__(self, encode=lengths, every=1):
        self.results = []
        self.now_s = 0.0
        self.check = ShadowCheck(encode, every=every, on_result=self.results.append, clock=lambda: self.now_s)


@pytest.fixture
def watched():
    made = Watched()
    yield made
    made.check.close()


def test_equal_answers_are_same_and_others_different(watched):
    watched.check.submit("abc", packed(3), OPTIONS)
    watched.check.submit("abc", packed(4), OPTIONS)
    watched.check.submit("abc", packed(3, 3), OPTIONS)
    assert watched.check.settle(10)
    assert watched.results == [ShadowResult.SAME, ShadowResult.DIFFERENT, ShadowResult.DIFFERENT]


@pytest.mark.parametrize("failure", [InternalFault(), BaseException("a panic")])
def test_a_text_that_the_reference_does_not_take_differs(failure):
    def refuse(_texts, _pairs, _options):
        raise failure

    watched = Watched(refuse)
    watched.check.submit("abc", packed(3), OPTIONS)
    assert watched.check.settle(10)
    assert watched.results == [ShadowResult.DIFFERENT]


def test_the_share_is_kept_on_average_and_no_period_is_missed():
    check = Watched(every=16).check
    rng = random.Random(1)
    n_texts = n_samples = 0
    places = set()
    while n_texts < 200_000:
        n = rng.choice((1, 1, 3, 64, 256))
        found = check.sampled(n)
        assert all(0 <= place < n for place in found)
        n_samples += len(found)
        places |= {place % 16 for place in found} if n == 256 else set()
        n_texts += n
    assert 0.9 * n_texts / 16 < n_samples < 1.1 * n_texts / 16
    assert places == set(range(16))


def test_a_share_of_one_takes_every_text():
    assert Watched(every=1).check.sampled(5) == [0, 1, 2, 3, 4]


def test_a_share_of_none_takes_no_text():
    watched = Watched(every=0)
    assert watched.check.sampled(10_000) == []
    watched.check.submit("abc", packed(4), OPTIONS)
    assert watched.check.settle(1)
    assert not watched.results


def test_what_comes_faster_than_the_budget_is_dropped_and_counted(watched):
    text = "x" * 2**20
    for _ in range(4):
        watched.check.submit(text, packed(len(text)), OPTIONS)
    assert watched.check.settle(10)
    assert sorted(watched.results) == [ShadowResult.DROPPED] * 2 + [ShadowResult.SAME] * 2
    watched.now_s += 60
    watched.check.submit(text, packed(len(text)), OPTIONS)
    assert watched.check.settle(10)
    assert watched.results[-1] is ShadowResult.SAME


def test_a_text_above_the_budget_is_never_checked(watched):
    watched.now_s += 3600
    watched.check.submit("x" * (2 * 2**20 + 1), packed(1), OPTIONS)
    assert watched.results == [ShadowResult.DROPPED]


def test_a_full_queue_drops_and_never_waits():
    gate = threading.Event()

    def slowly(texts, pairs, options):
        gate.wait(10)
        return lengths(texts, pairs, options)

    watched = Watched(slowly)
    for _ in range(200):
        watched.check.submit("abc", packed(3), OPTIONS)
    dropped = watched.results.count(ShadowResult.DROPPED)
    assert 100 < dropped < 200
    gate.set()
    assert watched.check.settle(10)
    assert watched.results.count(ShadowResult.SAME) == 200 - dropped


def test_after_its_end_nothing_is_taken(watched):
    watched.check.submit("abc", packed(3), OPTIONS)
    assert watched.check.settle(10)
    watched.check.close()
    watched.check.close()
    watched.check.submit("abc", packed(4), OPTIONS)
    assert watched.check.sampled(100) == []
    assert watched.results == [ShadowResult.SAME]


def test_no_thread_is_started_before_the_first_sample():
    check = Watched().check
    check.sampled(10)
    assert check._thread is None
    check.submit("abc", packed(3), OPTIONS)
    assert check._thread.is_alive()
    check.close()
