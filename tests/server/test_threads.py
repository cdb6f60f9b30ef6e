"""The threads that answer unary calls."""

import os
import subprocess
import sys
import threading
import time
from queue import SimpleQueue

from tokend_server.cores import usable_cores
from tokend_server.transport.threads import CallThreads, UnaryThreads


def test_all_work_is_done_however_much_comes_at_once():
    threads, done = UnaryThreads(4), []
    for n in range(1_000):
        threads.submit(done.append, n)
    threads.shutdown()
    assert sorted(done) == list(range(1_000))


def test_work_starts_at_once_while_there_are_threads_to_be_had():
    threads, started, release = UnaryThreads(3), threading.Semaphore(0), threading.Event()

    def hold() -> None:
        started.release()
        release.wait(10)

    for _ in range(5):
        threads.submit(hold)
    assert all(started.acquire(timeout=5) for _ in range(3))
    # The fourth waits, for as long as three are held.
    assert not started.acquire(timeout=0.1)
    release.set()
    assert all(started.acquire(timeout=5) for _ in range(2))
    threads.shutdown()


def test_long_work_holds_up_no_other_after_any_sequence_of_short_work():
    threads, release = UnaryThreads(8), threading.Event()
    for held in range(1, 8):
        for _ in range(50):
            finished = threading.Event()
            threads.submit(finished.set)
            assert finished.wait(5), f"waits behind {held - 1} others of at most 8"
        threads.submit(release.wait, 30)
    release.set()
    threads.shutdown()


def test_threads_are_started_as_they_are_needed_and_end_with_a_shutdown():
    threads = UnaryThreads(64)
    assert n_unary_threads() == 0
    for _ in range(100):
        finished = threading.Event()
        threads.submit(finished.set)
        finished.wait(5)
        time.sleep(0.001)
    assert 1 <= n_unary_threads() < 10
    threads.shutdown()
    assert n_unary_threads() == 0


def n_unary_threads() -> int:
    return sum(thread.name == "tokend-unary" for thread in threading.enumerate())


def test_what_is_raised_ends_no_thread(monkeypatch):
    told: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))
    threads, done = UnaryThreads(1), threading.Event()

    def fail(error: BaseException) -> None:
        raise error

    threads.submit(fail, ValueError())
    # As a panic of a native library is one.
    threads.submit(fail, BaseException())
    threads.submit(done.set)
    assert done.wait(5)
    threads.shutdown()
    assert told == [ValueError, BaseException]


def test_what_grpc_gets_back_is_a_future_that_is_done():
    threads = UnaryThreads(1)
    called = threading.Event()
    threads.submit(int).add_done_callback(lambda _: called.set())
    assert called.is_set()
    threads.shutdown()


def test_a_call_that_never_ends_does_not_keep_the_process_from_ending():
    program = (
        "import threading\n"
        "from tokend_server.transport.threads import UnaryThreads\n"
        "threads, begun = UnaryThreads(2), threading.Event()\n"
        "def endless():\n"
        "    begun.set()\n"
        "    while True: pass\n"
        "threads.submit(endless)\n"
        "begun.wait()\n"
        "threads.shutdown(wait=False)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 0


def test_calls_go_to_threads_by_their_size_and_large_ones_let_others_run_first():
    threads, ran_on = CallThreads(2), SimpleQueue()

    def run() -> None:
        niceness = (
            os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) if sys.platform == "linux" else 0
        )
        ran_on.put((threading.current_thread().name, niceness))

    usual = os.getpriority(os.PRIO_PROCESS, 0)
    found = {}
    for n_bytes in (3_000, 32_768, 32_769, 1 << 20, (1 << 20) + 1):
        threads.submit(n_bytes, run)
        found[n_bytes] = ran_on.get(timeout=10)
    threads.shutdown()
    names = [name for name, _ in found.values()]
    assert names == ["tokend-unary"] * 2 + ["tokend-large"] * 2 + ["tokend-huge"]
    if sys.platform == "linux":
        assert [niceness > usual for _, niceness in found.values()] == [False, False, True, True, True]


def test_large_calls_hold_up_only_their_like():
    threads, release, done = CallThreads(2), threading.Event(), SimpleQueue()
    begun = threading.Semaphore(0)

    def large() -> None:
        begun.release()
        release.wait(20)
        done.put("large")

    # Twice as many as there are places for them.
    for _ in range(2 * usable_cores()):
        threads.submit(100_000, large)
    for _ in range(usable_cores()):
        assert begun.acquire(timeout=10)
    for n_bytes in (3_000, 2 << 20):
        threads.submit(n_bytes, done.put, "other")
    assert [done.get(timeout=10) for _ in range(2)] == ["other"] * 2
    assert not begun.acquire(blocking=False)
    release.set()
    assert [done.get(timeout=10) for _ in range(2 * usable_cores())] == ["large"] * 2 * usable_cores()
    threads.shutdown()
