"""Time limits of many waits in one event loop, with one timer.

A timer for each wait would cost more than the rest of a joined call. Limits mostly grow, so the one timer is set anew
only by a wait that ends before its next look.
"""

import asyncio
import math
from typing import Protocol

__all__ = ["TimeLimits", "Wait"]


class Wait(Protocol):
    """Something that waits, until `ends_at` at most."""

    ends_at: float
    """In the event loop's time, in seconds."""

    def expire(self) -> None:
        """The time is over; called once."""


class TimeLimits:
    """The waits of one client that have a limit."""

    def __init__(self) -> None:
        self._waits: set[Wait] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf

    def add(self, wait: Wait) -> None:
        """Starts a wait."""
        self._waits.add(wait)
        if wait.ends_at < self._looks_at:
            self._look_at(wait.ends_at)

    def discard(self, wait: Wait) -> None:
        """Ends a wait; the timer stays, for those that follow."""
        self._waits.discard(wait)

    def close(self) -> None:
        """Lets go of the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = math.inf

    def _look_at(self, when: float) -> None:
        self.close()
        self._looks_at = when
        self._timer = asyncio.get_running_loop().call_at(when, self._look)

    def _look(self) -> None:
        self._looks_at = math.inf
        now = asyncio.get_running_loop().time()
        for wait in [wait for wait in self._waits if wait.ends_at <= now]:
            self._waits.discard(wait)
            wait.expire()
        if self._waits:
            self._look_at(min(wait.ends_at for wait in self._waits))
