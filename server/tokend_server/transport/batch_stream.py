"""A StreamEncode: several of its batches in work at a time, their answers in order.

The threads of one stream take turns. One waits for the next message while the others have theirs encoded, on the threads
for all work of that size; each sends its answer when those before it are sent. So what one stream holds is bounded by its
threads, and a client that does not read stops the reading of its own messages.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message

from tokend_server.cores import usable_cores
from tokend_server.errors import RequestError, ShuttingDown
from tokend_server.metrics import WorkMetrics
from tokend_server.service.admission import Admission
from tokend_server.service.work import CallGone
from tokend_server.transport.calls import Call
from tokend_server.transport.status import CODES
from tokend_server.transport.streaming import LiveStreams, StreamThreads
from tokend_server.transport.threads import CallThreads

__all__ = ["BatchStreamRun"]

_MOST_AT_ONCE = max(2, min(usable_cores(), 8))
"""While one is in the engine, which spreads it over the cores, another is read, or its answer is written."""


class BatchSession(Protocol):
    """What is behind one stream. Called by several threads at a time."""

    def n_texts(self, request: Any) -> int:  # noqa: ANN401 (a message with fields of its own)
        """Count the texts in one message."""
        ...

    def answer(self, request: Any) -> Message:  # noqa: ANN401 (as above)
        """Answer one message; what it raises ends the stream."""
        ...


class BatchStreamRun:
    """Answers one stream of messages that do not depend on each other, several at a time."""

    # gRPC then hands over `send` instead of taking an iterator of answers: only so can a drain send the status while a
    # thread of the stream waits for the client's next message.
    experimental_non_blocking = True

    def __init__(
        self,
        call: Call,
        request_type: type[Message],
        open_session: Callable[[Call], BatchSession],
        *,
        admission: Admission,
        live: LiveStreams,
        pool: StreamThreads,
        threads: CallThreads,
    ) -> None:
        self._call = call
        self._request_type = request_type
        self._open_session = open_session
        self._admission = admission
        self._live = live
        # Who sends holds it, so that a drain comes between answers.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._ended = False
        self._draining = False
        self.sends_since_s = math.inf
        """When the answer was ready that the client has not taken yet, by the monotonic clock; infinity: none is."""
        self.experimental_thread_pool = pool
        self._threads = threads
        self._reading = threading.Lock()
        self._n_read = self._n_sent = self._n_helpers = 0
        self._left: BaseException | None = None
        """What was raised when the client had left."""

    def __call__(
        self,
        messages: Iterator[bytes],
        context: grpc.ServicerContext,
        send: Callable[[bytes | None], None],
    ) -> None:
        """Answer the stream until it ends; returns when it has."""
        self._context, self._send = context, send
        try:
            self._call.begin()
            self.experimental_thread_pool.check()
            with self._admission.stream():
                self._session = self._open_session(self._call)
                self._live.add(self)
                try:
                    self._answer_all(messages)
                finally:
                    self._live.discard(self)
                    with self._lock:
                        self._ended = True
        except (grpc.RpcError, CallGone):
            # The first is what the request iterator says when the client has left.
            self._call.abandon(context)
        except BaseException as error:  # noqa: BLE001 (a native panic ends its call alone)
            with self._lock:
                self._end(error)

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
                if self._n_helpers < min(turn, _MOST_AT_ONCE - 1) and self.experimental_thread_pool.start(
                    self._help
                ):
                    self._n_helpers += 1
            return turn, data

    def _reply(self, data: bytes) -> bytes:
        started_s = time.perf_counter()
        request = self._call.receive(self._request_type, data)
        # The stream is not read on while a batch waits for room.
        with self._admission.stream_work.wait(len(data), self._session.n_texts(request), gone=self._is_gone):
            answer = partial(self._call.work, self._session.answer, request)
            reply = self._call.reply(self._threads.run(len(data), answer))
        if isinstance(self._call.metrics, WorkMetrics):
            self._call.metrics.message_took(time.perf_counter() - started_s)
        return reply

    def _is_gone(self) -> bool:
        return self._ended or not self._context.is_active()

    def _send_in_turn(self, turn: int, reply: bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._n_sent == turn)
            if self._ended:
                return
            self.sends_since_s = time.monotonic()
            # It returns when the client's flow control lets more come.
            self._send(reply)
            self.sends_since_s = math.inf
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

    def expire(self) -> None:
        """End it, whatever is in work."""
        with self._lock:
            if not self._ended:
                self._end(ShuttingDown())

    def cancel(self) -> None:
        """End the stream at once, from outside, whatever its threads wait for."""
        self._context.cancel()

    def _end(self, error: BaseException | None) -> None:
        """Send the status. The thread that waits for messages then sees the end of the stream."""
        self._ended = True
        if error is None:
            self._call.succeed(self._context)
        else:
            refused: RequestError = self._call.fail(self._context, error)
            self._context.set_code(CODES[refused.reason])
            self._context.set_details(refused.message)
        self._send(None)
        self._changed.notify_all()
