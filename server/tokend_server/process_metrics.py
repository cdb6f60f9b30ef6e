"""What the kernel says of a server's processes: all of them together as `process_*`, each worker by itself.

prometheus_client tells the process that is scraped. With several workers that is none of those that work.
"""

import contextlib
import mmap
import os
import resource
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

__all__ = ["ProcessCollector", "ProcessTable", "cpu_seconds"]

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


class ProcessTable:
    """Which processes a server has, in memory that those that are forked later share."""

    def __init__(self, workers: Sequence[int], n_others: int = 0) -> None:
        """Make a table without processes.

        Args:
            workers: The workers' numbers, as the label `worker` has them. Their places come first.
            n_others: How many further places there are: processes that serve no calls.
        """
        self.workers = workers
        self.n_places = len(workers) + n_others
        memory = memoryview(mmap.mmap(-1, 16 * self.n_places))
        self._pids = memory[: 8 * self.n_places].cast("q")
        self._past_cpu_s = memory[8 * self.n_places :].cast("d")

    def began(self, place: int, pid: int) -> None:
        """Note the process that has a place from now on."""
        self._pids[place] = pid

    def ended(self, place: int, cpu_s: float) -> None:
        """Note that the process of a place has died, after so much CPU time."""
        self._pids[place] = 0
        self._past_cpu_s[place] += cpu_s

    def pid(self, place: int) -> int:
        """Return the process of a place, or 0."""
        return self._pids[place]

    def past_cpu_s(self, place: int) -> float:
        """Return the CPU time of the dead processes of a place."""
        return self._past_cpu_s[place]


class ProcessCollector(Collector):
    """Reads the processes of a table when it is scraped; what cannot be read is 0."""

    def __init__(self, table: ProcessTable) -> None:
        self._table = table
        self._shown_cpu_s = [0.0] * table.n_places

    def describe(self) -> Iterable[Metric]:
        """Yield the families without samples."""
        return (Metric(name, help_text, kind) for name, help_text, kind in _FAMILIES)

    def collect(self) -> Iterator[Metric]:
        """Yield every family as it is now."""
        table = self._table
        places = range(table.n_places)
        pids = [table.pid(place) for place in places]
        living = [pid for pid in pids if pid]
        # Shared pages count once; of a single process the usual figure is known better.
        memory = [_shared_out_bytes(pid) if len(living) > 1 else _resident_bytes(pid) for pid in pids]
        for place in places:
            # A process may have ended between the two figures: its time must not be missing for a moment.
            now_s = cpu_seconds(pids[place]) + table.past_cpu_s(place)
            self._shown_cpu_s[place] = max(self._shown_cpu_s[place], now_s)
        whole = (
            sum(self._shown_cpu_s),
            sum(memory),
            sum(map(_virtual_bytes, living)),
            sum(map(_open_descriptors, living)),
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            min(map(_start_time_s, living), default=0),
        )
        families = [Metric(name, help_text, kind) for name, help_text, kind in _FAMILIES]
        for family, value in zip(families, whole, strict=False):
            family.add_sample(family.name + ("_total" if family.type == "counter" else ""), {}, value)
        worker_cpu, worker_memory = families[len(whole) :]
        for place, worker in enumerate(table.workers):
            labels = {"worker": str(worker)}
            worker_cpu.add_sample(worker_cpu.name + "_total", labels, self._shown_cpu_s[place])
            worker_memory.add_sample(worker_memory.name, labels, memory[place])
        return iter(families)


_FAMILIES = (
    ("process_cpu_seconds", "CPU time of the server's processes, those that died included.", "counter"),
    ("process_resident_memory_bytes", "Memory of the server's processes, shared pages once.", "gauge"),
    ("process_virtual_memory_bytes", "Address space of the server's processes.", "gauge"),
    ("process_open_fds", "Open descriptors of the server's processes.", "gauge"),
    ("process_max_fds", "Most descriptors that one process may open.", "gauge"),
    ("process_start_time_seconds", "Unix time at which the server started.", "gauge"),
    ("tokend_worker_cpu_seconds", "CPU time of a worker, and of those that had its place before.", "counter"),
    ("tokend_worker_memory_bytes", "Memory of a worker, its share of what it shares with others.", "gauge"),
)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has taken, also one that has died and was not waited for; 0: no process."""
    fields = _stat(pid)
    return sum(map(int, fields[11:13])) / _TICKS_A_SECOND if fields else 0.0


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none where there is no such process."""
    # The name may hold anything, a parenthesis too.
    return _text(pid, "stat").rpartition(")")[2].split()


def _virtual_bytes(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[20]) if fields else 0


def _start_time_s(pid: int) -> float:
    fields = _stat(pid)
    return _boot_time_s() + int(fields[19]) / _TICKS_A_SECOND if fields else 0.0


def _boot_time_s() -> float:
    for line in _lines(_PROC / "stat"):
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0


def _resident_bytes(pid: int) -> int:
    fields = _text(pid, "statm").split()
    return int(fields[1]) * _PAGE_BYTES if fields else 0


def _shared_out_bytes(pid: int) -> int:
    """Return a process's memory, of each shared page its share; the whole of it where the kernel does not tell."""
    for line in _text(pid, "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return _resident_bytes(pid)


def _open_descriptors(pid: int) -> int:
    with contextlib.suppress(OSError):
        return sum(1 for _ in (_PROC / str(pid) / "fd").iterdir())
    return 0


def _text(pid: int, name: str) -> str:
    return "\n".join(_lines(_PROC / str(pid) / name)) if pid else ""


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    return []
