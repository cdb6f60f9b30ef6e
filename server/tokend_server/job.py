"""A call that another thread makes, and that its maker waits for."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Job"]

_T = TypeVar("_T")


class Job(Generic[_T]):
    """One call, and what became of it. Cheaper than a future: one lock, for one thread that waits."""

    __slots__ = ("_call", "_done", "_failure", "_returned")

    def __init__(self, call: Callable[[], _T]) -> None:
        self._call = call
        self._done = threading.Lock()
        self._done.acquire()
        self._returned: list[_T] = []
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Make the call; raises nothing."""
        try:
            self._returned.append(self._call())
        except BaseException as failure:  # noqa: BLE001 (raised where the result is taken)
            self._failure = failure
        self._done.release()

    def result(self) -> _T:
        """Wait for the call, and return what it returned, or raise what it raised; to be asked once."""
        self._done.acquire()
        if self._failure is not None:
            raise self._failure
        return self._returned[0]
