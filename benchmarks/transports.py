"""What a gRPC server in Python costs a call and a stream's message: threads, asyncio and gRPC's serving thread, side by side.

An echo server runs on one core and its client on another, so that the server's CPU time is its own. What counts is
calls (or messages) for each CPU second of the server: it does not change with how fast the client is.

    python benchmarks/transports.py                                all, about 2 minutes
    python benchmarks/transports.py threads-64 asyncio --seconds 1

docs/adr/0001-threads.md has the figures that the choice was made by. `uvloop` takes part if it is installed.
"""

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc

UNARY_BYTES = 800
"""A short text and its ids."""
STREAM_BYTES = 20
"""One token's text for one sequence."""
LOADS = (("unary", 16), ("unary", 256), ("stream", 50), ("stream", 500), ("stream", 2000), ("stream", 5000))
"""Calls in flight at a time, and live streams with one message each way in turn."""
TRANSPORTS = ("threads-4", "threads-64", "asyncio", "uvloop", "serving-thread")

_SERVICE = "tokend.bench.Echo"
_OPTIONS = (("grpc.so_reuseport", 0), ("grpc.server.max_pending_requests", 10_000))
_STREAMS_OPENED_TOGETHER = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What a server process has used so far."""

    cpu_s: float
    peak_rss_mb: int


class ThreadForEach(ThreadPoolExecutor):
    """Runs each stream on a thread of its own, as the server's StreamThreads does."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":  # noqa: ANN401 (as its base)
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 (the future carries it)
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future


def register(server: Any, unary: Any, stream: Any) -> int:  # noqa: ANN401 (grpc.Server and grpc.aio.Server share no type)
    """Add the echo methods to a server of either kind, and bind a free port."""
    handlers: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    return int(server.add_insecure_port("127.0.0.1:0"))


def serve_threads(n_threads: int) -> None:
    """Serve from a pool for unary calls and a thread for each stream, until stdin ends."""

    def unary(data: bytes, _context: grpc.ServicerContext) -> bytes:
        return data

    def stream(
        messages: Iterator[bytes], _context: grpc.ServicerContext, send: Callable[[bytes | None], None]
    ) -> None:
        for data in messages:
            send(data)
        send(None)

    # The attributes by which grpcio lets a handler send by itself, on a thread of its own pool.
    stream.experimental_non_blocking = True  # type: ignore[attr-defined]
    stream.experimental_thread_pool = ThreadForEach(1)  # type: ignore[attr-defined]
    server = grpc.server(ThreadPoolExecutor(n_threads), options=_OPTIONS)
    port = register(server, unary, stream)
    server.start()
    report_usage(port)


