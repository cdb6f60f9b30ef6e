"""An echo that is answered on grpcio's serving thread, without another thread: what our own front is at its barest.

docs/adr/0013-calls-on-the-serving-thread.md says why, and what of grpcio is used.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from grpc._cython import cygrpc  # type: ignore[attr-defined]  # compiled, without stubs
from grpc._server import _possibly_finish_call

__all__ = ["ServingThread"]


class ServingThread(ThreadPoolExecutor):
    """Takes calls as gRPC submits them, and sends each message back."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._done: Future[Any] = Future()
        self._done.set_result(None)

    def submit(self, fn: Callable[..., object], /, *args: Any, **_kwargs: Any) -> "Future[Any]":  # noqa: ANN401 (as its base)
        """Begin a call; streams have a handler that is named so."""
        del fn
        _, event, state, handler, *_ = args
        _Echo(event.call, state, is_stream=handler.__name__ == "stream").receive()
        return self._done


class _Echo:
    def __init__(self, call: Any, state: Any, *, is_stream: bool) -> None:  # noqa: ANN401 (untyped in grpcio)
        self._call, self._state, self._is_stream = call, state, is_stream
        self._first: tuple[Any, ...] = (cygrpc.SendInitialMetadataOperation(None, 0),)

    def receive(self) -> None:
        """Ask for the next message."""
        self._start((cygrpc.ReceiveMessageOperation(0),), "receive_message", self._received)

    def _start(self, operations: tuple[Any, ...], token: str, then: Callable[[Any], None]) -> None:
        def finished(event: Any) -> Any:  # noqa: ANN401 (as above)
            with self._state.condition:
                then(event)
                return _possibly_finish_call(self._state, token)

        self._call.start_server_batch(operations, finished)
        self._state.due.add(token)

    def _received(self, event: Any) -> None:  # noqa: ANN401 (as above)
        data = event.batch_operations[0].message()
        if self._state.client == "cancelled":
            return
        if data is None:
            self._end(())
        elif self._is_stream:
            sent = (*self._first, cygrpc.SendMessageOperation(data, 0))
            self._first = ()
            self._start(sent, "send_message", lambda _: self.receive())
        else:
            self._end((cygrpc.SendMessageOperation(data, 0),))

    def _end(self, message: tuple[Any, ...]) -> None:
        status = cygrpc.SendStatusFromServerOperation((), 0, b"", 0)
        self._start((*self._first, *message, status), "send_status_from_server", lambda _: None)
        self._state.statused = True
