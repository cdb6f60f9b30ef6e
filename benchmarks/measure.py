"""Measuring: processor time and memory of a process and its children, ways in turn, medians of pairs."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

__all__ = ["Memory", "ProcessTree", "in_turn", "median_ratio", "percentile", "two_cores"]

Figure = TypeVar("Figure")


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """What a process holds, in bytes."""

    pss: int
    """Its own pages, and its share of those that it has in common with others."""
    uss: int
    """The pages that only it has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessTree:
    """A process and all that came from it."""

    pid: int

    def pids(self) -> list[int]:
        """The process and its living descendants, the parents first."""
        found = [self.pid]
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                found.extend(map(int, _read(children).split()))
        return found

    def cpu_s(self) -> float:
        """Processor seconds so far, of all threads, those of ended children included."""
        fields = _read(Path(f"/proc/{self.pid}/stat")).rpartition(")")[2].split()
        ended_s = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        return ended_s + sum(_clock_s(pid) for pid in self.pids())

    def memory(self) -> Memory:
        """What all of them hold."""
        each = self.memory_of_each()
        return Memory(pss=sum(one.pss for one in each), uss=sum(one.uss for one in each))

    def memory_of_each(self) -> list[Memory]:
        """What each of them holds, in the order of `pids`."""
        found = []
        for pid in self.pids():
            lines = _read(Path(f"/proc/{pid}/smaps_rollup")).splitlines()[1:]
            kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
            uss = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
            found.append(Memory(pss=kilobytes["Pss"] << 10, uss=uss << 10))
        return found


def _clock_s(pid: int) -> float:
    """The processor-time clock of another process, as clock_getcpuclockid(3) names it: to the nanosecond."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0  # it has just ended


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def two_cores() -> tuple[int, int]:
    """The first two cores that this process may use: one for a server, one for what calls it."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise RuntimeError("two cores are needed: one for the server, one for its callers")
    return usable[0], usable[1]


def in_turn(
    n_rounds: int, ways: Mapping[str, Callable[[int], Figure]], *, warm_up: bool = True
) -> dict[str, list[Figure]]:
    """Takes all ways once in each round, every other round backwards, so that what drifts meets all alike.

    Args:
        n_rounds: How often each is taken.
        ways: What to do, given the number of the round: the ways of a round can so take the same fresh texts.
        warm_up: A round before, numbered -1, that does not count.
    """
    figures: dict[str, list[Figure]] = {name: [] for name in ways}
    for n in range(-1 if warm_up else 0, n_rounds):
        for name in list(ways)[:: 1 if n % 2 else -1]:
            figure = ways[name](n)
            if n >= 0:
                figures[name].append(figure)
    return figures


def median_ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """The median of the ratios within each round."""
    return median(one / other for one, other in zip(ones, others, strict=True))


def percentile(values: Iterable[float], share: float) -> float:
    """The value that this share of all lies below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
