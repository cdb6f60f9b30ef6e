"""Large calls of the fast engine run on few threads that live on, and come back where they were made."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tokend_server.cores import usable_cores
from tokend_server.engine.bulk_threads import BulkThreads

SMALL, LARGE, HUGE = 100, 100_000, 10_000_000


@pytest.fixture
def threads() -> BulkThreads:
    return BulkThreads()


def test_a_small_call_runs_where_it_is_made(threads: BulkThreads):
    assert threads.run(SMALL, threading.get_ident) == threading.get_ident()


def test_large_calls_of_many_threads_run_on_few(threads: BulkThreads):
    with ThreadPoolExecutor(8) as pool:
        ran_on = set(pool.map(lambda _: threads.run(LARGE, threading.get_ident), range(200)))
    assert 1 <= len(ran_on) <= max(1, usable_cores() // 2)
    assert threading.get_ident() not in ran_on


def test_a_huge_call_holds_up_no_large_one(threads: BulkThreads):
    begun, release = threading.Event(), threading.Event()

    def huge() -> bool:
        begun.set()
        return release.wait(20)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(threads.run, HUGE, huge)
        assert begun.wait(20)
        assert threads.run(LARGE, lambda: "done") == "done"
        assert not running.done()
        release.set()
        assert running.result()


@pytest.mark.parametrize("failure", [ValueError("a"), type("Panic", (BaseException,), {})("b")])
def test_what_a_call_raises_is_raised_where_it_was_made(threads: BulkThreads, failure: BaseException):
    def fails() -> None:
        raise failure

    with pytest.raises(type(failure)) as raised:
        threads.run(LARGE, fails)
    assert raised.value is failure
    assert threads.run(LARGE, lambda: 1) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own here")
def test_they_let_others_run_first(threads: BulkThreads):
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = niceness()
    assert threads.run(LARGE, niceness) > before
    assert threads.run(HUGE, niceness) > before
    assert niceness() == before
