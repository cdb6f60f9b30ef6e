"""Small calls beside large ones: what a text of 1 MB does to the others' waiting.

python -m benchmarks.beside TARGET SEED        sends large texts, one after the other, until it is stopped
"""

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from benchmarks import texts
from benchmarks.measure import in_turn, median_ratio, percentile
from benchmarks.results import Row, Sizes, Target
from benchmarks.servers import ROOT, Server, prepare, tokenizer_file
from benchmarks.servers import tokend as serve
from benchmarks.small_calls import FRONTS

import tokend

__all__ = ["compare"]

_TARGET = Target(at_least=5, aim=2)
_CHARACTERS = 200
_LARGE_BYTES = 1_000_000
_LARGE_CHARACTERS = 2_000
_PAUSE_S = 0.001
"""Between two small calls, so that they come at all times of a large one."""


def compare(sizes: Sizes) -> Iterator[Row]:
    """p99 of small Encode calls while another process encodes texts of 1 MB, against alone, for both fronts."""
    file = tokenizer_file(sizes.file)
    if sizes.verify:
        prepare(file)
    for front in FRONTS:
        with serve(file, "--front", front) as server, tokend.Client(server.target) as client:

            def alone(n: int, client: tokend.Client = client) -> list[float]:
                return _waits_s(client, n, sizes.latency_seconds)

            def beside(n: int, client: tokend.Client = client, server: Server = server) -> list[float]:
                with _large_texts(server, n + 1):
                    return _waits_s(client, n, sizes.latency_seconds)

            waits_s = in_turn(min(3, sizes.rounds), {"alone": alone, "beside": beside})
        p99_us = {way: [percentile(each, 0.99) * 1e6 for each in passes] for way, passes in waits_s.items()}
        p50_us = {way: median(median(each) for each in passes) * 1e6 for way, passes in waits_s.items()}
        yield Row(
            number=8,
            what=f"p99 of small Encode calls beside texts of 1 MB, against alone, {front} front",
            value=median_ratio(p99_us["beside"], p99_us["alone"]),
            target=_TARGET,
            note=(
                f"p99 {median(p99_us['beside']) / 1000:.1f} ms against {median(p99_us['alone']) / 1000:.1f} ms, "
                f"p50 {p50_us['beside'] / 1000:.1f} ms against {p50_us['alone'] / 1000:.1f} ms; "
                f"engine {server.engine}"
            ),
            figures={"p99_us": p99_us, "p50_us": p50_us},
        )


def _waits_s(client: tokend.Client, n: int, seconds: float) -> list[float]:
    found = []
    fresh = texts.fresh(_CHARACTERS, n + 1)
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        text = next(fresh)
        start_s = time.perf_counter()
        client.encode(text)
        found.append(time.perf_counter() - start_s)
        time.sleep(_PAUSE_S)
    return found


@contextmanager
def _large_texts(server: Server, seed: int) -> Iterator[None]:
    """Keep one large call in work as long as the block lasts."""
    command = [sys.executable, "-m", "benchmarks.beside", server.target, str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError("the sender of large texts did not start")
            yield
            if process.poll() is not None:
                raise RuntimeError("the sender of large texts has ended")
        finally:
            process.kill()


def main() -> None:
    """Send large texts."""
    target, seed = sys.argv[1], int(sys.argv[2])
    fresh = texts.fresh(_LARGE_CHARACTERS, seed)
    with tokend.Client(target) as client:
        for n in itertools.count():
            parts, n_bytes = [], 0
            while n_bytes < _LARGE_BYTES:
                parts.append(next(fresh))
                n_bytes += len(parts[-1].encode())
            client.encode("\n".join(parts))
            if n == 0:
                print("sent", flush=True)


if __name__ == "__main__":
    main()
