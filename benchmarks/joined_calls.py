"""Many small calls of one client: `AsyncClient` against raw stub calls, and 10,000 decoders on shared streams.

python benchmarks/joined_calls.py [--callers N] [--characters N] [--sessions N] [--seconds S] [--rounds N]

All ways of one comparison take turns against one server, on loopback, and the ratios are medians over the turns. The
texts are fresh: slices of the zoo's text in many languages (`make zoo`), or of the tests' own text without it. CPU
seconds are those of the process alone, so that they hold on a machine with other work; calls a second do not.
"""

import argparse
import asyncio
import lzma
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import grpc
import grpc.aio

import tokend
from tests.zoo import texts as zoo_texts
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import tokenizer_service_pb2_grpc as pb_grpc
from tokend.v1 import types_pb2

_SMALL_TEXT = Path(__file__).parents[1] / "tests" / "data" / "english_russian.txt.xz"
_CHANNEL = (("grpc.use_local_subchannel_pool", 1),)

Call = Callable[[str], Awaitable[object]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """What is read of a process."""

    pid: int

    def cpu_s(self) -> float:
        """CPU seconds so far, of all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """Resident memory."""
        pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="utf-8").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """What one timed pass came to."""

    n_done: int
    took_s: float
    client_cpu_s: float
    server_cpu_s: float

    @property
    def rate(self) -> float:
        """Done a second."""
        return self.n_done / self.took_s

    @property
    def client_us(self) -> float:
        """The client's CPU for each, in microseconds."""
        return self.client_cpu_s / self.n_done * 1e6

    @property
    def server_us(self) -> float:
        """The server's CPU for each, in microseconds."""
        return self.server_cpu_s / self.n_done * 1e6


@contextmanager
def served(flags: list[str]) -> Iterator[tuple[str, Process, str]]:
    """Run a server: gives its address, its process and its ready line."""
    command = [sys.executable, "-m", "tokend_server", "serve"]
    addresses = ["--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"]
    with subprocess.Popen([*command, *addresses, *flags], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline().strip()
            facts = dict(part.split("=", 1) for part in ready.split()[2:])
            yield facts["grpc"], Process(pid=process.pid), ready
        finally:
            process.terminate()


def fresh_texts(n_characters: int) -> Iterator[str]:
    """Slices of real text in many languages, each from another place."""
    if zoo_texts.place().exists():
        pieces = list(zoo_texts.texts().values())
    else:
        pieces = [lzma.decompress(_SMALL_TEXT.read_bytes()).decode()]
    slices = [
        text[at : at + n_characters]
        for text in pieces
        for at in range(0, len(text) - n_characters, n_characters)
    ]
    random.Random(7).shuffle(slices)  # the order is to be the same each time
    shift = 0
    while True:
        for text in slices:
            yield text[shift:] + text[:shift]
        shift += 1


async def timed(
    n_callers: int, seconds: float, server: Process, once: Callable[[int], Awaitable[object]]
) -> Pass:
    """Let callers call again and again."""
    own = Process(pid=os.getpid())
    n_done = 0
    before, start_s = (own.cpu_s(), server.cpu_s()), time.perf_counter()
    end_s = start_s + seconds

    async def keep_going(caller: int) -> None:
        nonlocal n_done
        while time.perf_counter() < end_s:
            await once(caller)
            n_done += 1

    await asyncio.gather(*map(keep_going, range(n_callers)))
    return Pass(
        n_done=n_done,
        took_s=time.perf_counter() - start_s,
        client_cpu_s=own.cpu_s() - before[0],
        server_cpu_s=server.cpu_s() - before[1],
    )


async def compare_encode(target: str, server: Process, given: argparse.Namespace) -> None:
    """Raw stub calls, joined calls and separate calls, in turns; then the latency of lone calls."""
    texts = fresh_texts(given.characters)
    options = types_pb2.EncodeOptions(id_format=types_pb2.ID_FORMAT_PACKED)
    async with (
        grpc.aio.insecure_channel(target, options=_CHANNEL) as channel,
        tokend.AsyncClient(target, channel_options=_CHANNEL) as joined,
        tokend.AsyncClient(target, channel_options=_CHANNEL, join_calls=False) as separate,
    ):
        stub = pb_grpc.TokenizerServiceStub(channel)

        async def raw(text: str) -> object:
            return await stub.Encode(pb.EncodeRequest(text=text, options=options))

        ways: dict[str, Call] = {
            "raw stub": raw,
            "AsyncClient": joined.encode,
            "AsyncClient(join_calls=False)": separate.encode,
        }
        passes: dict[str, list[Pass]] = {name: [] for name in ways}
        for _ in range(given.rounds):
            for name, call in ways.items():
                passes[name].append(
                    await timed(given.callers, given.seconds, server, lambda _, call=call: call(next(texts)))
                )
        print(f"\n`encode` of {given.characters} characters, {given.callers} callers at a time\n")
        print("| way | calls a second | client CPU, us a call | server CPU, us a call | against raw |")
        print("|---|---|---|---|---|")
        for name, taken in passes.items():
            ratio = median(
                one.rate / first.rate for one, first in zip(taken, passes["raw stub"], strict=True)
            )
            print(
                f"| {name} | {median(one.rate for one in taken):,.0f} | {median(one.client_us for one in taken):,.1f} "
                f"| {median(one.server_us for one in taken):,.1f} | {ratio:.1f}x |"
            )
        latencies: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(given.lone_calls):
            for name, call in ways.items():
                text = next(texts)
                start_s = time.perf_counter()
                await call(text)
                latencies[name].append(time.perf_counter() - start_s)
    print("\nA lone `encode`, latency in us\n\n| way | p50 | p90 |\n|---|---|---|")
    for name, each in latencies.items():
        each.sort()
        print(f"| {name} | {each[len(each) // 2] * 1e6:,.0f} | {each[len(each) * 9 // 10] * 1e6:,.0f} |")


async def compare_decoders(target: str, server: Process, given: argparse.Namespace) -> None:
    """Sessions that push one token at a time, all at once: on a shared stream, and fewer on streams of their own."""
    print("\nDecoders, each pushing one token at a time\n")
    print(
        "| sessions | streams | tokens a second | client CPU, us a token | server CPU, us a token "
        "| client memory, bytes a session | server memory, bytes a session |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for n_sessions, joins in ((1, True), (1, False), (256, True), (256, False), (given.sessions, True)):
        async with tokend.AsyncClient(target, channel_options=_CHANNEL, join_calls=joins) as client:
            ids = (await client.encode("A sentence that goes on and on, round and round. ")).ids
            own = Process(pid=os.getpid())
            before = own.rss_bytes(), server.rss_bytes()
            decoders = [client.decoder() for _ in range(n_sessions)]
            await asyncio.gather(*(decoder.push(ids[0]) for decoder in decoders))
            grown = [
                (now - then) / n_sessions
                for now, then in zip((own.rss_bytes(), server.rss_bytes()), before, strict=True)
            ]

            async def once(session: int) -> str:
                decoder = decoders[session]  # noqa: B023 (awaited in this turn of the loop)
                return await decoder.push(ids[decoder.total_tokens % len(ids)])  # noqa: B023 (the same)

            taken = await timed(n_sessions, given.seconds, server, once)
            await asyncio.gather(*(decoder.close() for decoder in decoders))
        memory = [f"{each:,.0f}" if n_sessions >= 1000 else "" for each in grown]
        print(
            f"| {n_sessions:,} | {'shared' if joins else 'own'} | {taken.rate:,.0f} | {taken.client_us:,.1f} "
            f"| {taken.server_us:,.1f} | {memory[0]} | {memory[1]} |",
            flush=True,
        )


async def compare_lone_push(target: str, given: argparse.Namespace) -> None:
    """The latency of one session's pushes."""
    latencies: dict[bool, list[float]] = {True: [], False: []}
    async with (
        tokend.AsyncClient(target, channel_options=_CHANNEL) as joined,
        tokend.AsyncClient(target, channel_options=_CHANNEL, join_calls=False) as separate,
        joined.decoder() as shared,
        separate.decoder() as own,
    ):
        token_id = (await joined.encode("a", add_special_tokens=False)).ids[0]
        for _ in range(given.lone_calls):
            for joins, decoder in ((True, shared), (False, own)):
                start_s = time.perf_counter()
                await decoder.push(token_id)
                latencies[joins].append(time.perf_counter() - start_s)
    print("\nA lone push, latency in us\n\n| stream | p50 | p90 |\n|---|---|---|")
    for joins, each in latencies.items():
        each.sort()
        p50, p90 = each[len(each) // 2] * 1e6, each[len(each) * 9 // 10] * 1e6
        print(f"| {'shared' if joins else 'own'} | {p50:,.0f} | {p90:,.0f} |")


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
        f"tokend {tokend.__version__}",
    )
    return "; ".join(parts)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure the calls that AsyncClient joins.")
    parser.add_argument("--callers", type=int, default=256, help="callers at a time (default: 256)")
    parser.add_argument("--characters", type=int, default=200, help="length of a text (default: 200)")
    parser.add_argument("--sessions", type=int, default=10_000, help="open decoders (default: 10,000)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each pass (default: 3)")
    parser.add_argument("--rounds", type=int, default=3, help="passes of each way (default: 3)")
    parser.add_argument(
        "--lone-calls", type=int, default=1000, help="calls for each latency (default: 1,000)"
    )
    parser.add_argument("flags", nargs="*", metavar="FLAG", help="flags of the server, after --")
    return parser.parse_args()


def main() -> None:
    """Measure, and print tables in Markdown."""
    given = arguments()
    with served(given.flags) as (target, server, ready):
        print(machine(), ready, sep="\n")
        asyncio.run(compare_encode(target, server, given))
        asyncio.run(compare_lone_push(target, given))
        asyncio.run(compare_decoders(target, server, given))


if __name__ == "__main__":
    main()
