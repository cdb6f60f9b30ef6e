"""How much is in work, in texts and bytes, and who has to wait or go: what calls cost decides, not their number.

Thread-safe. A call's bytes are those of its message, its texts the texts or id lists in it, at least one.
"""

import random
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from tokend_server.errors import ServerOverloaded

__all__ = ["LARGE_BYTES", "Budget", "CallGone", "Gauge", "Work"]

LARGE_BYTES = 32 * 1024
"""A message above this is large: some milliseconds of work, where a short text takes well under one."""

_SMALL_SHARE = 8
# A crowd that is refused in one moment must not come back in one.
_RETRY_AFTER_MS = (200, 600)
_GIVE_UP_POLL_S = 0.5


class CallGone(Exception):
    """The caller has left while a batch of theirs waited; nobody is to be told."""


class Gauge(Protocol):
    """Shows a number that changes."""

    def set(self, value: float) -> None:
        """Show this from now on."""


class Work:
    """What one call, or one batch of a stream, has in work until the block ends or it is let go."""

    __slots__ = ("_budget", "_n_bytes", "_n_texts")

    def __init__(self, budget: "Budget", n_bytes: int, n_texts: int) -> None:
        self._budget, self._n_bytes, self._n_texts = budget, n_bytes, n_texts

    def has_texts(self, n_texts: int) -> None:
        """Say how many texts it really has, once they are read.

        Raises:
            ServerOverloaded: They do not fit beside what else is in work.
        """
        if n_texts > self._n_texts:
            self._budget.grow(n_texts - self._n_texts, beside=self._n_texts)
            self._n_texts = n_texts

    def let_go(self) -> None:
        """Say that it is done; a second time does nothing."""
        n_bytes, n_texts = self._n_bytes, self._n_texts
        if n_texts:
            self._n_bytes = self._n_texts = 0
            self._budget.leave(n_bytes, n_texts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_go()


class _Waiting:
    __slots__ = ("admitted", "n_bytes", "n_texts")

    def __init__(self, n_bytes: int, n_texts: int) -> None:
        self.n_bytes, self.n_texts = n_bytes, n_texts
        self.admitted = threading.Event()


class Budget:
    """The texts and bytes in work of one kind of calls, each within a bound.

    What is larger than a bound by itself comes in when nothing else is in work. The last eighth of each bound is for
    small messages, so that a few large ones do not lock them out.
    """

    def __init__(self, *, max_texts: int, max_bytes: int, texts: Gauge, text_bytes: Gauge) -> None:
        """Begin with nothing in work.

        Args:
            max_texts: Most texts in work at a time.
            max_bytes: Most bytes in work at a time.
            texts: Shows the texts in work.
            text_bytes: Shows the bytes in work.
        """
        self._max_texts, self._max_bytes = max_texts, max_bytes
        self._large_texts = max_texts - max_texts // _SMALL_SHARE
        self._large_bytes = max_bytes - max_bytes // _SMALL_SHARE
        self._n_texts = self._n_bytes = 0
        self._texts_gauge, self._bytes_gauge = texts, text_bytes
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()

    def enter(self, n_bytes: int) -> Work:
        """Take a call in, or refuse it.

        Args:
            n_bytes: The size of its message; how many texts are in it is told later (`Work.has_texts`).

        Returns:
            Its place, to be let go of.

        Raises:
            ServerOverloaded: It does not fit beside what is in work.
        """
        with self._lock:
            if not self._fits(n_bytes, 1):
                raise self._refusal()
            self._add(n_bytes, 1)
        return Work(self, n_bytes, 1)

    def count(self, n_bytes: int, n_texts: int) -> Work:
        """Take something in that is bounded by other limits, whatever else is in work."""
        with self._lock:
            self._add(n_bytes, n_texts or 1)
        return Work(self, n_bytes, n_texts or 1)

    def wait(self, n_bytes: int, n_texts: int, *, gone: Callable[[], bool]) -> Work:
        """Take a batch in as soon as it fits, first come first served.

        Args:
            n_bytes: The size of its message.
            n_texts: The texts in it.
            gone: Whether it need not be done any more; asked now and then.

        Returns:
            Its place, to be let go of.

        Raises:
            CallGone: It is gone, and has no place.
        """
        n_texts = n_texts or 1
        with self._lock:
            if not self._waiting and self._fits(n_bytes, n_texts):
                self._add(n_bytes, n_texts)
                return Work(self, n_bytes, n_texts)
            waiting = _Waiting(n_bytes, n_texts)
            self._waiting.append(waiting)
        while not waiting.admitted.wait(_GIVE_UP_POLL_S):
            if gone() and self._withdrawn(waiting):
                raise CallGone
        return Work(self, n_bytes, n_texts)

    def grow(self, n_texts: int, *, beside: int) -> None:
        """Add texts to a call that is in work with some; raises as `enter`."""
        with self._lock:
            if self._n_texts > beside and self._n_texts + n_texts > self._large_texts:
                raise self._refusal()
            self._add(0, n_texts)

    def leave(self, n_bytes: int, n_texts: int) -> None:
        """Take something out, and let in what waits for the room."""
        with self._lock:
            self._add(-n_bytes, -n_texts)
            if self._waiting:
                self._let_in()

    def _fits(self, n_bytes: int, n_texts: int) -> bool:
        if not self._n_texts:
            return True
        if n_bytes > LARGE_BYTES:
            return (
                self._n_bytes + n_bytes <= self._large_bytes and self._n_texts + n_texts <= self._large_texts
            )
        return self._n_bytes + n_bytes <= self._max_bytes and self._n_texts + n_texts <= self._max_texts

    def _add(self, n_bytes: int, n_texts: int) -> None:
        self._n_bytes += n_bytes
        self._n_texts += n_texts
        self._bytes_gauge.set(self._n_bytes)
        self._texts_gauge.set(self._n_texts)

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0].n_bytes, self._waiting[0].n_texts):
            first = self._waiting.popleft()
            self._add(first.n_bytes, first.n_texts)
            first.admitted.set()

    def _withdrawn(self, waiting: _Waiting) -> bool:
        with self._lock:
            if waiting.admitted.is_set():
                return False
            self._waiting.remove(waiting)
            self._let_in()
            return True

    def _refusal(self) -> ServerOverloaded:
        return ServerOverloaded(
            f"too much is in work here: {self._n_texts} texts, {self._n_bytes} bytes; of calls of this kind this server "
            f"takes {self._max_texts} texts (half of max_work_texts) and {self._max_bytes} bytes (half of "
            "max_work_bytes) at a time; try again in a moment",
            retry_after_ms=random.randint(*_RETRY_AFTER_MS),  # noqa: S311 (spreads callers, keeps no secret)
        )
