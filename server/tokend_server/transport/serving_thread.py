"""Operations of a call that gRPC's serving thread completes, and what that thread must not live to see.

An exception ends that thread, and the server is deaf from then on.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # compiled, without stubs
from grpc._server import _possibly_finish_call

from tokend_server import logs

__all__ = [
    "CANCELLED",
    "MESSAGE",
    "NO_FLAGS",
    "SENT",
    "STATUS",
    "end_alone",
    "seconds_left",
    "start",
    "stop_that_began",
]

# As grpc._server names what it waits for, and a client that has left.
MESSAGE, SENT, STATUS = "receive_message", "send_message", "send_status_from_server"
CANCELLED = "cancelled"
NO_FLAGS = 0

_log = logs.get("transport")


def start(
    call: Any,  # noqa: ANN401 (untyped in grpcio)
    state: Any,  # noqa: ANN401 (as above)
    operations: tuple[Any, ...],
    token: str,
    done: Callable[[Any], None],
    *,
    on_fault: Callable[[], None] | None = None,
) -> None:
    """Begin operations of a call; under its state's lock.

    Args:
        call: gRPC's own call.
        state: What `grpc._server` keeps of it.
        operations: What gRPC is to do, in one batch.
        token: What `grpc._server` calls it.
        done: Called on the serving thread with the event, without the lock.
        on_fault: Called after `done` has raised, and the call was ended for it.
    """

    def finished(event: Any) -> Any:  # noqa: ANN401 (as above)
        try:
            done(event)
        except BaseException as fault:  # noqa: BLE001 (a native panic ends its call alone)
            end_alone(call, fault)
            if on_fault is not None:
                on_fault()
        with state.condition:
            return _possibly_finish_call(state, token)

    call.start_server_batch(operations, finished)
    state.due.add(token)


def seconds_left(event: Any) -> float:  # noqa: ANN401 (as above)
    """Return the seconds to a call's deadline, 0 when it has passed; infinite if there is none."""
    return max(0.0, float(event.call_details.deadline) - time.time())


def end_alone(call: Any, fault: BaseException) -> None:  # noqa: ANN401 (as above)
    """Log a fault of ours that nothing foresaw, and end the call that it is about.

    Args:
        call: gRPC's own call; its client gets a status, if it has none yet.
        fault: What was raised.
    """
    _log.error("a fault on gRPC's serving thread", error=fault)
    call.cancel(cygrpc.StatusCode.internal, b"the server failed on this request")


def stop_that_began(server: grpc.Server) -> threading.Event:
    """Return what is set when a server has ended whose `stop` raised after it had begun."""
    event: threading.Event = server._state.shutdown_events[-1]  # type: ignore[attr-defined]  # noqa: SLF001 (it was not returned)
    return event
