"""The supervisor alone, in a process of its own: this one has threads, and must not fork."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys, time
from tokend_server import logs, supervisor
from tokend_server.stop_signals import StopSignals
from tokend_server.supervisor import Job, StartFailed, Supervisor

supervisor._EXTRA_S = 1.0
logs.configure("error", "text")

class Watcher:
    def began(self, place, pid):
        print("began", place, pid, time.monotonic(), flush=True)
    def ended(self, place, cpu_s):
        print("ended", place, cpu_s >= 0, flush=True)
    def waits(self, place, *, waits):
        print("waits" if waits else "again", place, *[time.monotonic()] * waits, flush=True)

def idle(context):
    context.ready()
    context.stop.wait(context.parent_end)

def last(context):
    context.ready()
    os.read(context.parent_end, 1)
    print("the last one ends", flush=True)

def stubborn(context):
    context.ready()
    while True:
        time.sleep(1)

def never_ready(context):
    context.stop.wait(context.parent_end)

def refuses(context):
    raise OSError(98, "there is no room")

def breaks(context):
    raise RuntimeError("a secret")

def dies(context):
    os.kill(os.getpid(), signal.SIGKILL)

def dies_later(context):
    context.ready()

stop = StopSignals(watch_children=True)
boss = Supervisor(stop, Watcher(), grace_s=0.5)
for place, job in enumerate(sys.argv[1:]):
    boss.spawn(Job(name=job, place=place, run=globals()[job], ends_last=job == "last"))
code = 0
try:
    if boss.wait_ready():
        print("ready", flush=True)
        boss.watch()
except StartFailed as error:
    print("failed:", error, flush=True)
    code = 2
ended_well = boss.stop()
sys.exit(code or (0 if ended_well else 1))
"""


class Run:
    """The program above, with its children."""

    def __init__(self, *jobs: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), *jobs],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []

    def until(self, start: str) -> str:
        """Read on to the line that begins so."""
        for line in self.process.stdout:
            self.said.append(line.strip())
            if line.startswith(start):
                return line.strip()
        raise AssertionError(f"{start} was not said: {self.said}")

    def end(self, number: int | None = signal.SIGTERM) -> int:
        if number is not None:
            self.process.send_signal(number)
        # What this object's own reading has left in the buffer is read too, as `communicate` would not.
        self.said += self.process.stdout.read().splitlines()
        self.errors = self.process.stderr.read()
        return self.process.wait(20)


@contextmanager
def running(*jobs: str) -> Iterator[Run]:
    run = Run(*jobs)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()
        run.process.stdout.close()
        run.process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_children_end_on_a_signal_and_the_last_one_last(number):
    with running("last", "idle", "idle") as run:
        run.until("ready")
        assert run.end(number) == 0
        assert run.said[-1] == "ended 0 True"
        assert set(run.said[-4:-2]) == {"ended 1 True", "ended 2 True"}
        assert run.said[-2] == "the last one ends"


def test_a_dead_child_is_replaced_and_each_time_later():
    with running("idle") as run:
        pid = int(run.until("began").split()[2])
        run.until("ready")
        for delay_s in (0.1, 0.2, 0.4, 0.8):
            os.kill(pid, signal.SIGKILL)
            died_s = float(run.until("waits").split()[2])
            _, _, new, began_s = run.until("began").split()
            assert float(began_s) - died_s >= delay_s - 0.01
            assert int(new) != pid
            pid = int(new)
        assert run.end() == 0
        assert run.said.count("again 0") == 4


def test_a_child_that_ends_after_its_start_is_replaced_for_ever():
    with running("idle", "dies_later") as run:
        for _ in range(4):
            run.until("again 1")
        assert run.end() == 0


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ("refuses", "there is no room"),
        ("breaks", "breaks ended before it was ready"),
        ("dies", "dies ended before it was ready"),
    ],
)
def test_a_child_that_cannot_start_ends_the_start(job, reason):
    with running("last", "idle", job) as run:
        assert run.until("failed:") == f"failed: {reason}"
        assert run.end(None) == 2
        assert sum(line.startswith("began") for line in run.said) == 3
        assert sum(line.startswith("ended") for line in run.said) == 3
        assert "a secret" not in run.errors


def test_a_child_that_does_not_end_is_killed_and_told_of():
    with running("stubborn", "idle") as run:
        run.until("ready")
        assert run.end() == 1
        assert "a process does not end, and is killed process=stubborn" in run.errors


def test_children_end_with_their_parent():
    with running("last", "idle") as run:
        pids = [int(run.until("began").split()[2]) for _ in range(2)]
        run.until("ready")
        run.process.kill()
        run.process.wait()
        deadline_s = time.monotonic() + 10
        while any(state(pid) != "Z" for pid in pids):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_signal_before_all_are_ready_ends_the_start_well():
    with running("idle", "never_ready") as run:
        run.until("began 1")
        assert run.end() == 0
        assert "ready" not in run.said
