import os
import threading

import pytest

from tokend_server.cores import interrupting_nobody, usable_cores

ALL = len(os.sched_getaffinity(0))


@pytest.fixture
def root(tmp_path):
    """Write files as the kernel would show them."""

    def write(files: dict[str, str]):
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return tmp_path

    return write


def test_without_cgroups_the_affinity_counts(tmp_path):
    assert usable_cores(tmp_path) == ALL


def test_an_affinity_mask_is_obeyed():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("100000 100000", 1),
        ("50000 100000", 1),
        ("1000 100000", 1),
        ("max 100000", ALL),
        ("", ALL),
        ("x", ALL),
    ],
)
def test_a_quota_of_cgroup_2_is_obeyed_and_part_of_a_core_is_one(root, quota, cores):
    folder = root({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota + "\n"})
    assert usable_cores(folder) == cores


def test_part_of_a_core_is_rounded_up(root, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))
    folder = root({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"})
    assert usable_cores(folder) == 3


def test_the_least_quota_on_the_way_up_counts(root, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))
    folder = root(
        {
            "proc/self/cgroup": "0::/pods/one/tokend\n",
            "sys/fs/cgroup/pods/cpu.max": "800000 100000\n",
            "sys/fs/cgroup/pods/one/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/pods/one/tokend/cpu.max": "max 100000\n",
        }
    )
    assert usable_cores(folder) == 4


def test_a_quota_of_cgroup_1_is_obeyed(root, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))
    limits = {"cpu.cfs_quota_us": "600000\n", "cpu.cfs_period_us": "100000\n"}
    folder = root(
        {"proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/docker/ab\n0::/\n"}
        | {f"sys/fs/cgroup/cpu/docker/ab/{name}": value for name, value in limits.items()}
        | {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}
    )
    assert usable_cores(folder) == 6


def policy_of_a_new_thread() -> int:
    found = []
    thread = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
    thread.start()
    thread.join()
    return found[0]


def test_threads_that_start_in_the_block_alone_interrupt_nobody():
    with interrupting_nobody():
        inside = policy_of_a_new_thread()
    assert (inside, policy_of_a_new_thread()) == (os.SCHED_BATCH, os.SCHED_OTHER)


def test_where_no_policy_may_be_set_threads_start_as_they_are(monkeypatch):
    def forbidden(*_given):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    with interrupting_nobody():
        assert policy_of_a_new_thread() == os.SCHED_OTHER
