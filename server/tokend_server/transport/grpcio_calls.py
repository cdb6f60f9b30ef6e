"""Unary calls of the grpcio front, taken from gRPC's serving thread, and small ones answered there.

grpcio's own way gives each call a thread before its message is there, which then waits for the message: two changes
of thread that cost as much as everything else in an empty call (docs/adr/0013-calls-on-the-serving-thread.md). Here a
call waits for its message without a thread. What is small is answered where the message comes in, what is not goes to
the unary threads.

This uses parts of `grpc._server` that grpcio does not promise, so `tokend[server]` names the series of grpcio that it
was tested with.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # compiled, without stubs
from grpc._server import _send_status_from_server

from tokend_server.transport.serving_thread import (
    CANCELLED,
    MESSAGE,
    NO_FLAGS,
    STATUS,
    end_alone,
    seconds_left,
    start,
)
from tokend_server.transport.status import Metadata
from tokend_server.transport.threads import CallThreads
from tokend_server.transport.unary import TakenCall, UnaryMethod

__all__ = ["GrpcioCall", "GrpcioCalls"]

_OK, _UNIMPLEMENTED = 0, grpc.StatusCode.UNIMPLEMENTED.value[0]


class GrpcioCall(TakenCall, grpc.RpcMethodHandler):  # type: ignore[type-arg]  # generic in its stubs alone
    """One unary call; it is the call's handler, as gRPC asks for one, itself."""

    __slots__ = ("_event", "_state")

    request_streaming = False
    response_streaming = False
    # Bytes in, bytes out.
    request_deserializer = None
    response_serializer = None

    def __init__(self, method: UnaryMethod[Any], details: grpc.HandlerCallDetails) -> None:
        super().__init__(method, details.invocation_metadata)
        self._event: Any = None
        self._state: Any = None

    def unary_unary(self, *_given: object) -> None:
        """Stand for the call where gRPC submits it; nobody runs this."""
        raise AssertionError("calls are answered by their messages")

    def begin(self, event: Any, state: Any, threads: CallThreads) -> None:  # noqa: ANN401 (untyped in grpcio)
        """Ask gRPC for the message; on the serving thread, under the state's lock."""
        self._event, self._state = event, state

        def arrived(received: Any) -> None:  # noqa: ANN401 (as above)
            data = received.batch_operations[0].message()
            if data is None:
                self._refuse_without_message()
            else:
                self.take(data, threads)

        start(event.call, state, (cygrpc.ReceiveMessageOperation(NO_FLAGS),), MESSAGE, arrived)

    def begins(self) -> bool:
        """Look whether the caller is still there, and its time not over."""
        return self._state.client != CANCELLED and self.time_remaining() > 0

    def time_remaining(self) -> float:
        """Return the seconds to the deadline; infinite if there is none."""
        return seconds_left(self._event)

    def respond(self, reply: bytes, trailer: Metadata) -> bool:
        """Send initial metadata, message and status in one batch."""
        return self._send(_OK, b"", trailer, cygrpc.SendMessageOperation(reply, NO_FLAGS))

    def fail(self, code: int, message: str, trailer: Metadata) -> None:
        """Send a status alone."""
        self._send(code, message.encode(), trailer)

    def _send(self, code: int, details: bytes, trailer: Metadata, *more: object) -> bool:
        state = self._state
        with state.condition:
            if state.client == CANCELLED:
                return False
            self._event.call.start_server_batch(
                (
                    cygrpc.SendStatusFromServerOperation(trailer, code, details, NO_FLAGS),
                    cygrpc.SendInitialMetadataOperation(None, NO_FLAGS),
                    *more,
                ),
                _send_status_from_server(state, STATUS),
            )
            state.statused = True
            state.due.add(STATUS)
            return True

    def _refuse_without_message(self) -> None:
        """Answer a call that ended its side without a message, in gRPC's words, unless it was cancelled."""
        state = self._state
        path = self._event.call_details.method.decode()
        self.fail(_UNIMPLEMENTED, f'"{path}" requires exactly one request message.', ())
        # Which of the two it was may show only at the call's end.
        state.callbacks.append(self._count_without_message)

    def _count_without_message(self) -> None:
        if self._state.client == CANCELLED:
            self.call.abandon(self)
        else:
            self.call.end(_UNIMPLEMENTED)


class GrpcioCalls(ThreadPoolExecutor):
    """Takes unary calls, and streams that need no thread, as gRPC submits them; gRPC accepts for that only a ThreadPoolExecutor."""

    def __init__(self, threads: CallThreads) -> None:
        """Begin without calls.

        Args:
            threads: What answers the calls that are not small.
        """
        super().__init__(max_workers=1)
        self._unary_threads = threads
        self._done: Future[Any] = Future()
        self._done.set_result(None)

    def submit(self, fn: Callable[..., object], /, *args: Any, **_kwargs: Any) -> "Future[Any]":  # noqa: ANN401 (as its base)
        """Have a call wait for its message.

        Args:
            fn: How gRPC would run the call; not used.
            args: What gRPC would run it with; the second to fourth are the event, the state and the handler.

        Returns:
            A future that is done already.
        """
        del fn
        _, event, state, handler, *_ = args
        try:
            handler.__self__.begin(event, state, self._unary_threads)
        except BaseException as fault:  # noqa: BLE001 (a native panic ends its call alone)
            end_alone(event.call, fault)
        return self._done
