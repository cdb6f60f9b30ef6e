"""The cores of this process: how many it may use, and who goes first on them.

They are fewer than the machine has under an affinity mask or in a container.
"""

import math
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

__all__ = ["interrupting_nobody", "let_others_first", "usable_cores"]

_ROOT = Path("/")
# A tenth of what a thread of usual priority gets. It may hold Python's lock, so it must not starve.
_BACKGROUND_NICENESS = 10


def usable_cores(root: Path = _ROOT) -> int:
    """Return the number of cores that may be kept busy, at least 1; part of a core counts as one.

    Args:
        root: Where `proc` and `sys` are.

    Returns:
        The least of the affinity mask and the CPU quotas of the process's cgroup and of those above it.

    Source: cgroup v2 `cpu.max`, cgroup v1 `cpu.cfs_quota_us` (Linux, Documentation/admin-guide/cgroup-v2.rst and
    Documentation/scheduler/sched-bwc.rst).
    """
    if hasattr(os, "sched_getaffinity"):
        cores = float(len(os.sched_getaffinity(0)))
    else:
        cores = float(os.cpu_count() or 1)
    return max(1, math.ceil(min([cores, *_quotas(root)])))


def let_others_first() -> None:
    """Give the calling thread, and those that it starts from now on, less of a busy core than others get.

    There is no way back without privileges, so this is for threads that do nothing else. Where threads have no
    priorities of their own (all but Linux) nothing changes.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _BACKGROUND_NICENESS)


@contextmanager
def interrupting_nobody() -> Iterator[None]:
    """Have the threads that start while the block runs wait for their turn when they wake up, as batch jobs do.

    Their share of a core is that of any other thread. A thread of usual kind that wakes up may take the core from the
    one that runs, and is then alone with the first piece of its work; one of these finds several pieces.
    Where threads have no scheduling policy of their own (all but Linux), or a sandbox forbids it, nothing changes.

    Source: sched(7), SCHED_BATCH.
    """
    before = os.sched_getscheduler(0) if sys.platform == "linux" else None
    if before != os.SCHED_OTHER or not _schedule(os.SCHED_BATCH):
        yield
        return
    try:
        yield
    finally:
        _schedule(before)


def _schedule(policy: int) -> bool:
    """Set the calling thread's policy, which the threads that it starts inherit; False where that is not allowed."""
    try:
        os.sched_setscheduler(0, policy, os.sched_param(0))
    except OSError:
        return False
    return True


def _quotas(root: Path) -> Iterator[float]:
    """Yield each CPU quota that applies, in cores; none where there is no limit, or no cgroups."""
    try:
        memberships = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    mount = root / "sys/fs/cgroup"
    for line in memberships:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if not controllers:
            for folder in _upwards(mount, group):
                yield from _quota(_read(folder / "cpu.max").split())
        elif "cpu" in controllers.split(","):
            for folder in _upwards(mount / "cpu", group):
                yield from _quota([_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")])


def _upwards(mount: Path, group: str) -> Iterator[Path]:
    """Yield the folder of a group and of all above it; inside a container the group may only be its root."""
    parts = PurePosixPath(group).parts[1:]
    for length in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:length])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _quota(quota_and_period: list[str]) -> Iterator[float]:
    """Yield quota by period; nothing for `max`, -1, or what is no pair of numbers."""
    if len(quota_and_period) == 2 and all(part.isdigit() for part in quota_and_period):
        quota_us, period_us = map(int, quota_and_period)
        if quota_us > 0 and period_us > 0:
            yield quota_us / period_us
