"""The fronts of the server, side by side: grpcio's own listener, and the native one (`--front native`).

    python benchmarks/fronts.py                              all, about 4 minutes
    python benchmarks/fronts.py --rounds 3 --seconds 1 --tokenizer FILE -- --engine reference

Each server runs on one core and its client on the other, so that the server's CPU time is its own. What counts is calls
(or messages) for each CPU second of the server, which does not change with how fast the client is; only the lone call is
told in time. The servers take turns, round after round, and the figures are medians of the rounds. Beside the server
stand echoes of about the same bytes: what each front costs by itself. No text is sent twice.

docs/adr/0012-native-front.md has the figures that the default was chosen by.
"""

import argparse
import asyncio
import os
import platform
import random
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import grpc
import grpc.aio

from tokend.v1 import tokenizer_service_pb2 as pb

CHARACTERS = 200
REPLY_BYTES = 250
"""About as many as the answer to such a text has."""
CALLERS = (16, 256)
N_STREAMS = 200
SEQUENCES_A_MESSAGE = 256
_SERVICE = "/tokend.v1.TokenizerService"
_ECHO = "/tokend.bench.Echo/Unary"
_CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
_ALPHABETS = ("abcdefghijklmnopqrstuvwxyz", "абвгдеёжзийклмнопрстуфхцчшщъыьэюя", "αβγδεζηθικλμνξοπρστυφχψω")

