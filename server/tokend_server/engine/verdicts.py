"""Verdicts on the fast engine, kept on disk: a file is verified once for each pair of engine versions.

A verdict counts only for the very same file, versions, control tokens, kind of machine and scheme of verification.
What cannot be read, or is not ours, is passed over with a word; where nothing can be written, memory has to do.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tokend_server.engine.state_files import read_state, write_state

__all__ = ["Verdict", "VerdictKey", "VerdictKind", "VerdictStore", "default_state_folder", "processor"]

_FORMAT = 1
# Engines choose their code by these, and one machine's verdict says nothing of code that another one runs.
_VECTOR_FLAGS = ("sse4_2", "avx", "avx2", "avx512", "bmi", "asimd", "neon", "sve")


class VerdictKind(StrEnum):
    """What was found."""

    VERIFIED = "verified"
    """The fast engine may serve, but for the excluded code points."""
    UNSUPPORTED = "unsupported"
    """The reference serves."""
    QUARANTINED = "quarantined"
    """It was verified, and then gave a wrong answer or panicked while it served."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictKey:
    """What a verdict is about; any other value asks for a verification of its own."""

    fingerprint: str
    """sha256 of the tokenizer file."""
    reference_version: str
    engine: str
    """The engine's loader."""
    engine_version: str
    scheme: str
    """The scheme of verification, and its extent where that is not the full one."""
    control_tokens: str
    """sha256 of the control tokens' contents."""
    processor: str
    """The kind of machine: architecture, vector instructions, and whether it has one core or several."""

    @staticmethod
    def digest_of(control_tokens: Collection[str]) -> str:
        """Returns the sha256 of a set of control tokens."""
        return hashlib.sha256(json.dumps(sorted(control_tokens)).encode()).hexdigest()

    @property
    def file_name(self) -> str:
        """The name of the verdict's file: it begins with the tokenizer's fingerprint."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return f"verdict-{self.fingerprint[:16]}-{digest[:16]}.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One verdict, and when and on what it was reached."""

    key: VerdictKey
    kind: VerdictKind
    reason: str
    """Why the reference serves; empty for VERIFIED."""
    excluded: frozenset[int]
    """Code points on which the engines differ."""
    decided_at: str
    """ISO 8601, UTC."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """What was compared, for people."""


class VerdictStore:
    """Keeps verdicts in a folder, or beside it where it cannot be written, and in memory in any case."""

    def __init__(
        self, folder: Path | None, *, beside: Path | None = None, warn: Callable[[str], None] = lambda _: None
    ) -> None:
        """Uses a folder, which is made when the first verdict is written.

        Args:
            folder: None keeps verdicts in memory alone.
            beside: A folder that workers of one server have in common, for what the first one does not take.
            warn: Told in one line what could not be read or written.
        """
        self._folders = [each for each in (folder, beside) if each is not None]
        self._warn = warn
        self._memory: dict[VerdictKey, Verdict] = {}

    def path_of(self, key: VerdictKey) -> Path | None:
        """Returns where the verdict on this key is or would be."""
        return self._folders[0] / key.file_name if self._folders else None

    def load(self, key: VerdictKey) -> Verdict | None:
        """Returns the verdict on exactly this key, from disk where another process may have changed it, or None.

        A quarantine anywhere is one everywhere.
        """
        found = [self._found_in(folder, key) for folder in self._folders]
        verdicts = [each for each in (*found, self._memory.get(key)) if each is not None]
        quarantines = [each for each in verdicts if each.kind is VerdictKind.QUARANTINED]
        verdict = next(iter(quarantines or verdicts), None)
        if verdict is not None:
            self._memory[key] = verdict
        return verdict

    def _found_in(self, folder: Path, key: VerdictKey) -> Verdict | None:
        path = folder / key.file_name
        try:
            verdict = _read(read_state(path))
        except FileNotFoundError:
            return None
        except OSError as failure:
            if key not in self._memory:
                self._warn(f"{path}: the verdict cannot be read: {failure.strerror}")
            return None
        except (ValueError, TypeError, KeyError, RecursionError) as failure:
            self._warn(f"{path}: no usable verdict, so it is passed over ({type(failure).__name__})")
            return None
        if verdict.key != key:
            self._warn(f"{path}: a verdict on something else, so it is passed over")
            return None
        return verdict

    @contextlib.contextmanager
    def claimed(self, key: VerdictKey) -> Iterator[None]:
        """Lets one process at a time work on a verdict, and the others wait; without a folder nobody waits."""
        with contextlib.ExitStack() as stack:
            for folder in self._folders:
                try:
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                    lock = stack.enter_context((folder / key.file_name).with_suffix(".lock").open("wb"))
                except OSError:
                    continue
                # Ends with the process, whatever becomes of it.
                fcntl.flock(lock, fcntl.LOCK_EX)
                break
            yield

    def save(self, verdict: Verdict) -> bool:
        """Keeps a verdict, in place of an earlier one on the same key; False where memory alone has it."""
        self._memory[verdict.key] = verdict
        for folder in self._folders:
            path = folder / verdict.key.file_name
            try:
                write_state(path, _written(verdict))
            except OSError as failure:
                self._warn(f"{path}: the verdict cannot be written, so memory keeps it: {failure.strerror}")
            else:
                return True
        return False


def default_state_folder(environ: Mapping[str, str]) -> Path:
    """Returns where state is kept if no setting says so: `tokend` in the user's own folder for state."""
    base = environ.get("XDG_STATE_HOME")
    if base and Path(base).is_absolute():
        return Path(base) / "tokend"
    return Path(environ.get("HOME") or "/nonexistent") / ".local" / "state" / "tokend"


def processor() -> str:
    """Describes this machine as far as an engine may choose its code by it."""
    flags: set[str] = set()
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in {"flags", "Features"}:
                    flags = {flag for flag in value.split() if flag.startswith(_VECTOR_FLAGS)}
                    break
    except OSError:
        pass
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return " ".join([platform.machine(), "one-core" if n_cores == 1 else "several-cores", *sorted(flags)])


def _written(verdict: Verdict) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "key": asdict(verdict.key),
        "kind": verdict.kind.value,
        "reason": verdict.reason,
        "excluded": sorted(verdict.excluded),
        "decided_at": verdict.decided_at,
        "figures": dict(verdict.figures),
    }


def _read(content: dict[str, Any]) -> Verdict:
    """Reads what `_written` made.

    Raises:
        ValueError, TypeError, KeyError: It is anything else.
    """
    if content["format"] != _FORMAT:
        raise ValueError("another format")
    excluded = content["excluded"]
    if not all(type(code_point) is int and 0 <= code_point < 0x110000 for code_point in excluded):
        raise ValueError("no code points")
    return Verdict(
        key=VerdictKey(**content["key"]),
        kind=VerdictKind(content["kind"]),
        reason=str(content["reason"]),
        excluded=frozenset(excluded),
        decided_at=str(content["decided_at"]),
        figures=dict(content["figures"]),
    )
