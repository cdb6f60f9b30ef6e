"""A StreamEncode: several of its batches in work at a time, their answers in order.

The threads of one stream take turns. One waits for the next message while the others encode; each sends its answer
when those before it are sent. So what one stream holds is bounded by its threads, and a client that does not read stops
the reading of its own messages.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from tokend_server.cores import usable_cores
from tokend_server.errors import ShuttingDown
from tokend_server.service.admission import Admission
from tokend_server.service.work import CallGone, Work
from tokend_server.transport.calls import Call
from tokend_server.transport.streaming import LiveStreams, StreamRun, StreamSession

__all__ = ["BatchStreamRun"]

_MOST_AT_ONCE = max(2, min(usable_cores(), 8))
"""While one is in the engine, which spreads it over the cores, another is read, or its answer is written."""


class BatchStreamRun(StreamRun[Any]):
    """Answers one stream of messages that do not depend on each other, several at a time."""

    def __init__(
        self,
        call: Call,
        request_type: type[Any],
        open_session: Callable[[Call], StreamSession[Any]],
        *,
        admission: Admission,
        live: LiveStreams,
        pool: ThreadPoolExecutor,
    ) -> None:
        super().__init__(call, request_type, open_session, admission=admission, live=live, pool=pool)
        # The lock of the base is the one of a turn: who sends holds it.
        self._changed = threading.Condition(self._lock)
        self._reading = threading.Lock()
        self._n_read = self._n_sent = self._n_helpers = 0
        self._left: BaseException | None = None
        """What was raised when the client had left."""

    def _answer_all(self, messages: Iterator[bytes]) -> None:
        self._messages: Iterator[bytes] | None = messages
        self._take_turns()
        with self._changed:
            self._changed.wait_for(lambda: not self._n_helpers)
            if self._left is not None:
                raise self._left
            if not self._ended:
                self._end(ShuttingDown() if self._draining else None)

    def _help(self) -> None:
        self._take_turns()
        with self._changed:
            self._n_helpers -= 1
            self._changed.notify_all()

    def _take_turns(self) -> None:
        """Answer messages until there are no more for this thread; raises nothing."""
        turn = None
        try:
            while (taken := self._next()) is not None:
                turn, data = taken
                reply = self._reply(data)
                # One message for each thread, and not two.
                del taken, data
                self._send_in_turn(turn, reply)
                turn = None
        except BaseException as fault:  # noqa: BLE001 (a native panic ends its stream alone)
            self._stop(fault, turn)

    def _next(self) -> tuple[int, bytes] | None:
        """Wait for the next message, and give it its turn; None: there is none to be answered any more."""
        with self._reading:
            if self._messages is None:
                return None
            data = next(self._messages, None)
            with self._changed:
                # What comes after a drain has begun is for another server.
                if data is None or self._ended or self._draining:
                    self._messages = None
                    return None
                turn, self._n_read = self._n_read, self._n_read + 1
                # Not for the first: many streams have no more than one.
                if self._n_helpers < min(turn, _MOST_AT_ONCE - 1):
                    self._n_helpers += 1
                    self.experimental_thread_pool.submit(self._help)
            return turn, data

    def _admitted(self, n_bytes: int, n_texts: int) -> Work:
        """Wait until there is room for a batch; its stream is not read on meanwhile."""
        return self._admission.stream_work.wait(n_bytes, n_texts, gone=self._is_gone)

    def _is_gone(self) -> bool:
        return self._ended or not self._context.is_active()

    def _send_in_turn(self, turn: int, reply: bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._n_sent == turn)
            if self._ended:
                return
            self._deliver(reply)
            self._n_sent += 1
            self._changed.notify_all()
            if self._draining and self._n_sent == self._n_read:
                self._end(ShuttingDown())

    def _stop(self, fault: BaseException, turn: int | None) -> None:
        """End the stream with a fault: one of a message, once the messages before it are answered."""
        with self._changed:
            if turn is not None:
                self._changed.wait_for(lambda: self._ended or self._n_sent == turn)
            if self._ended:
                return
            if isinstance(fault, (grpc.RpcError, CallGone)):
                self._left = fault
                self._ended = True
                self._changed.notify_all()
            else:
                self._end(fault)

    def drain(self) -> None:
        """Begin no new batch, and end at once if none is in work."""
        with self._lock:
            self._draining = True
            if not self._ended and self._n_sent == self._n_read:
                self._end(ShuttingDown())

    def _end(self, error: BaseException | None) -> None:
        super()._end(error)
        self._changed.notify_all()
