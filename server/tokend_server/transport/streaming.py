"""Streams that are open, and the threads of those that need one."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from tokend_server.errors import ServerOverloaded
from tokend_server.transport.threads import UnaryThreads

__all__ = ["LiveStream", "LiveStreams", "StreamThreads"]

_LAST_ANSWER_S = 1.0
_RETRY_AFTER_MS = (200, 600)


class StreamThreads(ThreadPoolExecutor):
    """Runs each stream on a thread of its own that ends with it: idle streams starve nobody.

    gRPC accepts for a method only a ThreadPoolExecutor, and a pool of such a size would keep its threads for ever.

    Where the system lets no thread be started, gRPC's serving thread must not learn of it, which it would not survive:
    one spare thread runs such a stream, and there `check` refuses it.
    """

    def __init__(self) -> None:
        """Begin with the spare thread; raises RuntimeError where not even this one can be started."""
        super().__init__(max_workers=1)
        self._spare = UnaryThreads(1, name="tokend-spare")
        self._spare.start()
        self._here = threading.local()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":  # noqa: ANN401 (as its base)
        """Run a function on a new thread, or else on the spare one, where `check` raises."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 (the future carries it)
                future.set_exception(error)

        if not self.start(run):
            self._spare.submit(self._run_without_thread, run)
        return future

    def start(self, run: Callable[[], None]) -> bool:
        """Run a function that raises nothing on a new thread; False if none can be started."""
        # Daemon threads: a reader that never reads must not keep the process from ending.
        try:
            threading.Thread(target=run, name="tokend-stream", daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _run_without_thread(self, run: Callable[[], None]) -> None:
        self._here.is_spare = True
        run()

    def check(self) -> None:
        """Let a stream begin on the thread that calls this.

        Raises:
            ServerOverloaded: It is the spare one, which must be free for the next.
        """
        if getattr(self._here, "is_spare", False):
            raise ServerOverloaded(
                "this server cannot start a thread for one more stream, since the system has a limit on threads; try "
                "again in a moment",
                retry_after_ms=random.randint(*_RETRY_AFTER_MS),  # noqa: S311 (spreads callers, keeps no secret)
            )


class LiveStream(Protocol):
    """A stream that is open, for a drain to end it."""

    sends_since_s: float
    """When the answer was ready that the client has not taken yet, by the monotonic clock; infinity: none is."""

    def drain(self) -> None:
        """Begin nothing new, and end at once if nothing is open."""
        ...

    def expire(self) -> None:
        """Flush and end whatever is open."""
        ...

    def cancel(self) -> None:
        """End the stream at once, from outside, whatever it waits for."""
        ...


class LiveStreams:
    """The streams that are open now, for a drain to end them. Thread-safe."""

    def __init__(self) -> None:
        self._runs: set[LiveStream] = set()
        self._draining = False
        self._changed = threading.Condition()

    def add(self, run: LiveStream) -> None:
        """Remember a stream that has begun; one that slipped in while a drain began is drained like the others."""
        with self._changed:
            self._runs.add(run)
            draining = self._draining
        if draining:
            run.drain()

    def discard(self, run: LiveStream) -> None:
        """Forget a stream that has ended."""
        with self._changed:
            self._runs.discard(run)
            self._changed.notify_all()

    def end_stalled(self, longest_s: float) -> int:
        """Cancel the streams whose client has taken no answer for a time; gives their number."""
        before_s = time.monotonic() - longest_s
        with self._changed:
            stalled = [run for run in self._runs if run.sends_since_s < before_s]
        for run in stalled:
            run.cancel()
        return len(stalled)

    def drain(self, grace_s: float) -> None:
        """Let open streams end by themselves for a time, then flush and end the rest.

        Args:
            grace_s: How long streams with something open may go on. Streams with nothing open end at once.
        """
        deadline_s = time.monotonic() + grace_s
        with self._changed:
            self._draining = True
        self._each(lambda run: run.drain())
        self._wait_until(deadline_s)
        self._each(lambda run: run.expire())
        # A reader that does not read gets no more than this to take its last answer.
        self._wait_until(time.monotonic() + _LAST_ANSWER_S)

    def _each(self, action: Callable[[LiveStream], None]) -> None:
        with self._changed:
            runs = list(self._runs)
        # On threads of their own: one stream's slow reader must not hold up the others.
        for run in runs:
            try:
                threading.Thread(target=action, args=(run,), name="tokend-drain", daemon=True).start()
            except RuntimeError:
                # No thread is left: this at least waits for nothing.
                run.cancel()

    def _wait_until(self, deadline_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._runs, timeout=max(0.0, deadline_s - time.monotonic()))
