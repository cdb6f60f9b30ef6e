"""Verification in a process of its own, which may hang or die without harm.

The child is `python -m tokend_server.engine.verification.child`, with its task as a line of JSON on standard input,
which stays open as long as somebody waits for it. It writes one JSON object a line: `{"phase": ..., "share": ...}` while it works, and last `{"outcome": ...}` or `{"refused": ...}`.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokend_server.engine.artifact import read_artifact
from tokend_server.engine.fast import FastEngineRefusal, engine_file, loader_named
from tokend_server.engine.feature_gate import unsupported_feature
from tokend_server.engine.reference import ReferenceEncoder
from tokend_server.engine.special_tokens import select_control_tokens
from tokend_server.engine.verification.run import FULL, Extent, Outcome, Progress, run_verification
from tokend_server.errors import TokenizerFileError

__all__ = ["Finding", "Task", "VerificationChild"]

_LAST_WORDS_S = 5.0
_READ_BYTES = 65_536
# Engines keep texts between calls where these are set, and a server does not take such an engine.
_CACHE_PREFIX = "FASTOKENS_"


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What a child is to verify."""

    path: str
    fingerprint: str
    """What the file has to be; another one is not verified."""
    control_tokens: tuple[str, ...]
    """The setting, as `select_control_tokens` takes it."""
    loader: str
    """`MODULE:FUNCTION` that loads the engine."""
    in_background: bool
    """Whether others need the machine: then it runs at low priority, the reference on one core."""
    extent: Extent = FULL
    """How much is compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a child found out, or what became of it."""

    is_final: bool
    """Whether the same would be found again. A file that has changed, or a child that was stopped, is no verdict."""
    reason: str
    """Why the fast engine may not serve; empty where it may."""
    excluded: frozenset[int] = frozenset()
    phases: tuple[Mapping[str, Any], ...] = ()
    """Figures of each phase: its name, what was compared, and the first differences."""


class VerificationChild:
    """One child; `stop` may be called from another thread while `run` waits."""

    def __init__(self, task: Task, *, stall_timeout_s: float = 120.0, timeout_s: float = 1800.0) -> None:
        """Prepares a child.

        Args:
            task: What it verifies.
            stall_timeout_s: How long it may be silent before it counts as hanging.
            timeout_s: How long it may take in all.
        """
        self._task = task
        self._stall_timeout_s = stall_timeout_s
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def run(self, progress: Progress) -> Finding:
        """Starts the child and waits for what it finds; it has ended when this returns.

        Args:
            progress: Told how far it is.

        Returns:
            The finding, whatever became of the child.
        """
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(_CACHE_PREFIX)
        }
        if self._task.in_background:
            environment["RAYON_NUM_THREADS"] = "1"
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "tokend_server.engine.verification.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        except OSError as failure:
            return Finding(is_final=False, reason=f"no process for verification: {failure.strerror}")
        self._process = process
        if self._stopped:
            self.stop()
        try:
            finding = self._follow(process, progress)
        finally:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    # What it did not read when it died.
                    with contextlib.suppress(OSError):
                        pipe.close()
            process.wait()
        if self._stopped:
            return Finding(is_final=False, reason="verification was stopped")
        return finding

    def stop(self) -> None:
        """Ends the child, so that `run` returns soon."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()

    def _follow(self, process: subprocess.Popen[bytes], progress: Progress) -> Finding:
        # Both were asked for as pipes.
        if process.stdin is None or process.stdout is None:
            return Finding(is_final=False, reason="no pipe to the process for verification")
        with contextlib.suppress(BrokenPipeError):
            # Left open: when this process dies, its end tells the child to end too.
            process.stdin.write(json.dumps(asdict(self._task)).encode() + b"\n")
            process.stdin.flush()
        deadline_s = time.monotonic() + self._timeout_s
        phase, rest = "loading the engine", b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                if not selector.select(min(self._stall_timeout_s, max(0.0, deadline_s - time.monotonic()))):
                    # Not final: a machine that is busy enough looks the same.
                    return Finding(is_final=False, reason=f"{phase}: the fast engine hangs")
                chunk = os.read(process.stdout.fileno(), _READ_BYTES)
                if not chunk:
                    return _death(process, phase)
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    message = _message(line)
                    if not message:
                        continue
                    if "phase" not in message:
                        return _finding(message)
                    phase = message["phase"]
                    progress(phase, message["share"])


def _message(line: bytes) -> Mapping[str, Any]:
    """Reads a line of the child; empty for what a native library has printed between them."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    is_ours = isinstance(message, dict) and not message.keys().isdisjoint(("phase", "outcome", "refused"))
    return message if is_ours else {}