def serve_on_serving_thread() -> None:
    """Serve without any other thread than gRPC's own, until stdin ends."""
    # Found beside this file, which is run as a script.
    from serving_thread import ServingThread  # noqa: PLC0415 (not every transport needs it)

    def unary(_data: bytes, _context: grpc.ServicerContext) -> bytes:
        raise AssertionError("answered before")

    def stream(_messages: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        raise AssertionError("answered before")

    server = grpc.server(ServingThread(), options=_OPTIONS)
    port = register(server, unary, stream)
    server.start()
    report_usage(port)


async def serve_asyncio() -> None:
    """Serve from an event loop, until stdin ends."""

    async def unary(data: bytes, _context: Any) -> bytes:  # noqa: ANN401 (grpc awaits it)
        return data

    async def stream(_messages: Any, context: Any) -> None:  # noqa: ANN401 (grpc.aio's are untyped)
        while (data := await context.read()) is not grpc.aio.EOF:
            await context.write(data)

    server = grpc.aio.server(options=_OPTIONS)
    port = register(server, unary, stream)
    await server.start()
    await asyncio.get_running_loop().run_in_executor(None, report_usage, port)


def report_usage(port: int) -> None:
    """Print the port, and then CPU seconds and peak memory at each line of stdin."""
    print(port, flush=True)
    for _ in sys.stdin:
        print(time.process_time(), peak_rss_mb(), flush=True)


def peak_rss_mb() -> int:
    """The peak memory of this process; `ru_maxrss` would have that of the parent too, from before the exec."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM:"))


def serve(transport: str) -> None:
    """Be the server process."""
    os.sched_setaffinity(0, {cores()[0]})
    if transport.startswith("threads-"):
        serve_threads(int(transport.removeprefix("threads-")))
    elif transport == "serving-thread":
        serve_on_serving_thread()
    elif transport == "uvloop":
        import uvloop  # noqa: PLC0415 (optional)

        uvloop.run(serve_asyncio())
    else:
        asyncio.run(serve_asyncio())


class ServerProcess:
    """A server in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.port = int(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def usage(self) -> Usage:
        """Ask the server what it has used so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        cpu_s, peak_rss_mb = self._line().split()
        return Usage(cpu_s=float(cpu_s), peak_rss_mb=int(peak_rss_mb))


@contextmanager
def started(transport: str) -> Iterator[ServerProcess]:
    """Run a server as long as the block lasts."""
    command = [sys.executable, __file__, "--serve", transport]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield ServerProcess(process)
        finally:
            # Threads that wait in gRPC would keep a server that only lost its stdin.
            process.kill()


@asynccontextmanager
async def opened(port: int, method: str, n: int) -> AsyncIterator[list[Callable[[], Any]]]:
    """Open a channel and give `n` functions, each of which makes one round trip."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        if method == "unary":
            call: Any = channel.unary_unary(f"/{_SERVICE}/Unary")
            yield [lambda: call(bytes(UNARY_BYTES))] * n
            return
        open_stream: Any = channel.stream_stream(f"/{_SERVICE}/Stream")
        streams = [open_stream() for _ in range(n)]

        async def once(stream: Any) -> None:  # noqa: ANN401 (grpc.aio's are untyped)
            await stream.write(bytes(STREAM_BYTES))
            await stream.read()

        for start in range(0, n, _STREAMS_OPENED_TOGETHER):
            await asyncio.gather(*map(once, streams[start : start + _STREAMS_OPENED_TOGETHER]))
        yield [lambda stream=stream: once(stream) for stream in streams]  # type: ignore[misc]


async def load(server: ServerProcess, method: str, n: int, seconds: float) -> tuple[float, float, int]:
    """Make round trips for some seconds.

    Returns:
        Round trips a second, the same for each CPU second of the server, and its peak memory in MB.
    """
    async with opened(server.port, method, n) as round_trips:
        n_done = 0
        before, start_s = server.usage(), time.perf_counter()
        end_s = start_s + seconds

        async def keep_going(round_trip: Callable[[], Any]) -> None:
            nonlocal n_done
            while time.perf_counter() < end_s:
                await round_trip()
                n_done += 1

        await asyncio.gather(*map(keep_going, round_trips))
        took_s, after = time.perf_counter() - start_s, server.usage()
    return n_done / took_s, n_done / (after.cpu_s - before.cpu_s), after.peak_rss_mb


def cores() -> Sequence[int]:
    """The first two cores that this process may use."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise SystemExit("two cores are needed: one for the server, one for its client")
    return usable[:2]


def machine() -> str:
    """One line about where the figures come from."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name")), "unknown")
    parts = (
        time.strftime("%Y-%m-%d"),
        f"{model}, {os.cpu_count()} cores",
        f"Linux {platform.release()}",
        f"{platform.python_implementation()} {platform.python_version()}",
        f"grpcio {grpc.__version__}",
    )
    return "; ".join(parts)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure gRPC servers in Python: threads against asyncio.")
    parser.add_argument("transports", nargs="*", metavar="TRANSPORT", help=f"default: {' '.join(TRANSPORTS)}")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each measurement (default: 4)")
    parser.add_argument("--serve", metavar="TRANSPORT", help=argparse.SUPPRESS)
    given = parser.parse_args()
    unknown = set(given.transports) - set(TRANSPORTS)
    if unknown:
        parser.error(f"no such transport: {', '.join(sorted(unknown))}; there are {', '.join(TRANSPORTS)}")
    return given


def main() -> None:
    """Measure, and print a table in Markdown."""
    given = arguments()
    if given.serve:
        serve(given.serve)
        return
    client_core = cores()[1]
    os_cores = os.sched_getaffinity(0)
    print(machine(), end="\n\n")
    print("| transport | load | round trips a second | a server-CPU second | peak RSS, MB |")
    print("|---|---|---|---|---|", flush=True)
    for transport in given.transports or TRANSPORTS:
        if transport == "uvloop" and find_spec("uvloop") is None:
            print("| uvloop | not installed | | | |")
            continue
        for method, n in LOADS:
            # A child has the cores of its parent when it starts, and must be able to take the other one.
            os.sched_setaffinity(0, os_cores)
            with started(transport) as server:
                os.sched_setaffinity(0, {client_core})
                rate, efficiency, rss_mb = asyncio.run(load(server, method, n, given.seconds))
            print(
                f"| {transport} | {method}, {n:,} | {rate:,.0f} | {efficiency:,.0f} | {rss_mb} |", flush=True
            )


if __name__ == "__main__":
    main()
