"""Time limits on single answers of blocking streams.

gRPC's deadline is for a whole call, and a stream may rightly last for hours; what must not last is the wait for
one answer. One thread for each client, started when a stream first waits, cancels calls that waited too long. A
wait costs no thread switch: limits mostly grow, so the thread is woken only by one that ends before its next look.
"""

import threading
import time
from collections.abc import Callable
from itertools import count

__all__ = ["AnswerWatch"]


class AnswerWatch:
    """Cancels what waits longer than its limit."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waits: dict[int, tuple[float, Callable[[], object]]] = {}
        self._numbers = count()
        self._looks_at: float | None = None

    def begin(self, timeout_s: float, expire: Callable[[], object]) -> int:
        """Starts a wait: `expire` is called, in the watch's thread, if it does not end in time."""
        ends_at = time.monotonic() + timeout_s
        with self._changed:
            number = next(self._numbers)
            self._waits[number] = (ends_at, expire)
            if self._looks_at is None:
                self._looks_at = ends_at
                threading.Thread(target=self._watch, name="tokend-answer-watch", daemon=True).start()
            elif ends_at < self._looks_at:
                self._changed.notify()
        return number

    def end(self, number: int) -> None:
        """Ends a wait."""
        # Atomic, and the thread copies before it looks; the lock would cost more than the whole wait.
        self._waits.pop(number, None)

    def _watch(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                expired = [
                    (number, expire)
                    for number, (ends_at, expire) in list(self._waits.items())
                    if ends_at <= now
                ]
                for number, _ in expired:
                    self._waits.pop(number, None)
                if not expired:
                    waits = list(self._waits.values())
                    if not waits:
                        self._looks_at = None
                        return
                    self._looks_at = min(ends_at for ends_at, _ in waits)
                    self._changed.wait(self._looks_at - now)
            for _, expire in expired:
                expire()
