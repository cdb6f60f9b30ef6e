"""Where the system lets no more threads be started: nothing is lost, nobody waits for ever, streams are refused."""

import threading
from collections.abc import Callable

import pytest

from tokend_server.engine.bulk_threads import BulkThreads
from tokend_server.errors import ServerOverloaded
from tokend_server.transport.streaming import LiveStreams, StreamThreads
from tokend_server.transport.threads import CallThreads, UnaryThreads


@pytest.fixture
def no_more(monkeypatch) -> Callable[[], None]:
    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    return lambda: monkeypatch.setattr(threading.Thread, "start", refuse)


def test_calls_of_every_size_are_answered_by_the_threads_that_there_are(no_more):
    threads = CallThreads(64)
    no_more()
    done = threading.Semaphore(0)
    for n_bytes in (3_000, 100_000, 2 << 20) * 10:
        threads.submit(n_bytes, done.release)
    assert all(done.acquire(timeout=10) for _ in range(30))
    threads.shutdown()


def test_more_threads_come_once_they_can_be_had_again(no_more, monkeypatch):
    threads, begun, release = UnaryThreads(2), threading.Semaphore(0), threading.Event()
    threads.start()

    def hold() -> None:
        begun.release()
        release.wait(10)

    no_more()
    threads.submit(hold)
    assert begun.acquire(timeout=10)
    threads.submit(begun.release)
    assert not begun.acquire(timeout=0.1)
    monkeypatch.undo()
    threads.submit(begun.release)
    assert all(begun.acquire(timeout=10) for _ in range(2))
    release.set()
    threads.shutdown()


def test_a_pool_that_cannot_have_its_first_thread_says_so(no_more):
    no_more()
    with pytest.raises(RuntimeError):
        UnaryThreads(4).start()


def test_a_stream_without_a_thread_is_refused_on_the_spare_one(no_more):
    threads = StreamThreads()
    threads.submit(threads.check).result(10)
    no_more()
    with pytest.raises(ServerOverloaded, match="limit on threads") as refused:
        threads.submit(threads.check).result(10)
    assert refused.value.retry_after_ms > 0
    assert not threads.start(threads.check)
    threads.check()


def test_a_large_call_is_made_by_the_threads_that_there_are_or_fails(no_more, monkeypatch):
    threads = BulkThreads()
    no_more()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            threads.run(100_000, int)
    monkeypatch.undo()
    assert threads.run(100_000, int) == 0
    no_more()
    assert [threads.run(100_000, int) for _ in range(8)] == [0] * 8


def test_a_drain_without_threads_cancels_what_is_open(no_more):
    class Open:
        sends_since_s = 0.0
        n_cancelled = 0

        def drain(self) -> None:
            raise AssertionError("it may wait for a lock")

        expire = drain

        def cancel(self) -> None:
            self.n_cancelled += 1
            live.discard(self)

    live, stream = LiveStreams(), Open()
    live.add(stream)
    no_more()
    live.drain(10)
    assert stream.n_cancelled == 1
