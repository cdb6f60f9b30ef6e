"""`make soak`: an hour of mixed load at a modest rate, every answer checked, and nothing may grow.

    python -m tests.soak [--minutes N] [--turns-a-second N] [--seed N] [SERVER FLAG ...]

Two processes of callers, one with `Client` and one with `AsyncClient`, encode, count, decode, stream, give calls up,
leave streams in the middle and ask for what is refused, and compare each answer with the reference; first many turns
without a pause, so that caches and pools are full, then for the time that was asked for. Now and then all
hold still: then the server must have nothing open, and its memory, threads and descriptors are read. The exit code is 1
if an answer was wrong, a call was lost, something stayed open, or something grew.
"""

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from tests.integration.wire import in_flight
from tests.servers import RunningServer
from tests.soak.callers import Callers, Tally
from tests.soak.census import Held, cpu_seconds, family, held_by
from tests.soak.judgement import Comparison, compare
from tokend_server.data import default_tokenizer_path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".cache" / "soak"
"""Verdicts on the fast engine, and the result of the last soak. Not in git."""
_SCRAPE_EVERY_S = 5.0
_AT_REST_WITHIN_S = 10.0
_WARM_WITHIN_S = 1200.0
_PARTS = 12


@dataclass(kw_only=True)
class Soak:
    """What a soak has seen."""

    server: list[Held] = field(default_factory=list)
    callers: list[Held] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    left_open: list[str] = field(default_factory=list)
    """What the server still had open while nobody asked for anything."""
    server_cpu_share: float = 0.0
    """Of one core."""
    callers_cpu_share: float = 0.0
    took_s: float = 0.0
    warm_up: int = 0
    """Turns before the time began."""
    n_scrapes: int = 0

    def comparisons(self) -> list[Comparison]:
        """Early and late, of the server and of its callers."""
        return [*compare("server", self.server), *compare("callers", self.callers)]

    def memory_in_parts(self) -> list[int]:
        """The server's memory in each twelfth of the time, its median, in MiB; shows whether it levels off."""
        n = len(self.server)
        bounds = [round(part * n / _PARTS) for part in range(_PARTS + 1)]
        return [
            round(median(held.memory_bytes for held in self.server[first:last]) / 2**20)
            for first, last in pairwise(bounds)
            if first < last
        ]

    def faults(self) -> list[str]:
        """All that must not be, in words; none is a soak that has gone well."""
        grown = [
            f"{each.what} grew from {each.early:.1f} to {each.late:.1f}"
            for each in self.comparisons()
            if each.grew
        ]
        wrong = [f"wrong answer: {each}" for each in self.tally.wrong]
        lost = [f"lost: {each}" for each in self.tally.lost]
        return [*wrong, *lost, *(f"left open: {each}" for each in self.left_open), *grown]


def soak(server: RunningServer, callers: Callers, *, minutes: float, n_samples: int = 120) -> Soak:
    """Let callers ask for so long, and look at the server while they hold still."""
    seen = Soak(warm_up=callers.hold(within_s=_WARM_WITHIN_S).taken.total())
    callers.go_on()
    started_s = time.monotonic()
    server_cpu_s, callers_cpu_s = cpu_seconds(family(server.process.pid)), cpu_seconds(callers.pids)
    period_s = minutes * 60 / n_samples
    for n in range(n_samples):
        due_s = started_s + (n + 1) * period_s
        while (left_s := due_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _SCRAPE_EVERY_S))
            server.get("/metrics")
            seen.n_scrapes += 1
        seen.tally = callers.hold()
        seen.left_open += _not_at_rest(server)
        seen.server.append(held_by(family(server.process.pid)))
        seen.callers.append(held_by(callers.pids))
        callers.go_on()
    seen.took_s = time.monotonic() - started_s
    seen.server_cpu_share = (cpu_seconds(family(server.process.pid)) - server_cpu_s) / seen.took_s
    seen.callers_cpu_share = (cpu_seconds(callers.pids) - callers_cpu_s) / seen.took_s
    return seen


def _not_at_rest(server: RunningServer) -> list[str]:
    """What stays open although nobody asks; calls that were given up may take a moment to end."""
    deadline_s = time.monotonic() + _AT_REST_WITHIN_S
    while (still := in_flight(server)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return [f"{name}: {value:g}" for name, value in still.items()]


def result(seen: Soak, server: RunningServer, *, minutes: float, turns_a_second: float) -> dict[str, Any]:
    """Everything that is told of a soak, for JSON."""
    n_turns = seen.tally.taken.total()
    engines = {
        engine: server.metric("tokend_engine_texts_total", engine=engine)
        for engine in ("fastokens", "reference")
    }
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "minutes": minutes,
        "turns a second": round((n_turns - seen.warm_up) / seen.took_s, 2),
        "turns before": seen.warm_up,
        "asked for": turns_a_second,
        "server, share of a core": round(seen.server_cpu_share, 3),
        "callers, share of a core": round(seen.callers_cpu_share, 3),
        "turns": dict(seen.tally.taken.most_common()),
        "scrapes": seen.n_scrapes,
        "wrong answers": len(seen.tally.wrong),
        "lost": len(seen.tally.lost),
        "left open": len(seen.left_open),
        "texts by engine": engines,
        "shadow checks that differed": server.metric("tokend_shadow_checks_total", result="different"),
        "compared": [{**asdict(each), "grew": each.grew} for each in seen.comparisons()],
        "server's memory in parts of the time, MiB": seen.memory_in_parts(),
        "faults": seen.faults(),
        "versions": {name: version(name) for name in ("tokend", "tokenizers", "fastokens", "grpcio")},
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
    }


def table(found: dict[str, Any]) -> str:
    """What grew and what did not, as Markdown."""
    lines = ["| | early | late | may grow by | |", "|---|---:|---:|---:|---|"]
    for each in found["compared"]:
        verdict = "grew" if each["grew"] else "flat"
        figures = " | ".join(f"{each[name]:.1f}" for name in ("early", "late", "allowed"))
        lines.append(f"| {each['what']} | {figures} | {verdict} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--turns-a-second", type=float, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", type=Path, default=FOLDER / "last.json", help="where the JSON goes")
    options, flags = parser.parse_known_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    flags = ["--state-dir", str(FOLDER / "state"), "--log-level", "warning", *flags]
    server = RunningServer(*flags)
    callers = Callers(
        server.grpc, default_tokenizer_path(), turns_a_second=options.turns_a_second, seed=options.seed
    )
    try:
        seen = soak(server, callers, minutes=options.minutes)
        found = result(seen, server, minutes=options.minutes, turns_a_second=options.turns_a_second)
    finally:
        callers.stop()
        exit_code = server.stop()
    if exit_code:
        found["faults"].append(f"the server ended with {exit_code}")
    options.result.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(found), json.dumps(found, indent=1), sep="\n\n")
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
