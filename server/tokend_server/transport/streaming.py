"""Bidirectional streams: one thread reads a stream's messages and answers each; a drain can end it from outside."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from tokend_server.errors import RequestError, ShuttingDown
from tokend_server.metrics import WorkMetrics
from tokend_server.service.admission import Admission
from tokend_server.service.work import CallGone, Work
from tokend_server.transport.calls import Call
from tokend_server.transport.status import CODES

__all__ = ["LiveStreams", "StreamRun", "StreamSession", "StreamThreads"]

_Request = TypeVar("_Request", bound=Message)
_Request_contra = TypeVar("_Request_contra", bound=Message, contravariant=True)


class StreamSession(Protocol[_Request_contra]):
    """What is behind one stream. Called by one thread at a time."""

    def n_texts(self, request: _Request_contra) -> int:
        """Count the texts, or the lists of ids, in one message."""
        ...

    def answer(self, request: _Request_contra) -> Message:
        """Answer one message; what it raises ends the stream."""
        ...

    def finish(self) -> Message | None:
        """End all that is open, as at half-close; gives the last answer, if there is something to say."""
        ...

    def drain(self) -> bool:
        """Begin nothing new; tells whether nothing is open, so that the stream may end at once."""
        ...

    def close(self) -> None:
        """Let go of everything, however the stream ended; may follow `finish`."""
        ...


class StreamThreads(ThreadPoolExecutor):
    """Runs each stream on a thread of its own that ends with it: idle streams starve nobody.

    gRPC accepts for a method only a ThreadPoolExecutor, and a pool of such a size would keep its threads for ever.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":  # noqa: ANN401 (as its base)
        """Run a function on a new thread."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 (the future carries it)
                future.set_exception(error)

        # Daemon threads: a reader that never reads must not keep the process from ending.
        threading.Thread(target=run, name="tokend-stream", daemon=True).start()
        return future


class LiveStreams:
    """The streams that are open now, for a drain to end them. Thread-safe."""

    def __init__(self) -> None:
        self._runs: set[StreamRun[Any]] = set()
        self._draining = False
        self._changed = threading.Condition()

    def add(self, run: "StreamRun[Any]") -> None:
        """Remember a stream that has begun; one that slipped in while a drain began is drained like the others."""
        with self._changed:
            self._runs.add(run)
            draining = self._draining
        if draining:
            run.drain()

    def discard(self, run: "StreamRun[Any]") -> None:
        """Forget a stream that has ended."""
        with self._changed:
            self._runs.discard(run)
            self._changed.notify_all()

    def end_stalled(self, longest_s: float) -> int:
        """Cancel the streams whose client has taken no answer for a time; gives their number."""
        before_s = time.monotonic() - longest_s
        with self._changed:
            stalled = [run for run in self._runs if run.sends_since_s < before_s]
        for run in stalled:
            run.cancel()
        return len(stalled)

    def drain(self, grace_s: float) -> None:
        """Let open streams end by themselves for a time, then flush and end the rest.

        Args:
            grace_s: How long streams with something open may go on. Streams with nothing open end at once.
        """
        deadline_s = time.monotonic() + grace_s
        with self._changed:
            self._draining = True
        self._each(lambda run: run.drain())
        self._wait_until(deadline_s)
        self._each(lambda run: run.expire())
        # A reader that does not read gets no more than this to take its last answer.
        self._wait_until(time.monotonic() + _LAST_ANSWER_S)

    def _each(self, action: "Callable[[StreamRun[Any]], None]") -> None:
        with self._changed:
            runs = list(self._runs)
        # On threads of their own: one stream's slow reader must not hold up the others.
        for run in runs:
            threading.Thread(target=action, args=(run,), name="tokend-drain", daemon=True).start()

    def _wait_until(self, deadline_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._runs, timeout=max(0.0, deadline_s - time.monotonic()))


_LAST_ANSWER_S = 1.0


class StreamRun(Generic[_Request]):
    """Answers one stream, message by message, in order.

    The lock is held while a message is answered and sent, so that a drain comes between messages.
    """

    # gRPC then hands over `send` instead of taking an iterator of answers: only so can a drain send a last answer
    # while the thread of the stream waits for the client's next message.
    experimental_non_blocking = True

    def __init__(
        self,
        call: Call,
        request_type: type[_Request],
        open_session: Callable[[Call], StreamSession[_Request]],
        *,
        admission: Admission,
        live: LiveStreams,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._call = call
        self._request_type = request_type
        self._open_session = open_session
        self._admission = admission
        self._live = live
        self._lock = threading.Lock()
        self._ended = False
        self._draining = False
        self.sends_since_s = math.inf
        """When the answer was ready that the client has not taken yet, by the monotonic clock; infinity: none is."""
        self.experimental_thread_pool = pool

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
            with self._admission.stream():
                self._session = self._open_session(self._call)
                self._live.add(self)
                try:
                    self._answer_all(messages)
                finally:
                    self._live.discard(self)
                    with self._lock:
                        self._ended = True
                        self._session.close()
        except (grpc.RpcError, CallGone):
            # The first is what the request iterator says when the client has left.
            self._call.abandon(context)
        except BaseException as error:  # noqa: BLE001 (a native panic ends its call alone)
            with self._lock:
                self._end(error)

    def _answer_all(self, messages: Iterator[bytes]) -> None:
        for data in messages:
            with self._lock:
                if self._ended:
                    return
                self._deliver(self._reply(data))
                if self._draining and self._session.drain():
                    self._end(ShuttingDown())
                    return
        with self._lock:
            if not self._ended:
                self._send_last()
                self._end(None)

    def _reply(self, data: bytes) -> bytes:
        started_s = time.perf_counter()
        request = self._call.receive(self._request_type, data)
        with self._admitted(len(data), self._session.n_texts(request)):
            reply = self._call.reply(self._call.work(self._session.answer, request))
        if isinstance(self._call.metrics, WorkMetrics):
            self._call.metrics.message_took(time.perf_counter() - started_s)
        return reply

    def _admitted(self, n_bytes: int, n_texts: int) -> Work:
        """Count a message as work; what one stream has in work is bounded by the limits of a message."""
        return self._admission.stream_work.count(n_bytes, n_texts)

    def _deliver(self, reply: bytes) -> None:
        """Send; returns when the client's flow control lets more come."""
        self.sends_since_s = time.monotonic()
        self._send(reply)
        self.sends_since_s = math.inf

    def cancel(self) -> None:
        """End the stream at once, from outside, whatever its thread waits for."""
        self._context.cancel()

    def drain(self) -> None:
        """Begin nothing new, and end at once if nothing is open."""
        with self._lock:
            self._draining = True
            if not self._ended and self._session.drain():
                self._end(ShuttingDown())

    def expire(self) -> None:
        """Flush and end whatever is open."""
        with self._lock:
            if not self._ended:
                self._send_last()
                self._end(ShuttingDown())

    def _send_last(self) -> None:
        last = self._session.finish()
        if last is not None:
            self._deliver(self._call.reply(last))

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
