"""How many cores and pods a load takes, by the rows of docs/benchmarks.md.

    python -m benchmarks.sizing        puts the table into docs/deploying.md

`python -m benchmarks --write-pages` does it too. A core is planned to be busy for 60 % of the time: what is left is for
peaks, for the other pods' work while one restarts, and since a busy server answers late.
"""

import math
import re
from dataclasses import dataclass

from benchmarks.pages import ROOT, replace

__all__ = ["sizing_table", "write_sizing"]

_BUSY = 0.6
_POD_CORES = 2
_MARK = "sizes"


@dataclass(frozen=True, kw_only=True)
class _Load:
    """One line: what has to be done each second, and what a core does in one, by a row."""

    load: str
    how: str
    row: int
    wanted: float
    a_core: float
    unit: str

    def line(self) -> str:
        """The line of the table."""
        cores = math.ceil(self.wanted / self.a_core / _BUSY * 10) / 10
        pods = math.ceil(cores / _POD_CORES)
        return f"| {self.load} | {self.how} | {self.row} | {self.a_core:,.0f} {self.unit} | {cores:g} | {pods} + 1 |"


def _cells(benchmarks: str, what: str) -> tuple[str, str]:
    """The measured value and the figures of a row."""
    for line in benchmarks.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 7 and cells[1].startswith(what):
            return cells[2], cells[6]
    raise LookupError(f"docs/benchmarks.md has no row {what!r}")


def _number(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    if found is None:
        raise LookupError(f"no {pattern!r} in {text!r}")
    return float(found[1].replace(",", ""))


def sizing_table(benchmarks: str) -> str:
    """The table, from the text of docs/benchmarks.md."""
    _, bulk = _cells(benchmarks, "bulk over the wire, llama3")
    _, joined = _cells(benchmarks, "AsyncClient.encode at 256 callers")
    _, alone = _cells(benchmarks, "Encode of 200 characters against an echo, grpcio front")
    _, native = _cells(benchmarks, "Encode of 200 characters against an echo, native front")
    decoded, _ = _cells(benchmarks, "StreamDecode, 256 sequences a message")
    _, memory = _cells(benchmarks, "resident memory of each further worker")
    calls = r"([\d,]+) calls a server-CPU second"
    # In rows 1 and 5 server and client had both cores in common.
    a_core_bulk = _number(bulk, r"([\d.]+) M tokens/s") * 1e6 / 2
    loads = [
        _Load(
            load="1,000,000 tokens a second of training text",
            how="`encode_stream`; the caller's own work is in the figure",
            row=1,
            wanted=1e6,
            a_core=a_core_bulk,
            unit="tokens",
        ),
        _Load(
            load="20,000 texts of 200 characters a second",
            how="`AsyncClient.encode`, joined; the caller's own work is in the figure",
            row=5,
            wanted=20_000,
            a_core=_number(joined, r"([\d,]+) calls a second") / 2,
            unit="texts",
        ),
        _Load(
            load="the same",
            how='one Encode each, `front = "native"`',
            row=2,
            wanted=20_000,
            a_core=_number(native, calls),
            unit="calls",
        ),
        _Load(
            load="the same",
            how='one Encode each, `front = "grpcio"`',
            row=2,
            wanted=20_000,
            a_core=_number(alone, calls),
            unit="calls",
        ),
        _Load(
            load="10,000 streams of 50 tokens a second each",
            how="decoders of AsyncClients, 256 sequences a message",
            row=6,
            wanted=500_000,
            a_core=_number(decoded, r"([\d,]+)"),
            unit="tokens",
        ),
    ]
    first = _number(memory, r"one worker ([\d,]+) MB")
    more = _number(memory, r"([\d,]+) MB for each more")
    return "\n".join(
        [
            "| load | how it travels | row | a core does, each second | cores | pods of 2 cores |",
            "|---|---|---|---|---|---|",
            *(each.line() for each in loads),
            "",
            f"Memory (row 9, o200k): {first:.0f} MB for the first worker of a pod and {more:.0f} MB for each further one.",
        ]
    )


def write_sizing() -> None:
    """Put the table into docs/deploying.md."""
    figures = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    replace(ROOT / "docs" / "deploying.md", _MARK, sizing_table(figures))


if __name__ == "__main__":
    write_sizing()
