"""The table, as text for a terminal and as Markdown for the docs; and the machine that it is from."""

import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import peer
from benchmarks.pages import ROOT, replace
from benchmarks.results import Row
from benchmarks.sizing import write_sizing

__all__ = ["machine", "table", "write_pages"]

_PACKAGES = (
    *("tokend", "tokenizers", "fastokens", "tiktoken"),
    *("grpcio", "pygrpc-native", "protobuf", "numpy"),
)
_MARK = "benchmarks"
_IN_README = {
    "bulk over the wire, o200k, against encode_batch_fast in process",
    "bulk over the wire, llama3, against encode_batch_fast in process",
    "bulk over the wire, gpt2, against encode_batch_fast in process",
    "AsyncClient.encode at 256 callers against raw stub calls",
    "StreamDecode, 256 sequences a message: tokens a server-CPU second",
}


def machine() -> dict[str, str]:
    """Where and with what it is measured."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name")), "unknown")
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": f"{model}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{memory_bytes / 2**30:.0f} GB",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "system": f"Linux {platform.release()}, {platform.python_implementation()} {platform.python_version()}",
        "versions": ", ".join([*map(_versioned, _PACKAGES), f"smg {peer.VERSION}"]),
    }


def _versioned(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} not installed"


def table(rows: Sequence[Row]) -> str:
    """All rows, in Markdown."""
    lines = ["| | what | measured | at least | aim | | figures |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        measured = "" if row.value is None else row.shown(row.value)
        goals = [row.shown(row.target.at_least), row.shown(row.target.aim)] if row.target else ["", ""]
        lines.append(_line(str(row.number), row.what, measured, *goals, row.verdict, row.note))
    return "\n".join(lines)


def _short_table(rows: Sequence[Row], facts: dict[str, str]) -> str:
    lines = [
        _line(row.what, row.shown(row.value))
        for row in rows
        if row.value is not None and (row.what in _IN_README or row.number in {3, 4, 10})
    ]
    return "\n".join(
        [
            "| what | measured |",
            "|---|---|",
            *lines,
            "",
            f"{facts['date']}; {facts['processor']}; {facts['versions']}.",
        ]
    )


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def write_pages(rows: Sequence[Row], facts: dict[str, str]) -> None:
    """Put the tables between the marks of docs/benchmarks.md, README.md and, of what follows from them, deploying.md."""
    listed = "\n".join(f"- {name}: {fact}" for name, fact in facts.items())
    replace(ROOT / "docs" / "benchmarks.md", _MARK, f"{listed}\n\n{table(rows)}")
    replace(ROOT / "README.md", _MARK, _short_table(rows, facts))
    write_sizing()
