"""Memory of workers and of long use, and the time that a start takes."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from benchmarks import texts
from benchmarks.measure import Memory, in_turn
from benchmarks.results import Row, Sizes, Target
from benchmarks.servers import Server, prepare, tokenizer_file
from benchmarks.servers import tokend as serve

import tokend

__all__ = ["compare_memory_growth", "compare_start", "compare_workers"]

_WORKER_TARGET = Target(at_least=0.40, aim=0.20, unit="%")
_START_TARGET = Target(at_least=2, aim=1, unit="s")
_GROWTH_TARGET = Target(at_least=0.10, aim=0.02, unit="%")
_CHARACTERS = 2_000
_CLIENTS = 16
"""Connections, so that each of a few workers gets some."""
_SHARE_BYTES = 400_000
_MB = 1 << 20


def compare_workers(sizes: Sizes) -> Iterator[Row]:
    """What each further worker adds to a server's memory once all have worked, against what one takes."""
    file = tokenizer_file(sizes.file)
    if sizes.verify:
        prepare(file)
    held: dict[int, Memory] = {}
    each: dict[int, list[Memory]] = {}
    for n_workers in (1, sizes.workers):
        with serve(file, "--workers", str(n_workers)) as server:
            _use(server, min(_SHARE_BYTES, sizes.bulk_bytes))
            held[n_workers], each[n_workers] = server.tree.memory(), server.tree.memory_of_each()
    further = (held[sizes.workers].pss - held[1].pss) / (sizes.workers - 1)
    yield Row(
        number=9,
        what="resident memory of each further worker against the first",
        value=further / held[1].pss,
        target=_WORKER_TARGET,
        note=(
            f"one worker {held[1].pss / _MB:.0f} MB, {sizes.workers} with their parent "
            f"{held[sizes.workers].pss / _MB:.0f} MB (PSS): {further / _MB:.0f} MB for each more"
        ),
        figures={
            "pss_mb": {n: memory.pss / _MB for n, memory in held.items()},
            "uss_mb_of_each": {n: [one.uss / _MB for one in found] for n, found in each.items()},
        },
    )


def _use(server: Server, n_bytes: int) -> None:
    """Let many connections encode, count and decode."""

    def work(n: int) -> None:
        # One client has its connections for itself.
        options = (("grpc.use_local_subchannel_pool", 1),)
        with tokend.Client(server.target, channel_options=options) as client:
            encoded = list(client.encode_stream(texts.take_bytes(n_bytes, _CHARACTERS, n)))
            for one in encoded[:20]:
                client.encode(client.decode(one.ids).text)

    with ThreadPoolExecutor(_CLIENTS) as pool:
        list(pool.map(work, range(_CLIENTS)))


def compare_start(sizes: Sizes) -> Iterator[Row]:
    """From the command to the ready line, with the verdict on disk; and to the first answer."""
    file = tokenizer_file(sizes.file)
    if sizes.verify:
        prepare(file)

    def start(_: int) -> tuple[float, float, float]:
        begun_s = time.perf_counter()
        with serve(file) as server:
            ready_s = time.perf_counter() - begun_s
            cpu_s = server.tree.cpu_s()
            with tokend.Client(server.target) as client:
                client.encode("Hello world")
            engines.add(server.engine)
            return ready_s, cpu_s, time.perf_counter() - begun_s

    engines: set[str] = set()
    found = in_turn(sizes.starts, {"start": start})["start"]
    ready_s, cpu_s, first_s = (median(values) for values in zip(*found, strict=True))
    yield Row(
        number=10,
        what=f"start to ready, {sizes.file}, verdict on disk",
        value=ready_s,
        target=_START_TARGET,
        note=f"{cpu_s:.2f} s of processor time; first answer after {first_s:.2f} s; engine {' '.join(engines)}",
        figures={"ready_cpu_first_s": found},
    )


def compare_memory_growth(sizes: Sizes) -> Iterator[Row]:
    """A server's memory after much distinct text, against after a tenth of it."""
    file = tokenizer_file(sizes.file)
    if sizes.verify:
        prepare(file)
    few, many = sizes.memory_bytes
    with serve(file) as server, tokend.Client(server.target) as client:
        idle = server.tree.memory()
        start_s = time.perf_counter()
        held = []
        for n_bytes, seed in ((few, 1), (many - few, 2)):
            for _ in client.encode_stream(texts.distinct(n_bytes, _CHARACTERS, seed)):
                pass
            held.append(server.tree.memory())
        took_s = time.perf_counter() - start_s
    yield Row(
        number=11,
        what=f"memory after {many / 1e6:,.0f} MB of distinct text against after {few / 1e6:,.0f} MB",
        value=held[1].pss / held[0].pss - 1,
        target=_GROWTH_TARGET,
        note=(
            f"{held[1].pss / _MB:.0f} MB against {held[0].pss / _MB:.0f} MB, {idle.pss / _MB:.0f} MB when it was ready; "
            f"took {took_s:.0f} s; engine {server.engine}"
        ),
        figures={"pss_mb": [memory.pss / _MB for memory in (idle, *held)]},
    )
