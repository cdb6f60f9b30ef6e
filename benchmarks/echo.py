"""An echo server: what a front costs by itself, for calls and streams of the same bytes.

    python -m benchmarks.echo grpcio|native REPLY_BYTES

It answers every call, and every message of a stream, with so many bytes, until its stdin ends.
"""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

SERVICE = "tokend.bench.Echo"
UNARY = f"/{SERVICE}/Unary"
STREAM = f"/{SERVICE}/Stream"

# The cheapest pool of grpcio's (docs/adr/0001-threads.md).
_THREADS = 4
# As many events at a time as our own native front takes.
_EVENTS = 8


_kept: list[object] = []
"""The server, which would end with the last one who knows it."""


def serve_grpcio(reply: bytes) -> int:
    """Serve as grpcio's users do; gives the port."""

    def unary(_data: bytes, _context: grpc.ServicerContext) -> bytes:
        return reply

    def stream(messages: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        for _ in messages:
            yield reply

    handlers: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
    }
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=(("grpc.so_reuseport", 0),))
    server.add_registered_method_handlers(SERVICE, handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    _kept.append(server)
    return port


def serve_native(reply: bytes) -> int:
    """Serve on the bare native front; gives the port."""
    from pygrpc_native import NativeGrpcFront  # noqa: PLC0415 (an extra)

    front = NativeGrpcFront("127.0.0.1:0", [(UNARY, False)], call_details=True)
    front.start()

    def receive() -> None:
        while (events := front.recv_batch_details(_EVENTS)) is not None:
            for _, call_id, _, data, _, _ in events:
                if data is not None:
                    front.respond(call_id, reply)

    for _ in range(_THREADS):
        threading.Thread(target=receive, daemon=True).start()
    return front.bound_port


def main() -> None:
    """Serve."""
    front, reply_bytes = sys.argv[1:]
    serve = {"grpcio": serve_grpcio, "native": serve_native}[front]
    print(f"echo ready grpc=127.0.0.1:{serve(bytes(int(reply_bytes)))} engine=echo", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
