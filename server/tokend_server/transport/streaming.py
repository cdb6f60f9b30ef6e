"""Streams that are open, and the threads of those that need one."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

__all__ = ["LiveStream", "LiveStreams", "StreamThreads"]

_LAST_ANSWER_S = 1.0


class StreamThreads(ThreadPoolExecutor):
    """Runs each stream on a thread of its own that ends with it: idle streams starve nobody.

    gRPC accepts for a method only a ThreadPoolExecutor, and a pool of such a size would keep its threads for ever.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":  # noqa: ANN401 (as its base)
        """Run a function on a new thread."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 (the future carries it)
                future.set_exception(error)

        # Daemon threads: a reader that never reads must not keep the process from ending.
        threading.Thread(target=run, name="tokend-stream", daemon=True).start()
        return future


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
            threading.Thread(target=action, args=(run,), name="tokend-drain", daemon=True).start()

    def _wait_until(self, deadline_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._runs, timeout=max(0.0, deadline_s - time.monotonic()))
