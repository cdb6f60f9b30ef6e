"""The threads that answer unary calls, handed out in the cheapest way that gRPC accepts.

Calls that are not small, and the batches of streams, go to a pool by their size, so that a long one holds up only its
like. The pools of large calls have as many threads as there are cores, and let all others run first. All are few, since
the engines keep tens of megabytes for every thread that calls them (docs/adr/0021-few-threads-for-engines.md).
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

from tokend_server.cores import let_others_first, usable_cores
from tokend_server.job import Job
from tokend_server.service.work import LARGE_BYTES

__all__ = ["SMALL_BYTES", "CallThreads", "UnaryThreads"]

SMALL_BYTES = 2048
"""A message up to this is answered where it comes in; what is larger goes to a thread, so that nobody waits for it."""

# A few tens of milliseconds of work for the fast engine, half a second for the reference.
_HUGE_BYTES = 1024 * 1024

_T = TypeVar("_T")
_Work = tuple[Callable[..., object], tuple[Any, ...]]


class UnaryThreads(ThreadPoolExecutor):
    """Runs each call on one of a limited number of threads, which are started as they are needed.

    Nobody looks at what a call's function returns, so no future is made, locked and completed for it: that saves a tenth
    and more of an empty call. gRPC accepts for a method only a ThreadPoolExecutor.
    """

    def __init__(self, n_threads: int, *, name: str = "tokend-unary", in_background: bool = False) -> None:
        """Begin without threads.

        Args:
            n_threads: The most that there will be.
            name: Of each thread.
            in_background: Whether they let all other threads run first.
        """
        super().__init__(max_workers=1)
        self._name = name
        self._in_background = in_background
        self.most = n_threads
        """As many threads there may be."""
        self._started: list[threading.Thread] = []
        self._waiting: SimpleQueue[_Work | None] = SimpleQueue()
        # One entry for each idle thread that no waiting work counts on yet.
        self._idle: deque[None] = deque()
        self._starting = threading.Lock()
        self._done: Future[Any] = Future()
        self._done.set_result(None)

    def start(self) -> None:
        """Have a thread before there is work, so that somebody does it where the system lets no more be started."""
        self._start_one()
        self._idle.append(None)

    def submit(self, fn: Callable[..., object], /, *args: Any, **_kwargs: Any) -> "Future[Any]":  # noqa: ANN401 (as its base)
        """Have a function run; what it returns is dropped, what it raises ends in the log.

        Returns:
            A future that is done already.
        """
        self._waiting.put((fn, args))
        try:
            self._idle.pop()
        except IndexError:
            self._start_one()
        return self._done

    def _start_one(self) -> None:
        with self._starting:
            if len(self._started) == self.most:
                return
            # A daemon: a call that never ends must not keep a drained server from ending.
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # A limit of the system on threads. The work waits for those that there are.
                if not self._started:
                    raise
                return
            self._started.append(thread)

    def _work(self) -> None:
        if self._in_background:
            let_others_first()
        while (work := self._waiting.get()) is not None:
            fn, args = work
            try:
                fn(*args)
            except BaseException as error:  # noqa: BLE001 (a thread that ended would be missing from then on)
                threading.excepthook(
                    threading.ExceptHookArgs((type(error), error, error.__traceback__, None))
                )
            # Nothing of a call may live on while the thread is idle.
            del work, fn, args
            self._idle.append(None)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads once the work that waits is done; to be called when nothing submits any more.

        Args:
            wait: Return only then.
            cancel_futures: Without meaning here.
        """
        del cancel_futures
        for _ in self._started:
            self._waiting.put(None)
        if wait:
            for thread in self._started:
                thread.join()


class CallThreads:
    """The pools of one server."""

    def __init__(self, n_threads: int) -> None:
        """Begin with one thread of each kind; raises RuntimeError where not even these can be started.

        Args:
            n_threads: The most for calls that are neither small nor large.
        """
        self.most = n_threads
        n_cores = usable_cores()
        self._medium = UnaryThreads(n_threads)
        self._large = UnaryThreads(n_cores, name="tokend-large", in_background=True)
        self._huge = UnaryThreads(n_cores, name="tokend-huge", in_background=True)
        for pool in (self._medium, self._large, self._huge):
            pool.start()

    def submit(self, n_bytes: int, fn: Callable[..., object], /, *args: object) -> None:
        """Have a function run on a thread for work of that size.

        Args:
            n_bytes: The size of the message that it is about.
            fn: What is to run; it raises nothing.
            args: What it is given.
        """
        if n_bytes <= LARGE_BYTES:
            pool = self._medium
        else:
            pool = self._large if n_bytes <= _HUGE_BYTES else self._huge
        pool.submit(fn, *args)

    def run(self, n_bytes: int, call: Callable[[], _T]) -> _T:
        """Have a call made on a thread for work of that size, and wait for it.

        Args:
            n_bytes: The size of the message that it is about.
            call: The call.

        Returns:
            What it returns; what it raises is raised here.
        """
        job = Job(call)
        self.submit(n_bytes, job.run)
        return job.result()

    def submit_long(self, fn: Callable[..., object], /, *args: object) -> None:
        """Have a function run that is long, whatever the size of its message."""
        self._large.submit(fn, *args)

    def submit_short(self, fn: Callable[..., object], /, *args: object) -> None:
        """Have a function run that a user waits for and that is not long, whatever the size of its message."""
        self._medium.submit(fn, *args)

    def shutdown(self) -> None:
        """Have the threads end once the work that waits is done; to be called when nothing submits any more."""
        for pool in (self._medium, self._large, self._huge):
            pool.shutdown(wait=False)