Loads = Mapping[str, Callable[["Server", float], float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A server process and the address that it listens on."""

    pid: int
    target: str

    def cpu_s(self) -> float:
        """CPU seconds so far, of all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def texts() -> Iterator[str]:
    """Yield texts of 200 characters, words of several alphabets, none of them twice."""
    chance = random.Random(time.time_ns())
    words = [
        "".join(chance.choices(letters, k=n))
        for letters in _ALPHABETS
        for n in range(2, 11)
        for _ in range(200)
    ]
    while True:
        text = " ".join(chance.choices(words, k=CHARACTERS // 4))
        yield text[:CHARACTERS]


def requests() -> Iterator[bytes]:
    """Yield Encode requests, as bytes."""
    for text in texts():
        yield pb.EncodeRequest(text=text).SerializeToString()


async def unary(server: Server, method: str, n_callers: int, seconds: float) -> float:
    """Keep so many calls in flight; gives calls for each CPU second of the server."""
    async with grpc.aio.insecure_channel(server.target, options=_CHANNEL) as channel:
        call = channel.unary_unary(method)
        waiting = requests()
        return await _repeat(server, [lambda: call(next(waiting))] * n_callers, seconds)


async def lone_streams(server: Server, seconds: float) -> float:
    """One token of one sequence in each message, on many streams in turn; messages for each CPU second."""
    async with grpc.aio.insecure_channel(server.target, options=_CHANNEL) as channel:
        streams = [channel.stream_stream(f"{_SERVICE}/StreamDecode")() for _ in range(N_STREAMS)]
        message = pb.StreamDecodeRequest(sequences=[{"ids": [104]}]).SerializeToString()

        async def once(stream: grpc.aio.StreamStreamCall) -> None:
            await stream.write(message)
            await stream.read()

        return await _repeat(server, [lambda stream=stream: once(stream) for stream in streams], seconds)


async def shared_stream(server: Server, seconds: float) -> float:
    """One token of each of 256 sequences in each message of one stream; tokens for each CPU second."""
    async with grpc.aio.insecure_channel(server.target, options=_CHANNEL) as channel:
        stream = channel.stream_stream(f"{_SERVICE}/StreamDecode")()
        inputs = [{"sequence_id": n, "ids": [104]} for n in range(SEQUENCES_A_MESSAGE)]
        message = pb.StreamDecodeRequest(sequences=inputs).SerializeToString()

        async def once() -> None:
            await stream.write(message)
            await stream.read()

        return SEQUENCES_A_MESSAGE * await _repeat(server, [once], seconds)


async def _repeat(server: Server, calls: Sequence[Callable[[], Awaitable[object]]], seconds: float) -> float:
    # Connections, threads and caches are there before anything is counted.
    await asyncio.gather(*(call() for call in calls))
    n_done, before_s = 0, server.cpu_s()
    end_s = time.perf_counter() + seconds

    async def keep_going(call: Callable[[], Awaitable[object]]) -> None:
        nonlocal n_done
        while time.perf_counter() < end_s:
            await call()
            n_done += 1

    await asyncio.gather(*map(keep_going, calls))
    return n_done / (server.cpu_s() - before_s)


def lone_call_us(server: Server, method: str, seconds: float) -> float:
    """One call after the other; gives the median time of one, in microseconds."""
    took_s = []
    with grpc.insecure_channel(server.target, options=_CHANNEL) as channel:
        call, waiting = channel.unary_unary(method), requests()
        end_s = time.perf_counter() + seconds
        while time.perf_counter() < end_s or len(took_s) < 10:
            request = next(waiting)
            started_s = time.perf_counter()
            call(request)
            took_s.append(time.perf_counter() - started_s)
    return median(took_s) * 1e6


def unary_loads(method: str) -> dict[str, Callable[[Server, float], float]]:
    """The loads of a unary method, by what the table calls them."""
    loads = {
        f"unary, {n} at a time: calls a server-CPU second": (
            lambda server, seconds, n=n: asyncio.run(unary(server, method, n, seconds))
        )
        for n in CALLERS
    }
    loads["a lone unary call: p50, us"] = lambda server, seconds: lone_call_us(server, method, seconds)
    return loads


STREAM_LOADS: Loads = {
    f"StreamDecode, {N_STREAMS} streams of one token: messages a server-CPU second": (
        lambda server, seconds: asyncio.run(lone_streams(server, seconds))
    ),
    f"StreamDecode, {SEQUENCES_A_MESSAGE} sequences a message: tokens a server-CPU second": (
        lambda server, seconds: asyncio.run(shared_stream(server, seconds))
    ),
}


def serve_echo(kind: str) -> None:
    """Be an echo: the cheapest server that a front can be."""
    reply = bytes(REPLY_BYTES)
    if kind == "native":
        from pygrpc_native import NativeGrpcFront  # noqa: PLC0415 (an extra)

        front = NativeGrpcFront("127.0.0.1:0", [(_ECHO, False)], call_details=True, metrics=True)
        front.start()

        def receive() -> None:
            while (events := front.recv_batch_details(8)) is not None:
                for _, call_id, _, data, _, _ in events:
                    if data is not None:
                        front.respond(call_id, reply)

        for _ in range(4):
            threading.Thread(target=receive, daemon=True).start()
        port = front.bound_port
    else:
        server = echo_server(kind)
        service, _, name = _ECHO[1:].partition("/")
        handlers = {name: grpc.unary_unary_rpc_method_handler(lambda _data, _context: reply)}
        server.add_registered_method_handlers(service, handlers)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
    print(f"ready grpc=127.0.0.1:{port}", flush=True)
    sys.stdin.read()


def echo_server(kind: str) -> grpc.Server:
    """grpcio's server as its users run it or on our own threads, or the drop-in that comes with the native front."""
    if kind == "drop-in":
        import pygrpc_native  # noqa: PLC0415 (an extra)

        return pygrpc_native.server(ThreadPoolExecutor(64))
    if kind == "grpcio-threads":
        from tokend_server.transport.threads import UnaryThreads  # noqa: PLC0415 (as above)

        return grpc.server(UnaryThreads(64))
    return grpc.server(ThreadPoolExecutor(64))


@contextmanager
def started(command: Sequence[str], core: int) -> Iterator[Server]:
    """Run a server on one core as long as the block lasts."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),  # noqa: PLW1509 (no thread of ours runs yet)
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        target = next((part[5:] for part in line.split() if part.startswith("grpc=")), None)
        if target is None:
            raise SystemExit(f"the server did not start: {' '.join(command)}")
        yield Server(pid=process.pid, target=target)
    finally:
        process.kill()
        process.wait()


def tokend_command(front: str, given: argparse.Namespace) -> list[str]:
    """The command that serves with a front."""
    command = [sys.executable, "-m", "tokend_server", "serve", "--front", front]
    command += ["--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--log-level", "error"]
    if given.tokenizer:
        command += ["--tokenizer", given.tokenizer]
    return command + given.flags


def cores() -> tuple[int, int]:
    """The first two cores that this process may use."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise SystemExit("two cores are needed: one for the servers, one for the client")
    return usable[0], usable[1]


def machine() -> str:
    """One line about where the figures come from."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name")), "unknown")
    parts = (
        time.strftime("%Y-%m-%d"),
        f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        f"Linux {platform.release()}",
        f"{platform.python_implementation()} {platform.python_version()}",
        f"grpcio {grpc.__version__}",
    )
    return "; ".join(parts)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure the fronts of the server, side by side.")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of each pass (default: 1.5)")
    parser.add_argument("--rounds", type=int, default=5, help="passes of each kind (default: 5)")
    parser.add_argument("--tokenizer", help="the tokenizer.json to serve (default: the embedded one)")
    parser.add_argument("--echo", metavar="KIND", help=argparse.SUPPRESS)
    parser.add_argument("flags", nargs="*", help="more flags of the server, behind --")
    return parser.parse_args()


def main() -> None:
    """Measure, and print a table in Markdown."""
    given = arguments()
    if given.echo:
        serve_echo(given.echo)
        return
    server_core, client_core = cores()
    echo = [sys.executable, __file__, "--echo"]
    encode = {**unary_loads(f"{_SERVICE}/Encode"), **STREAM_LOADS}
    subjects: list[tuple[str, list[str], Loads]] = [
        ("echo, grpcio", [*echo, "grpcio"], unary_loads(_ECHO)),
        ("echo, grpcio on our threads", [*echo, "grpcio-threads"], unary_loads(_ECHO)),
        ("echo, native drop-in", [*echo, "drop-in"], unary_loads(_ECHO)),
        ("echo, native", [*echo, "native"], unary_loads(_ECHO)),
        ("tokend, grpcio (Encode)", tokend_command("grpcio", given), encode),
        ("tokend, native (Encode)", tokend_command("native", given), encode),
    ]
    figures: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(started(command, server_core)) for name, command, _ in subjects}
        os.sched_setaffinity(0, {client_core})
        for _ in range(given.rounds):
            for load in encode:
                for name, _, loads in subjects:
                    if load in loads:
                        figures.setdefault((load, name), []).append(loads[load](servers[name], given.seconds))
    print(machine(), end="\n\n")
    for load in encode:
        print(f"| {load} | median | lowest | highest |\n|---|---|---|---|")
        for name, _, _ in subjects:
            if (values := figures.get((load, name))) is not None:
                print(f"| {name} | {median(values):,.0f} | {min(values):,.0f} | {max(values):,.0f} |")
        print()


if __name__ == "__main__":
    main()
