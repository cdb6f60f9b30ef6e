"""`make reliability-table`: put the server through every fault at length, and write the tables of docs/reliability.md.

    python -m tests.faults.report [--print] [--no-run]

The second table is that of the last `make soak`, if there was one on this machine. With `--print` the page is left
alone; with `--no-run` the results of the last run are taken. The exit code is that of the tests.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.soak.__main__ import FOLDER as SOAK_FOLDER
from tests.soak.__main__ import table as soak_table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / ".cache" / "faults" / "results.jsonl"
FAULTS, SOAK = ("<!-- faults -->", "<!-- end of faults -->"), ("<!-- soak -->", "<!-- end of soak -->")


def run_tests() -> int:
    """Run the fault tests in their long form, and gather what they tell."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.unlink(missing_ok=True)
    env = {**os.environ, "TOKEND_TEST_FAULTS": "large", "TOKEND_TEST_FAULT_RESULTS": str(RESULTS)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/faults"], cwd=ROOT, env=env, check=False
    ).returncode


def faults_section(rows: Sequence[Mapping[str, str]]) -> str:
    """One row a fault; what both fronts have alike stands once."""
    lines = ["| fault | front | load | lost | afterwards |", "|---|---|---|---|---|"]
    faults = dict.fromkeys(row["fault"] for row in rows)
    for fault in faults:
        for row in (row for row in rows if row["fault"] == fault):
            cells = (row[name].replace("|", "\\|") for name in ("fault", "front", "load", "lost", "after"))
            lines.append("| " + " | ".join(cells) + " |")
    made = (
        f"Made by `make reliability-table` on {time.strftime('%Y-%m-%d', time.gmtime())}: tokend {version('tokend')}, "
        f"grpcio {version('grpcio')}, CPython {platform.python_version()}, {len(os.sched_getaffinity(0))} cores that "
        "were shared with other work."
    )
    return "\n".join([made, "", *lines])


def soak_section(found: Mapping[str, Any]) -> str:
    """What the last soak found."""
    turns = "; ".join(f"{name}: {count:,}" for name, count in found["turns"].items())
    engines = " and ".join(f"{count:,.0f} by {name}" for name, count in found["texts by engine"].items())
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    parts = ", ".join(str(part) for part in found["server's memory in parts of the time, MiB"])
    lines = [
        (
            f"Made by `make soak SOAK_MINUTES={found['minutes']:g}` on {found['date']}: {versions}, CPython "
            f"{found['python']}, {found['cores']} cores that were shared with other work."
        ),
        "",
        (
            f"- Load: {found['turns a second']} turns a second; {100 * found['server, share of a core']:.0f} % of a core "
            f"for the server; {found['turns before']:,} turns before, without a pause. Turns: {turns}."
        ),
        f"- Texts: {engines}; shadow checks that differed: {found['shadow checks that differed']:.0f}.",
        (
            f"- Wrong answers: {found['wrong answers']}. Lost calls: {found['lost']}. Left open while all held still: "
            f"{found['left open']}. Scrapes: {found['scrapes']:,}, all answered."
        ),
        f"- The server's memory in twelve parts of the time, MiB: {parts}.",
        "",
        soak_table(found),
    ]
    return "\n".join(lines)


def placed(page: str, markers: tuple[str, str], section: str) -> str:
    """The page with a section between its markers."""
    before, begin, rest = page.partition(markers[0])
    _, end, after = rest.partition(markers[1])
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no place {markers[0]}")
    return f"{before}{begin}\n\n{section}\n\n{end}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.report")
    parser.add_argument("--print", action="store_true", help="leave docs/reliability.md alone")
    parser.add_argument("--no-run", action="store_true", help="take the results of the last run")
    options = parser.parse_args()
    code = 0 if options.no_run else run_tests()
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    page = placed(PAGE.read_text(encoding="utf-8"), FAULTS, faults_section(rows))
    soaked = SOAK_FOLDER / "last.json"
    if soaked.exists():
        page = placed(page, SOAK, soak_section(json.loads(soaked.read_text(encoding="utf-8"))))
    if options.print:
        print(page)
    else:
        PAGE.write_text(page, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
