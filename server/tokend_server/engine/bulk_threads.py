"""Threads that large calls of the fast engine run on, whoever makes them."""

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

from tokend_server.cores import let_others_first, usable_cores
from tokend_server.job import Job

__all__ = ["BulkThreads"]

_LARGE_CHARACTERS = 16_384
"""Below this a call is over before another thread has taken it up."""
_HUGE_CHARACTERS = 1_048_576

_T = TypeVar("_T")
_P = ParamSpec("_P")


class BulkThreads:
    """Runs large calls a few at a time, on threads that live on and let all others run first.

    The engine spreads one call over all cores by itself, and keeps what it learned of words for each thread that calls
    it: from ever new threads, or from many in turn, the same text costs it half as much again. What is huge has a thread
    of its own, so that it holds up nothing else. Threads start when they are needed, so that a fork may come before.
    """

    def __init__(self) -> None:
        self._large = _Pool("tokend-engine", max(1, usable_cores() // 2))
        self._huge = _Pool("tokend-engine-huge", 1)

    def run(self, n_characters: int, call: Callable[_P, _T], /, *args: _P.args, **named: _P.kwargs) -> _T:
        """Make a call, and wait for it; a small one runs where it is.

        Args:
            n_characters: The length of the texts that it is about.
            call: What is called.
            args: What it is given.
            named: What it is given by name.

        Returns:
            What it returns; what it raises is raised here.
        """
        if n_characters < _LARGE_CHARACTERS:
            return call(*args, **named)
        pool = self._large if n_characters < _HUGE_CHARACTERS else self._huge
        return pool.submit(partial(call, *args, **named)).result()

    def begin(self, call: Callable[[], object]) -> None:
        """Make a call on one of the threads, and do not wait for it; what it raises is dropped."""
        self._large.submit(call)


class _Pool:
    def __init__(self, name: str, n_threads: int) -> None:
        self._name = name
        self._n_left_to_start = n_threads
        self._n_started = 0
        self._starting = threading.Lock()
        self._jobs: SimpleQueue[Job[object]] = SimpleQueue()

    def submit(self, call: Callable[[], _T]) -> Job[_T]:
        job = Job(call)
        if self._n_left_to_start:
            self._start_one()
        self._jobs.put(job)  # type: ignore[arg-type]  # only its maker takes what it returned
        return job

    def _start_one(self) -> None:
        with self._starting:
            if not self._n_left_to_start:
                return
            # A daemon: a call that never ends must not keep the process.
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # A limit of the system on threads. Without any, nobody would ever make the call.
                if not self._n_started:
                    raise
                return
            self._n_left_to_start -= 1
            self._n_started += 1

    def _work(self) -> None:
        let_others_first()
        while True:
            job = self._jobs.get()
            job.run()
            # Nothing of a text is kept until the next one comes.
            del job
