"""What a server and its callers hold: memory, threads and descriptors, read from /proc."""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Held", "cpu_seconds", "family", "held_by"]

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What some processes hold together."""

    memory_bytes: int
    """Resident; of pages that they share, each its share."""
    threads: int
    descriptors: int


def family(pid: int) -> list[int]:
    """A process and its living descendants, the parents first."""
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            found.extend(map(int, _text(children).split()))
    return found


def held_by(pids: Iterable[int]) -> Held:
    """Add up what these processes hold; one that has ended holds nothing."""
    memory_bytes = threads = descriptors = 0
    for pid in pids:
        folder = Path(f"/proc/{pid}")
        for line in _text(folder / "smaps_rollup").splitlines():
            if line.startswith("Pss:"):
                memory_bytes += int(line.split()[1]) * 1024
        threads += _entries(folder / "task")
        descriptors += _entries(folder / "fd")
    return Held(memory_bytes=memory_bytes, threads=threads, descriptors=descriptors)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor seconds that these processes have taken, and those of their children that have ended."""
    ticks = 0
    for pid in pids:
        fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS_A_SECOND


def _entries(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return sum(1 for _ in folder.iterdir())
    return 0


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
