"""All comparisons: `make bench`, or a few of them in small with `make bench-smoke`.

    python -m benchmarks                        all, about 8 minutes, the first time 5 more for verification
    python -m benchmarks --only 1,3             these rows alone
    python -m benchmarks --smoke                all of the code, on very little of everything
    python -m benchmarks --write-pages          and put the tables into docs/benchmarks.md and README.md

Each comparison runs in a process of its own, with a time limit; one that fails is a line in the table. The exit code is
1 if one failed. A missed target is no failure: it says something of the machine too.
"""

import argparse
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import beside, bulk, footprint, report, small_calls, streams
from benchmarks.peer import PeerMissing
from benchmarks.results import FULL, SMOKE, Row, Sizes
from benchmarks.servers import CACHE, ROOT


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One line of the table to reach, or some of the same kind."""

    title: str
    run: Callable[[Sizes], Iterator[Row]]
    limit_s: float = 120.0
    """Without what is made once: verdicts, the peer."""


COMPARISONS = {
    1: Comparison(title="bulk over the wire", run=bulk.compare, limit_s=240),
    2: Comparison(title="Encode against an echo", run=small_calls.compare_with_echo),
    3: Comparison(title="Encode against smg", run=small_calls.compare_with_peer),
    4: Comparison(title="BatchEncode against smg", run=small_calls.compare_batches),
    5: Comparison(title="AsyncClient.encode against raw stub calls", run=small_calls.compare_joined),
    6: Comparison(title="StreamDecode of 256 sequences", run=streams.compare_shared_stream),
    7: Comparison(title="a lone push against an echo stream", run=streams.compare_lone_push),
    8: Comparison(title="small calls beside large ones", run=beside.compare),
    9: Comparison(title="memory of workers", run=footprint.compare_workers),
    10: Comparison(title="start to ready", run=footprint.compare_start),
    11: Comparison(title="memory after much text", run=footprint.compare_memory_growth, limit_s=240),
    12: Comparison(title="one very long sequence", run=streams.compare_long_sequence),
}
_ONCE_S = 900.0
_ENDED_WITHIN_S = 5.0


def measured(number: int, *, smoke: bool) -> list[Row]:
    """Run one comparison in a process group of its own, so that nothing of it is left behind."""
    comparison = COMPARISONS[number]
    with TemporaryDirectory() as folder:
        place = Path(folder) / "rows"
        command = [sys.executable, "-m", "benchmarks", "--one", str(number), "--rows-to", str(place)]
        process = subprocess.Popen(
            [*command, *(["--smoke"] if smoke else [])], cwd=ROOT, start_new_session=True
        )
        problem = ""
        try:
            process.wait(comparison.limit_s + (0 if smoke else _ONCE_S))
        except subprocess.TimeoutExpired:
            problem = "it took too long"
        finally:
            _end(process)
        rows: list[Row] = pickle.loads(place.read_bytes()) if place.exists() else []
    if problem or not rows:
        note = problem or f"its process ended with {process.returncode}"
        rows.append(Row(number=number, what=comparison.title, value=None, note=f"failed: {note}"))
    return rows


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End what is left of a comparison's own process group."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            break
        try:
            process.wait(_ENDED_WITHIN_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def run_one(number: int, sizes: Sizes, place: Path) -> None:
    """Run one comparison here, and write its rows after each of them."""
    rows: list[Row] = []
    comparison = COMPARISONS[number]
    try:
        for row in comparison.run(sizes):
            rows.append(row)
            place.write_bytes(pickle.dumps(rows))
    except PeerMissing as missing:
        rows.append(Row(number=number, what=comparison.title, value=None, note=f"left out: {missing}"))
    except Exception as failure:  # noqa: BLE001 (whatever it is, the others go on)
        traceback.print_exc()
        note = f"failed: {type(failure).__name__}: {' '.join(str(failure).split())[:200]}"
        rows.append(Row(number=number, what=comparison.title, value=None, note=note))
    place.write_bytes(pickle.dumps(rows))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Compare tokend with others.")
    numbers = ",".join(map(str, COMPARISONS))
    parser.add_argument(
        "--smoke", action="store_true", help="very little of everything: only whether it runs"
    )
    parser.add_argument("--only", default=numbers, metavar="N,...", help=f"rows (default: {numbers})")
    parser.add_argument("--write-pages", action="store_true", help="put the tables into the docs")
    parser.add_argument("--json", type=Path, default=CACHE / "results.json", help="where all figures go")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rows-to", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.only = [int(number) for number in given.only.split(",")]
    if unknown := set(given.only) - set(COMPARISONS):
        parser.error(f"no such row: {sorted(unknown)}; there are {numbers}")
    return given


def main() -> int:
    """Run them all, and print what they came to."""
    given = arguments()
    CACHE.mkdir(parents=True, exist_ok=True)
    if given.one:
        run_one(given.one, SMOKE if given.smoke else FULL, given.rows_to)
        return 0
    facts = report.machine()
    rows: list[Row] = []
    for number in given.only:
        start_s = time.perf_counter()
        found = measured(number, smoke=given.smoke)
        took_s = time.perf_counter() - start_s
        print(f"{number:2} {COMPARISONS[number].title}: {took_s:.0f} s", file=sys.stderr, flush=True)
        rows += found
    print("\n".join(f"- {name}: {fact}" for name, fact in facts.items()), report.table(rows), sep="\n\n")
    content = {"machine": facts, "rows": [{**asdict(row), "verdict": row.verdict} for row in rows]}
    given.json.write_text(json.dumps(content, indent=1), encoding="utf-8")
    print(f"\nall figures: {os.path.relpath(given.json)}")
    if given.write_pages:
        report.write_pages(rows, facts)
    return 1 if any(row.note.startswith("failed") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
