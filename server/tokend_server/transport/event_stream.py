"""A StreamDecode without a thread: gRPC's serving thread answers its small messages where they come in.

Thousands of such streams are idle most of the time, and what comes is a token of each of a few sequences. A thread for
each costs 50 KB and, for every message, two changes of thread that cost four times as much as all the rest
(docs/adr/0013-calls-on-the-serving-thread.md, also for what this uses of grpcio).

The stream is a small machine. It waits for a message, works on it, sends the answer, and waits again: so what a client
does not read holds up its own stream, and no memory. Each step is one of gRPC's operations, and what gRPC calls when it
is done takes the next. A drain comes from another thread: it ends a stream that waits, and leaves word for one that
works or sends.
"""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from enum import Enum, auto
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # compiled, without stubs

from tokend.v1 import tokenizer_service_pb2 as pb
from tokend_server.errors import RequestError, ShuttingDown
from tokend_server.metrics import WorkMetrics
from tokend_server.service.admission import Admission
from tokend_server.transport.calls import Call
from tokend_server.transport.serving_thread import (
    CANCELLED,
    MESSAGE,
    NO_FLAGS,
    SENT,
    STATUS,
    seconds_left,
    start,
)
from tokend_server.transport.status import code_number, error_trailer
from tokend_server.transport.stream_decode import StreamDecodeSession
from tokend_server.transport.streaming import LiveStreams
from tokend_server.transport.threads import SMALL_BYTES, CallThreads

__all__ = ["EventStream"]

# The flush of so many open sequences is soon done.
_FEW_SEQUENCES = 64
_NOTHING = nullcontext()
_OK = grpc.StatusCode.OK.value[0]


class _Phase(Enum):
    WAITS = auto()
    """For the client's next message; the only phase that others may end."""
    WORKS = auto()
    SENDS = auto()
    ENDED = auto()


