"""The threads that answer unary calls."""

import subprocess
import sys
import threading
import time

from tokend_server.transport.threads import UnaryThreads


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
