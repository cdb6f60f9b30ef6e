"""Small unary calls: against an echo of the same bytes, against the peer, and joined by AsyncClient."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import median
from typing import Any

import grpc
import grpc.aio
from benchmarks import echo as echoes
from benchmarks import texts
from benchmarks.call_load import run_calls
from benchmarks.measure import in_turn, median_ratio, two_cores
from benchmarks.peer import VERSION, PeerMissing, body, install, peer, post, run_http, tokens
from benchmarks.results import Row, Sizes, Target
from benchmarks.servers import Server, echo, prepare, tokenizer_file
from benchmarks.servers import tokend as serve

import tokend
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import tokenizer_service_pb2_grpc as pb_grpc
from tokend.v1 import types_pb2

__all__ = ["compare_batches", "compare_joined", "compare_with_echo", "compare_with_peer"]

FRONTS = ("grpcio", "native")
_ENCODE = "/tokend.v1.TokenizerService/Encode"
_BATCH_ENCODE = "/tokend.v1.TokenizerService/BatchEncode"
_CHARACTERS = 200
_IN_FLIGHT = 64
_CALLERS = 256
_BATCH_TEXTS, _BATCH_CHARACTERS = 256, 2_000
_BATCHES_IN_FLIGHT = 2
_WARM_UP_S = 1.0
_OPTIONS = types_pb2.EncodeOptions(id_format=types_pb2.ID_FORMAT_PACKED)
"""As the clients ask."""
_ECHO_TARGET = Target(at_least=0.75, aim=0.95)
_PEER_TARGETS = {"grpcio": Target(at_least=0.7, aim=0.9), "native": Target(at_least=2, aim=4)}
_BATCH_TARGET = Target(at_least=5, aim=10)
_JOINED_TARGET = Target(at_least=8, aim=20)
_CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 << 20))


def encode_requests(n: int, seed: int) -> list[bytes]:
    """Fresh Encode requests, as bytes."""
    fresh = texts.take(n, _CHARACTERS, seed)
    return [pb.EncodeRequest(text=text, options=_OPTIONS).SerializeToString() for text in fresh]


def calls_per_cpu_s(server: Server, method: str, sizes: Sizes, seed: int) -> float:
    """Calls for each processor second of a server that has as much to do as it can."""
    # The first pass starts threads, each with tables of its own.
    seconds = sizes.seconds if seed else min(_WARM_UP_S, sizes.seconds)
    requests = encode_requests(sizes.calls, seed)
    before_s = server.tree.cpu_s()
    load = run_calls(server.target, method, requests, seconds=seconds)
    return load.n_done / (server.tree.cpu_s() - before_s)


def compare_with_echo(sizes: Sizes) -> Iterator[Row]:
    """Encode of 200 characters against an echo of the same bytes, for both fronts; the servers have one core."""
    core, _ = two_cores()
    file = tokenizer_file(sizes.file)
    if sizes.verify:
        prepare(file, core=core)
    for front in FRONTS:
        yield _compare_front(front, core, sizes)


def _compare_front(front: str, core: int, sizes: Sizes) -> Row:
    with serve(tokenizer_file(sizes.file), "--front", front, core=core) as server:
        reply_bytes = _usual_reply_bytes(server)
        with echo(front, reply_bytes, core=core) as other:
            rates = in_turn(
                sizes.rounds,
                {
                    "encode": lambda n: calls_per_cpu_s(server, _ENCODE, sizes, n + 1),
                    "echo": lambda n: calls_per_cpu_s(other, echoes.UNARY, sizes, n + 1),
                },
            )
    medians = {way: median(each) for way, each in rates.items()}
    return Row(
        number=2,
        what=f"Encode of 200 characters against an echo, {front} front",
        value=median_ratio(rates["encode"], rates["echo"]),
        target=_ECHO_TARGET,
        note=(
            f"{medians['encode']:,.0f} calls a server-CPU second ({1e6 / medians['encode']:.0f} us each) against "
            f"{medians['echo']:,.0f} ({1e6 / medians['echo']:.0f} us); engine {server.engine}"
        ),
        figures={"calls_per_cpu_s": rates, "reply_bytes": reply_bytes, "engine": server.engine},
    )


def _usual_reply_bytes(server: Server) -> int:
    with grpc.insecure_channel(server.target) as channel:
        call = channel.unary_unary(_ENCODE)
        return int(median(len(call(request)) for request in encode_requests(100, 99)))


def compare_with_peer(sizes: Sizes) -> Iterator[Row]:
    """Encode of 200 fresh characters against smg's /v1/tokenize; each server has one core, its callers the other."""
    core, other_core = two_cores()
    file = tokenizer_file(sizes.file)
    if sizes.verify:
        prepare(file, core=core)
        install()
    with ExitStack() as stack:
        gateway = stack.enter_context(peer(file, core=core))
        servers = {front: stack.enter_context(serve(file, "--front", front, core=core)) for front in FRONTS}
        _check_same_ids(gateway, servers["grpcio"])

        def call_peer(n: int) -> float:
            bodies = [body(text) for text in texts.take(sizes.calls, _CHARACTERS, n + 1)]
            before_s = gateway.tree.cpu_s()
            load = run_http(gateway, bodies, seconds=sizes.seconds, connections=_IN_FLIGHT, core=other_core)
            return load.n_done / (gateway.tree.cpu_s() - before_s)

        ways: dict[str, Callable[[int], float]] = {"smg": call_peer}
        for front, server in servers.items():
            ways[front] = lambda n, server=server: calls_per_cpu_s(server, _ENCODE, sizes, n + 1)
        rates = in_turn(sizes.rounds, ways)
    medians = {way: median(each) for way, each in rates.items()}
    for front in FRONTS:
        yield Row(
            number=3,
            what=f"Encode of 200 fresh characters against smg {VERSION}, {front} front",
            value=median_ratio(rates[front], rates["smg"]),
            target=_PEER_TARGETS[front],
            note=(
                f"{medians[front]:,.0f} calls a server-CPU second against {medians['smg']:,.0f}; "
                f"engine {servers[front].engine}"
            ),
            figures={"calls_per_cpu_s": rates},
        )


