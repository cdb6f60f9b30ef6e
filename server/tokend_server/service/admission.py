"""Who gets in: nobody before the tokenizer is loaded or during a drain, and no more than the limits of work and streams.

Thread-safe. This is the one place that turns calls away for the server's own state.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto

from tokend_server.errors import ServerOverloaded, ShuttingDown, TokenizerLoading
from tokend_server.service.work import Budget

__all__ = ["Admission", "ServingState"]

_STREAMS_RETRY_AFTER_MS = 1000


class ServingState(Enum):
    """The life of a server, in order."""

    LOADING = auto()
    SERVING = auto()
    DRAINING = auto()


class Admission:
    """Admits calls by the server's state and by what is in work, and streams by their number."""

    def __init__(self, *, max_streams: int, unary_work: Budget, stream_work: Budget) -> None:
        self.unary_work = unary_work
        """What is in work of unary calls; what does not fit is refused."""
        self.stream_work = stream_work
        """What is in work of streams; a batch that does not fit waits, and its stream is not read meanwhile."""
        self._max_streams = max_streams
        self._n_streams = 0
        self._lock = threading.Lock()
        self.state = ServingState.LOADING

    @staticmethod
    def check(state: ServingState) -> None:
        """Admit a call, or refuse it.

        Args:
            state: The server's state when the call arrived: one that waits for a thread while a drain begins is in
                flight, and is answered.

        Raises:
            TokenizerLoading: The server did not serve yet.
            ShuttingDown: It served no more.
        """
        if state is ServingState.LOADING:
            raise TokenizerLoading
        if state is ServingState.DRAINING:
            raise ShuttingDown

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Hold one place among the streams while the block runs.

        Raises:
            ShuttingDown: The server drains by now, and opens no stream.
            ServerOverloaded: All places are taken.
        """
        self.check(self.state)
        with self._lock:
            if self._n_streams >= self._max_streams:
                raise ServerOverloaded(
                    f"this server has {self._max_streams} open streams, the most it takes; put more sequences on one "
                    "stream, or try again",
                    retry_after_ms=_STREAMS_RETRY_AFTER_MS,
                )
            self._n_streams += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_streams -= 1
