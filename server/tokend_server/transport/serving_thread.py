"""What gRPC's serving thread must not live to see: an exception ends it, and the server is deaf from then on."""

from typing import Any

from grpc._cython import cygrpc  # type: ignore[attr-defined]  # compiled, without stubs

from tokend_server import logs

__all__ = ["end_alone"]

_log = logs.get("transport")


def end_alone(call: Any, fault: BaseException) -> None:  # noqa: ANN401 (untyped in grpcio)
    """Log a fault of ours that nothing foresaw, and end the call that it is about.

    Args:
        call: gRPC's own call; its client gets a status, if it has none yet.
        fault: What was raised.
    """
    _log.error("a fault on gRPC's serving thread", error=fault)
    call.cancel(cygrpc.StatusCode.internal, b"the server failed on this request")
