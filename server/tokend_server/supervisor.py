"""Forks processes, starts those that die again, and ends all of them together. Knows nothing of what they do.

The process that supervises has no thread and uses no library that has any: only then may it fork, now and after each
death. It waits for signals and pipes alone.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from tokend_server import logs
from tokend_server.process_metrics import cpu_seconds
from tokend_server.stop_signals import StopSignals

__all__ = ["ChildContext", "Job", "StartFailed", "Supervisor", "Watcher"]

_log = logs.get("supervisor")
_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 30.0
# Who has lived so long has not died of the same thing again.
_HEALTHY_S = 60.0
# What a child needs beside its grace time, on a busy machine.
_EXTRA_S = 10.0
_LAST_EXIT_S = 5.0
_MOST_REASON_BYTES = 4096
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class StartFailed(Exception):
    """A child ended before it was ready for the first time; one line says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildContext:
    """What a child knows of its parent."""

    stop: StopSignals
    """Its own signals; SIGTERM tells it to end."""
    parent_end: int
    """A descriptor that is at its end once the parent has died, or wants the last children to end."""
    ready: Callable[[], None]
    """To be called once, when the child does its work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What one child does, over and over again if need be."""

    name: str
    place: int
    """What the watcher knows it by."""
    run: Callable[[ChildContext], None]
    """What it raises ends the child; while it starts, an OSError tells the parent why."""
    ends_last: bool = False
    """Sees the others out: is sent no SIGTERM, and ends with `parent_end`."""


class Watcher(Protocol):
    """Told what becomes of the children, by their place."""

    def began(self, place: int, pid: int) -> None:
        """A process has begun."""

    def ended(self, place: int, cpu_s: float) -> None:
        """A process is dead; nothing that it left will change any more."""

    def waits(self, place: int, *, waits: bool) -> None:
        """A dead process is going to be replaced after a while; or is being replaced now."""


@dataclass(kw_only=True, slots=True)
class _Child:
    job: Job
    pid: int = 0
    began_s: float = 0.0
    ready_pipe: int = -1
    """Where the child says that it is ready; -1 when it has, or is dead."""
    failures: int = 0
    """Deaths in a row without a healthy life between them."""
    due_s: float = field(default=0.0)
    """When it is to be started again."""