class EventStream(grpc.RpcMethodHandler):  # type: ignore[type-arg]  # generic in its stubs alone
    """One stream; it is the call's handler, as gRPC asks for one, itself. Thread-safe.

    Its phase changes under the lock of gRPC's own state of the call. Nothing is worked on under it, since gRPC's
    serving thread takes it too.
    """

    request_streaming = True
    response_streaming = True
    # Bytes in, bytes out.
    request_deserializer = None
    response_serializer = None

    def __init__(
        self,
        call: Call,
        open_session: Callable[[Call], StreamDecodeSession],
        *,
        admission: Admission,
        live: LiveStreams,
    ) -> None:
        self._call = call
        self._open_session = open_session
        self._admission = admission
        self._live = live
        self._holds = ExitStack()
        self._phase = _Phase.WORKS
        self._draining = self._expired = False
        self._has_sent = False
        self.sends_since_s = math.inf
        """When the answer was ready that the client has not taken yet, by the monotonic clock; infinity: none is."""

    def stream_stream(self, *_given: object) -> None:  # type: ignore[override]  # never called
        """Stand for the call where gRPC submits it; nobody runs this."""
        raise AssertionError("streams are answered by their messages")

    def begin(self, event: Any, state: Any, threads: CallThreads) -> None:  # noqa: ANN401 (untyped in grpcio)
        """Open the stream and wait for its first message; on the serving thread, under the state's lock."""
        self._event, self._state, self._threads = event, state, threads
        try:
            self._call.begin()
            self._holds.enter_context(self._admission.stream())
            self._session = self._open_session(self._call)
            self._holds.callback(self._session.close)
        except BaseException as error:  # noqa: BLE001 (a native panic ends its stream alone)
            self._holds.close()
            self._refuse(error)
            return
        self._wait()
        # Not before: one that comes in while a drain begins is drained from here.
        self._holds.callback(self._live.discard, self)
        self._live.add(self)

    def drain(self) -> None:
        """Begin nothing new, and end at once if nothing is open."""
        with self._state.condition:
            self._draining = True
            if self._phase is not _Phase.WAITS or not self._session.drain():
                return
            self._phase = _Phase.WORKS
        self._refuse(ShuttingDown())

    def expire(self) -> None:
        """Flush and end whatever is open."""
        with self._state.condition:
            self._expired = True
            if self._phase is not _Phase.WAITS:
                return
            self._phase = _Phase.WORKS
        self._flush(ShuttingDown())

    def cancel(self) -> None:
        """End the stream at once, from outside, whatever it waits for."""
        self._event.call.cancel(cygrpc.StatusCode.cancelled, b"cancelled by the server")

    def time_remaining(self) -> float:
        """Return the seconds to the deadline; infinite if there is none."""
        return seconds_left(self._event)

    def _wait(self) -> None:
        """Ask for the next message; under the lock."""
        self._phase = _Phase.WAITS
        self._start((cygrpc.ReceiveMessageOperation(NO_FLAGS),), MESSAGE, self._received)

    def _start(self, operations: tuple[Any, ...], token: str, done: Callable[[Any], None]) -> None:
        """Begin operations of gRPC's; under the lock."""
        start(self._event.call, self._state, operations, token, done, on_fault=self._abandon)

    def _received(self, event: Any) -> None:  # noqa: ANN401 (as above)
        data = event.batch_operations[0].message()
        with self._state.condition:
            # Whoever ended the stream meanwhile has said its last word.
            if self._phase is not _Phase.WAITS:
                return
            self._phase = _Phase.WORKS
        if data is None:
            self._flush_without_others_waiting(None)
        elif len(data) <= SMALL_BYTES and not self._session.holds_text:
            self._answer(data)
        else:
            self._threads.submit_short(self._answer, data)

    def _answer(self, data: bytes) -> None:
        started_s = time.perf_counter()
        try:
            request = self._call.receive(pb.StreamDecodeRequest, data)
            with self._counted(len(data), request):
                reply = self._call.reply(self._call.work(self._session.answer, request))
        except BaseException as error:  # noqa: BLE001 (a native panic ends its stream alone)
            self._refuse(error)
            return
        if isinstance(self._call.metrics, WorkMetrics):
            self._call.metrics.message_took(time.perf_counter() - started_s)
        self._send(reply)

    def _counted(self, n_bytes: int, request: pb.StreamDecodeRequest) -> AbstractContextManager[object]:
        """Count a message as work; one that is small is done before anybody could look."""
        if n_bytes <= SMALL_BYTES:
            return _NOTHING
        return self._admission.stream_work.count(n_bytes, self._session.n_texts(request))

    def _send(self, reply: bytes) -> None:
        with self._state.condition:
            left = self._state.client == CANCELLED
            if not left:
                self._phase = _Phase.SENDS
                self.sends_since_s = time.monotonic()
                self._start(self._message(reply), SENT, self._sent)
        if left:
            self._abandon()

    def _sent(self, _event: object) -> None:
        with self._state.condition:
            self.sends_since_s = math.inf
            left = self._state.client == CANCELLED
            expired = self._expired
            drained = self._draining and self._session.drain()
            if left or expired or drained:
                self._phase = _Phase.WORKS
            else:
                self._wait()
                return
        if left:
            self._abandon()
        elif drained:
            self._refuse(ShuttingDown())
        else:
            self._flush_without_others_waiting(ShuttingDown())

    def _flush_without_others_waiting(self, error: RequestError | None) -> None:
        """Flush here, on the serving thread, if it is soon done."""
        if self._session.n_open <= _FEW_SEQUENCES and not self._session.holds_text:
            self._flush(error)
        else:
            self._threads.submit_short(self._flush, error)

    def _flush(self, error: RequestError | None) -> None:
        """End all that is open, and then the stream: well, as its client asked for, or with an error."""
        try:
            last = self._session.finish()
            reply = None if last is None else self._call.written(last)
        except BaseException as fault:  # noqa: BLE001 (a native panic ends its stream alone)
            self._refuse(fault)
            return
        if error is None:
            self._end(_OK, "", self._call.trailer(), reply)
        else:
            self._refuse(error, reply)

    def _refuse(self, error: BaseException, reply: bytes | None = None) -> None:
        refused = self._call.refusal(error)
        code = code_number(refused.reason)
        self._end(code, refused.message, (*error_trailer(refused), *self._call.trailer()), reply)

    def _end(self, code: int, message: str, trailer: Any, reply: bytes | None) -> None:  # noqa: ANN401 (metadata)
        """Send the status, after a last answer if there is one."""

        def done(event: Any) -> None:  # noqa: ANN401 (as above)
            # A client that has cancelled looks like one that has said all, until here.
            if event.success and self._state.client != CANCELLED:
                if reply is not None:
                    self._call.sent()
                    self._session.finish_sent()
                self._call.end(code)
            else:
                self._call.abandon(self)

        with self._state.condition:
            left = self._state.client == CANCELLED
            if not left:
                self._phase = _Phase.ENDED
                status = cygrpc.SendStatusFromServerOperation(trailer, code, message.encode(), NO_FLAGS)
                first = self._message(reply)
                self._start((*first, status), STATUS, done)
                self._state.statused = True
        if left:
            self._abandon()
        else:
            self._holds.close()

    def _message(self, reply: bytes | None) -> tuple[Any, ...]:
        """Make the operations that send an answer, if there is one, behind the initial metadata."""
        operations: tuple[Any, ...] = ()
        if not self._has_sent:
            self._has_sent = True
            operations = (cygrpc.SendInitialMetadataOperation(None, NO_FLAGS),)
        if reply is not None:
            operations += (cygrpc.SendMessageOperation(reply, NO_FLAGS),)
        return operations

    def _abandon(self) -> None:
        """Let go of a stream whose client has left."""
        with self._state.condition:
            self._phase = _Phase.ENDED
        self._holds.close()
        self._call.abandon(self)