def compare_batches(sizes: Sizes) -> Iterator[Row]:
    """BatchEncode of 256 x 2,000 characters against smg; each server has one core, its callers the other."""
    core, _ = two_cores()
    file = tokenizer_file(sizes.file)
    if sizes.verify:
        prepare(file, core=core)
        install()
    with ExitStack() as stack:
        gateway = stack.enter_context(peer(file, core=core))
        server = stack.enter_context(serve(file, core=core))
        channel = stack.enter_context(grpc.insecure_channel(server.target, options=_CHANNEL))
        pool = stack.enter_context(ThreadPoolExecutor(_BATCHES_IN_FLIGHT))
        call = channel.unary_unary(_BATCH_ENCODE)

        def batches(n: int) -> list[list[str]]:
            fresh = texts.fresh(_BATCH_CHARACTERS, n + 1)
            return [list(itertools.islice(fresh, _BATCH_TEXTS)) for _ in range(sizes.batches)]

        def megabytes_per_cpu_s(
            one: Server, send: Callable[[bytes], object], made: list[bytes], n: int
        ) -> float:
            before_s = one.tree.cpu_s()
            list(pool.map(send, made))
            took_s = one.tree.cpu_s() - before_s
            return sum(len(text.encode()) for batch in batches(n) for text in batch) / 1e6 / took_s

        def encode(n: int) -> float:
            made = [
                pb.BatchEncodeRequest(texts=each, options=_OPTIONS).SerializeToString() for each in batches(n)
            ]
            return megabytes_per_cpu_s(server, call, made, n)

        def encode_by_peer(n: int) -> float:
            made = [body(each) for each in batches(n)]
            return megabytes_per_cpu_s(gateway, lambda each: post(gateway, "/v1/tokenize", each), made, n)

        rates = in_turn(sizes.rounds, {"tokend": encode, "smg": encode_by_peer})
    medians = {way: median(each) for way, each in rates.items()}
    yield Row(
        number=4,
        what=f"BatchEncode, MB a server-CPU second, against smg {VERSION}",
        value=median_ratio(rates["tokend"], rates["smg"]),
        target=_BATCH_TARGET,
        note=f"{medians['tokend']:.0f} MB against {medians['smg']:.1f} MB; engine {server.engine}",
        figures={"mb_per_cpu_s": rates},
    )


def _check_same_ids(gateway: Server, server: Server) -> None:
    """A peer that does something else would be no measure."""
    with tokend.Client(server.target) as client:
        for text in texts.take(20, _CHARACTERS, 98):
            if client.encode(text).ids != tokens(gateway, text):
                raise PeerMissing(f"smg {VERSION} gives other ids for this file")


def compare_joined(sizes: Sizes) -> Iterator[Row]:
    """AsyncClient.encode at 256 callers against unary calls of the raw stub, in one process; all have both cores."""
    file = tokenizer_file(sizes.file)
    if sizes.verify:
        prepare(file)
    with serve(file) as server:
        rates = asyncio.run(_joined_and_raw(server, sizes))
    medians = {way: median(each) for way, each in rates.items()}
    yield Row(
        number=5,
        what="AsyncClient.encode at 256 callers against raw stub calls",
        value=median_ratio(rates["joined"], rates["raw"]),
        target=_JOINED_TARGET,
        note=f"{medians['joined']:,.0f} calls a second against {medians['raw']:,.0f}; engine {server.engine}",
        figures={"calls_per_s": rates},
    )


async def _joined_and_raw(server: Server, sizes: Sizes) -> dict[str, list[float]]:
    async with (
        grpc.aio.insecure_channel(server.target, options=_CHANNEL) as channel,
        tokend.AsyncClient(server.target) as client,
    ):
        stub: Any = pb_grpc.TokenizerServiceStub(channel)
        ways: dict[str, Callable[[str], Awaitable[object]]] = {
            "raw": lambda text: stub.Encode(pb.EncodeRequest(text=text, options=_OPTIONS)),
            "joined": client.encode,
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for n in range(-1, sizes.rounds):
            for name in list(ways)[:: 1 if n % 2 else -1]:
                rate = await _calls_per_s(
                    ways[name], texts.take(sizes.calls, _CHARACTERS, n + 1), sizes.seconds
                )
                if n >= 0:
                    rates[name].append(rate)
        return rates


async def _calls_per_s(call: Callable[[str], Awaitable[object]], fresh: list[str], seconds: float) -> float:
    waiting = iter(fresh)
    n_done = 0
    start_s = time.perf_counter()
    end_s = start_s + seconds

    async def keep_calling() -> None:
        nonlocal n_done
        while time.perf_counter() < end_s and (text := next(waiting, None)) is not None:
            await call(text)
            n_done += 1

    await asyncio.gather(*(keep_calling() for _ in range(_CALLERS)))
    return n_done / (time.perf_counter() - start_s)
