"""Files that may be replaced while the server runs: read again when they change, and only used if they are right.

What is compared is what they hold, not their times: a file that is replaced, written over, or reached through links
that move (as Kubernetes does with its secrets) is noticed alike, whatever the clock does.
"""

import os
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from tokend_server import logs
from tokend_server.errors import CredentialsError
from tokend_server.metrics import FileMetrics

__all__ = ["FileWatch", "WatchedFiles"]

_T = TypeVar("_T")
_log = logs.get("files")
_LOOK_EVERY_S = 1.0
_MOST_BYTES = 1 << 20


class WatchedFiles(Generic[_T]):
    """What is made of one or several files that belong together. Not thread-safe: one thread looks."""

    def __init__(self, name: str, paths: Sequence[Path], make: Callable[[Sequence[bytes]], _T]) -> None:
        """Read the files.

        Args:
            name: What they are, in the log and the metrics: one of `WATCHED_FILES`.
            paths: The files.
            make: Turns what they hold into what is used; raises CredentialsError if that is wrong.

        Raises:
            CredentialsError: A file cannot be read, or is wrong.
        """
        self.name = name
        self._paths, self._make = paths, make
        self._in_use = tuple(map(_read, paths))
        self.value = make(self._in_use)
        """What is in use."""
        # What was there at the last look, and what was last taken over or refused; a text: why it cannot be read.
        self._before: _Found = self._in_use
        self._judged: _Found = self._in_use
        self._use: Callable[[_T], None] = lambda _value: None
        self._metrics: FileMetrics | None = None

    def follow(self, use: Callable[[_T], None], metrics: FileMetrics) -> None:
        """Tell someone of the value now, and from now on whenever another one comes into use."""
        self._use, self._metrics = use, metrics
        use(self.value)

    def refresh(self) -> None:
        """Read the files anew, in a process that was forked long after they were read.

        Raises:
            CredentialsError: They are not right now. What was read before the fork may be older than what was in force
                since, so it is not gone back to.
        """
        self._before = self._judged = found = self._find()
        self._judge(found)

    def look(self) -> None:
        """Look whether the files have changed, and take over what is right once it was there for two looks.

        So files that are being written are left alone. What is wrong is logged and counted, and the old value stays;
        that it has been put back is logged too.
        """
        found = self._find()
        settled, self._before = found == self._before, found
        if not settled or found == self._judged:
            return
        self._judged, before = found, self._in_use
        try:
            self._judge(found)
            if found == before:
                # What was judged last was something else, so it was refused.
                _log.info("a file that could not be used is again what is in force", file=self.name)
        except CredentialsError as problem:
            self._tell(stale=True, changed=True)
            _log.error(
                "a changed file cannot be used; the old one stays in force",
                file=self.name,
                problem=str(problem),
            )

    def _find(self) -> "_Found":
        try:
            return tuple(map(_read, self._paths))
        except CredentialsError as problem:
            return str(problem)

    def _judge(self, found: "_Found") -> None:
        if isinstance(found, str):
            raise CredentialsError(found)
        if found == self._in_use:
            # Nothing new; or what was wrong has been taken back.
            self._tell(stale=False, changed=False)
            return
        self.value = self._make(found)
        self._in_use = found
        self._use(self.value)
        self._tell(stale=False, changed=True)
        _log.info("a changed file is in use", file=self.name)

    def _tell(self, *, stale: bool, changed: bool) -> None:
        if self._metrics is not None:
            self._metrics.judged(self.name, stale=stale, changed=changed)


_Found = tuple[bytes, ...] | str


class FileWatch:
    """A thread that looks at files once a second."""

    def __init__(self, looks: Sequence[Callable[[], None]]) -> None:
        """Begin.

        Args:
            looks: What is done each time.
        """
        self._looks = looks
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="tokend-files", daemon=True).start()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_S):
            for look in self._looks:
                try:
                    look()
                except Exception as error:  # noqa: BLE001 (the thread must go on)
                    _log.error("looking at the files failed", error=error)


def _read(path: Path) -> bytes:
    try:
        # Not blocking: what is named may be a pipe.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CredentialsError(f"{path}: not a regular file")
            data = file.read(_MOST_BYTES + 1)
    except OSError as problem:
        raise CredentialsError(f"cannot read {path}: {problem.strerror or problem}") from None
    if len(data) > _MOST_BYTES:
        raise CredentialsError(f"{path}: larger than {_MOST_BYTES} bytes")
    return data
