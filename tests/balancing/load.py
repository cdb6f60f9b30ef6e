"""Callers that call one after the other while something happens to the servers."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from tests.balancing.backends import Backends
from tests.integration.wire import until

__all__ = ["Failed", "Load", "assert_even", "assert_spread_evenly"]

_PAUSE_S = 0.002


@dataclass(frozen=True, kw_only=True)
class Failed:
    """One call that failed."""

    caller: int
    began_s: float
    """By the monotonic clock."""
    error: Exception


class Load:
    """Runs `call` in several threads until the block ends."""

    def __init__(self, call: Callable[[], object], *, n_callers: int = 6) -> None:
        self._call = call
        self._stop = threading.Event()
        self._n_ok = [0] * n_callers
        self.failed: list[Failed] = []
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(n_callers)]

    @property
    def n_ok(self) -> int:
        return sum(self._n_ok)

    def wait_for(self, n_calls: int) -> None:
        """Wait until so many more calls were answered."""
        enough = self.n_ok + n_calls
        until(lambda: self.n_ok >= enough)

    def _run(self, caller: int) -> None:
        while not self._stop.is_set():
            began_s = time.monotonic()
            try:
                self._call()
            except Exception as error:  # noqa: BLE001 (whatever it is, the test looks at it)
                self.failed.append(Failed(caller=caller, began_s=began_s, error=error))
            else:
                self._n_ok[caller] += 1
            # Loaded, and not saturated: two cores are shared by callers, servers and whatever else runs.
            time.sleep(_PAUSE_S)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def assert_spread_evenly(backends: Backends, call: Callable[[], object], *, n_calls: int) -> None:
    """Make calls, and see that each server has its share of them, give or take a fifth."""
    # The first connection is there before the others.
    backends.answered_more()
    with Load(call) as load:
        until(lambda: all(backends.answered_more().values()))
    assert load.failed == []
    # Counts are read one server after the other: nothing may move meanwhile.
    backends.answered_more()
    with Load(call) as load:
        load.wait_for(n_calls)
    assert load.failed == []
    assert_even(backends.answered_more())


def assert_even(answered: dict[int, float], within: float = 0.2) -> None:
    """Each server has its share of the calls, give or take a part of it."""
    share = sum(answered.values()) / len(answered)
    assert share > 0
    for number, n_calls in answered.items():
        assert abs(n_calls - share) <= within * share, (number, answered)