def _finding(message: Mapping[str, Any]) -> Finding:
    if "refused" in message:
        return Finding(is_final=message["is_final"], reason=message["refused"])
    outcome = message["outcome"]
    return Finding(
        is_final=True,
        reason=outcome["reason"],
        excluded=frozenset(outcome["excluded"]),
        phases=tuple(outcome["phases"]),
    )


def _death(process: subprocess.Popen[bytes], phase: str) -> Finding:
    try:
        code = process.wait(_LAST_WORDS_S)
    except subprocess.TimeoutExpired:
        return Finding(is_final=False, reason=f"{phase}: the process for verification stopped answering")
    if code >= 0:
        # 1 is Python's own end, for want of memory perhaps; other codes are the engine's.
        return Finding(
            is_final=code != 1, reason=f"{phase}: the process for verification ended with code {code}"
        )
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    # What kills from outside, as the kernel does for want of memory, says nothing of the engine.
    is_own = -code not in {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    return Finding(is_final=is_own, reason=f"{phase}: the process for verification died of {name}")


def _say(message: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _work(task: Task) -> Mapping[str, Any]:
    """Does the child's work; returns its last message."""
    try:
        artifact = read_artifact(Path(task.path))
        control = select_control_tokens(artifact, task.control_tokens)
        reference = ReferenceEncoder(artifact, control)
    except TokenizerFileError as failure:
        return {"refused": str(failure), "is_final": False}
    if artifact.fingerprint != task.fingerprint:
        return {"refused": "the file has changed since it was loaded", "is_final": False}
    unsupported = unsupported_feature(artifact.spec, reference)
    if unsupported is not None:
        return {"refused": unsupported, "is_final": True}
    _say({"phase": "loading the engine", "share": 0.0})
    try:
        engine = loader_named(task.loader)(engine_file(artifact.spec, frozenset(control.ids)))
    except FastEngineRefusal as refusal:
        return {"refused": str(refusal), "is_final": True}
    told_s = 0.0

    def progress(phase: str, share: float) -> None:
        nonlocal told_s
        now_s = time.monotonic()
        if share <= 0.0 or now_s - told_s > 0.2:
            told_s = now_s
            _say({"phase": phase, "share": share})

    return {"outcome": _told(run_verification(artifact, reference, engine, progress, task.extent))}


def _told(outcome: Outcome) -> Mapping[str, Any]:
    phases: Sequence[Mapping[str, Any]] = [
        {"name": name, **asdict(tally)} for name, tally in outcome.tallies.items()
    ]
    return {"reason": outcome.reason, "excluded": sorted(outcome.excluded), "phases": phases}


def _end_with_the_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> int:
    """Reads the task, verifies, and tells; a panic of the engine is told too."""
    told = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    task = Task(
        **{
            **told,
            "control_tokens": tuple(told["control_tokens"]),
            "extent": Extent(**told["extent"]),
        }
    )
    if task.in_background:
        os.nice(10)
    try:
        message = _work(task)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as failure:  # noqa: BLE001 (a panic of the engine is a BaseException)
        message = {"refused": f"the fast engine failed: {type(failure).__name__}", "is_final": True}
    _say(message)
    return 0


if __name__ == "__main__":
    sys.exit(main())
