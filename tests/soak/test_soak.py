"""The soak itself: what it would call a leak or a wrong answer, and a very short one."""

import pytest

from tests.integration.wire import until
from tests.soak.__main__ import Soak, soak
from tests.soak.callers import Callers, Tally
from tests.soak.census import Held
from tests.soak.judgement import compare
from tests.tokenizers_for_tests import byte_level_bpe
from tokend_server.data import default_tokenizer_path

MIB = 2**20
FLAT = Held(memory_bytes=200 * MIB, threads=70, descriptors=30)


def held(n: int, *, memory_mib: float = 0, threads: float = 0, descriptors: float = 0) -> Held:
    """The n-th sample of something that grows by so much each time."""
    return Held(
        memory_bytes=FLAT.memory_bytes + round(n * memory_mib * MIB),
        threads=FLAT.threads + round(n * threads),
        descriptors=FLAT.descriptors + round(n * descriptors),
    )


@pytest.mark.parametrize(
    ("growth", "found"),
    [
        ({}, []),
        ({"memory_mib": 0.05}, []),
        ({"memory_mib": 0.2}, ["memory, MiB"]),
        ({"threads": 0.1}, ["threads"]),
        ({"descriptors": 0.1}, ["descriptors"]),
    ],
)
def test_what_grows_steadily_is_found(growth, found):
    seen = Soak(server=[held(n, **growth) for n in range(120)], callers=[FLAT] * 120)
    assert [each.what for each in seen.comparisons() if each.grew] == [f"server: {what}" for what in found]
    assert len(seen.faults()) == len(found)


def test_what_grows_in_the_warm_up_alone_is_no_leak():
    samples = [held(min(n, 20), memory_mib=5, threads=1, descriptors=1) for n in range(120)]
    assert not any(each.grew for each in compare("server", samples))


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="at least 10"):
        compare("server", [FLAT] * 9)


def test_wrong_answers_and_lost_calls_are_faults():
    tally = Tally(wrong=["encode, seed 1"], lost=["count, seed 2: UnavailableError"])
    seen = Soak(server=[FLAT] * 10, callers=[FLAT] * 10, tally=tally, left_open=["a stream: 1"])
    assert len(seen.faults()) == 3


def test_a_short_soak_has_right_answers_and_leaves_nothing_open(server):
    callers = Callers(server.grpc, default_tokenizer_path(), turns_a_second=40, seed=1, warm_up=4)
    try:
        seen = soak(server, callers, minutes=0.1, n_samples=10)
    finally:
        callers.stop()
    assert seen.tally.taken.total() > 10
    assert (seen.tally.wrong, seen.tally.lost, seen.left_open) == ([], [], [])
    assert seen.server_cpu_share > 0


def test_answers_of_another_tokenizer_are_wrong(server, tokenizer_file):
    callers = Callers(server.grpc, tokenizer_file(byte_level_bpe()), turns_a_second=40, seed=1, warm_up=1)
    try:
        until(lambda: bool(_held(callers).wrong))
    finally:
        callers.stop()


def _held(callers: Callers) -> Tally:
    tally = callers.hold()
    callers.go_on()
    return tally