class Supervisor:
    """The children of one process. All methods are for its only thread."""

    def __init__(self, stop: StopSignals, watcher: Watcher, *, grace_s: float) -> None:
        """Begin without children.

        Args:
            stop: Made with `watch_children`.
            watcher: Told of each birth and death.
            grace_s: How long the children let work in hand go on when they are told to end.
        """
        self._stop = stop
        self._watcher = watcher
        self._grace_s = grace_s
        self._children: list[_Child] = []
        self._parent_end, self._lifeline = os.pipe()
        self._failure: StartFailed | None = None
        self._starting = True

    def spawn(self, job: Job) -> None:
        """Start a child, and go on at once."""
        child = _Child(job=job)
        self._children.append(child)
        self._fork(child)

    def wait_ready(self) -> bool:
        """Wait until all children are ready; False if a stop signal came first.

        Raises:
            StartFailed: One of them ended before.
        """
        while any(child.ready_pipe >= 0 for child in self._children):
            if self._stop.came():
                return False
            self._step()
            if self._failure is not None:
                raise self._failure
        self._starting = False
        return not self._stop.came()

    def watch(self) -> None:
        """Start again whatever dies, until a stop signal comes."""
        while not self._stop.came():
            self._step()

    def stop(self) -> bool:
        """End all children, workers first; tells whether all ended by themselves and in time."""
        workers = [child for child in self._children if not child.job.ends_last]
        for child in workers:
            _send(child, signal.SIGTERM)
        all_well = self._see_out(workers, self._grace_s + _EXTRA_S)
        os.close(self._lifeline)
        all_well &= self._see_out(self._children, _LAST_EXIT_S)
        os.close(self._parent_end)
        return all_well

    def _see_out(self, children: list[_Child], within_s: float) -> bool:
        deadline_s = time.monotonic() + within_s
        while any(child.pid for child in children) and time.monotonic() < deadline_s:
            # A stop signal that has come would end each wait at once.
            time.sleep(0.01)
            self._reap(restart=False)
        left = [child for child in children if child.pid]
        for child in left:
            _log.error("a process does not end, and is killed", process=child.job.name, pid=child.pid)
            _send(child, signal.SIGKILL)
        while any(child.pid for child in left):
            time.sleep(0.01)
            self._reap(restart=False)
        return not left

    def _step(self) -> None:
        """Wait for the next event, and deal with it."""
        now_s = time.monotonic()
        due = [child.due_s for child in self._children if not child.pid]
        pipes = [child.ready_pipe for child in self._children if child.ready_pipe >= 0]
        self._stop.wait(*pipes, timeout_s=min(due) - now_s if due else None)
        if self._stop.came():
            return
        for child in self._children:
            if child.ready_pipe >= 0 and child.pid:
                self._hear(child)
        self._reap(restart=True)
        for child in self._children:
            if not child.pid and child.due_s <= time.monotonic() and self._failure is None:
                self._replace(child)

    def _hear(self, child: _Child) -> None:
        """Read what a starting child has to say: `+`, or why it cannot start; nothing at its end."""
        try:
            said = os.read(child.ready_pipe, _MOST_REASON_BYTES)
        except BlockingIOError:
            return
        os.close(child.ready_pipe)
        child.ready_pipe = -1
        if said == b"+":
            _log.info("a process is ready", process=child.job.name, pid=child.pid)
        elif self._starting:
            reason = said.decode("utf-8", "replace") or f"{child.job.name} ended before it was ready"
            self._failure = self._failure or StartFailed(reason)

    def _reap(self, *, restart: bool) -> None:
        """Bury the dead. Each by its own number: other children of this process are not ours."""
        for child in self._children:
            # Not waited for yet, the dead still tell their CPU time.
            if child.pid and os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                cpu_s = cpu_seconds(child.pid)
                _, status = os.waitpid(child.pid, 0)
                if child.ready_pipe >= 0:
                    self._hear(child)
                self._bury(child, os.waitstatus_to_exitcode(status), cpu_s, restart=restart)

    def _bury(self, child: _Child, exit_code: int, cpu_s: float, *, restart: bool) -> None:
        pid, child.pid = child.pid, 0
        self._watcher.ended(child.job.place, cpu_s)
        if not restart or self._failure is not None:
            return
        if time.monotonic() - child.began_s >= _HEALTHY_S:
            child.failures = 0
        self._watcher.waits(child.job.place, waits=True)
        delay_s = _put_off(child)
        _log.error(
            "a process has died, and is started again",
            process=child.job.name,
            pid=pid,
            exit_code=exit_code,
            delay_s=delay_s,
        )

    def _replace(self, child: _Child) -> None:
        try:
            self._fork(child)
        except OSError as error:
            # No memory, or too many processes: that may pass.
            _log.error("no process can be started", error=error, delay_s=_put_off(child))
        else:
            self._watcher.waits(child.job.place, waits=False)

    def _fork(self, child: _Child) -> None:
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal between the fork and the child's own handlers must wait for these.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            pid = os.fork()
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(read_end)
            os.close(write_end)
            raise
        if not pid:
            os.close(read_end)
            self._live(child, write_end, mask)
        child.pid, child.began_s, child.ready_pipe = pid, time.monotonic(), read_end
        self._watcher.began(child.job.place, pid)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(write_end)

    def _live(self, child: _Child, ready_pipe: int, mask: set[int]) -> NoReturn:
        """Be the child, from its first moment to its last."""
        exit_code = 1
        try:
            os.close(self._lifeline)
            for other in self._children:
                if other.ready_pipe >= 0:
                    os.close(other.ready_pipe)
            self._stop.close()
            stop = StopSignals()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            context = ChildContext(
                stop=stop, parent_end=self._parent_end, ready=lambda: _say(ready_pipe, b"+")
            )
            child.job.run(context)
            exit_code = 0
        except OSError as error:
            if not self._starting:
                _log.error("a process cannot go on", process=child.job.name, error=error)
            reason = error.strerror or str(error)
            _say(ready_pipe, reason.encode("utf-8", "backslashreplace")[:_MOST_REASON_BYTES])
        except BaseException as error:  # noqa: BLE001 (whatever it is, the parent's code must not go on here)
            _log.error("a process cannot go on", process=child.job.name, error=error)
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            # Nothing of the parent's is run again: no exit handler, no `finally` above, no buffered output.
            os._exit(exit_code)


def _put_off(child: _Child) -> float:
    """Let a dead child's next life begin later than the last time; returns after how many seconds."""
    child.failures += 1
    delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(child.failures - 1, 16))
    child.due_s = time.monotonic() + delay_s
    return delay_s


def _say(ready_pipe: int, what: bytes) -> None:
    # A parent that has died reads nothing; a child that was ready has closed it.
    with contextlib.suppress(OSError):
        os.write(ready_pipe, what)
        os.close(ready_pipe)


def _send(child: _Child, number: int) -> None:
    if child.pid:
        os.kill(child.pid, number)
