"""Keeps what native libraries print out of the log: counted, not shown.

A panic of the tokenizers library prints its message to file descriptor 2, and such a message may quote the text
that caused it (a slice that ends inside a character does). gRPC's core prints there too. So the descriptor is
pointed at a pipe that a thread drains, and Python's own stderr moves to a copy of the old one.
"""

import contextlib
import faulthandler
import fcntl
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

__all__ = ["StderrGuard", "stderr_aside", "unbuffer_stderr"]

_STDERR = 2
# Room for a burst that arrives while the draining thread waits for the GIL.
_PIPE_BYTES = 2**20
_F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", None)


def unbuffer_stderr() -> None:
    """Let a record that a full disk does not take be lost at once, and fail nothing later: no flush, no exit."""
    sys.stderr = _unbuffered(_STDERR, owned=False)


def _unbuffered(descriptor: int, *, owned: bool = True) -> TextIO:
    raw = io.FileIO(descriptor, "w", closefd=owned)
    return io.TextIOWrapper(raw, errors="backslashreplace", write_through=True)


class StderrGuard:
    """Points descriptor 2 at a pipe whose lines are only counted, from creation until `close`.

    One at a time in a process, and created after any fork: its thread does not live on in a child.
    """

    def __init__(self, on_lines: Callable[[int], None]) -> None:
        """Start to guard.

        Args:
            on_lines: Called from the draining thread with the number of lines that were kept out.
        """
        self._on_lines = on_lines
        sys.stderr.flush()
        self._old_stderr = sys.stderr
        self._original = os.dup(_STDERR)
        self._read_end, write_end = os.pipe()
        # A writer may hold the GIL that the draining thread needs: when the pipe is full its write must fail, not wait.
        os.set_blocking(write_end, False)
        if _F_SETPIPE_SZ is not None:
            with contextlib.suppress(OSError):
                fcntl.fcntl(write_end, _F_SETPIPE_SZ, _PIPE_BYTES)
        os.dup2(write_end, _STDERR)
        os.close(write_end)
        # Under a test runner or an embedder sys.stderr is no descriptor 2, and is left as it is.
        if self.is_descriptor_2(sys.stderr):
            sys.stderr = _unbuffered(os.dup(self._original))
        self._faulthandler_was_on = faulthandler.is_enabled()
        # A crash is told as places in the code, without values.
        faulthandler.enable(self._original)
        self._thread = threading.Thread(target=self._drain, name="native-stderr", daemon=True)
        self._thread.start()

    @staticmethod
    def is_descriptor_2(stream: object) -> bool:
        """Tell whether a stream writes to the guarded descriptor."""
        fileno = getattr(stream, "fileno", None)
        try:
            return fileno is not None and fileno() == _STDERR
        except (OSError, ValueError):
            return False

    def _drain(self) -> None:
        while chunk := os.read(self._read_end, 65536):
            # A last line without its end counts once that arrives; a count need not be more exact.
            if n_lines := chunk.count(b"\n"):
                self._on_lines(n_lines)

    def close(self) -> None:
        """Give descriptor 2 and `sys.stderr` back; what was printed before is still counted."""
        # Restoring closes the last write end, so the thread reads the rest and then the end of the file.
        os.dup2(self._original, _STDERR)
        if self._faulthandler_was_on:
            faulthandler.enable(_STDERR)
        else:
            faulthandler.disable()
        self._thread.join(timeout=1)
        if sys.stderr is not self._old_stderr:
            sys.stderr.close()
            sys.stderr = self._old_stderr
        os.close(self._original)
        # A child process that outlives us may hold a write end; then the thread still reads.
        if not self._thread.is_alive():
            os.close(self._read_end)


@contextlib.contextmanager
def stderr_aside(on_lines: Callable[[int], None]) -> Iterator[None]:
    """Guard without a thread, for a process that is going to fork: what is printed lies in memory until the end.

    Args:
        on_lines: Called at the end with the number of lines that were kept out.
    """
    sys.stderr.flush()
    old_stderr, original = sys.stderr, os.dup(_STDERR)
    with os.fdopen(os.memfd_create("stderr"), "r+b") as aside:
        os.dup2(aside.fileno(), _STDERR)
        if StderrGuard.is_descriptor_2(sys.stderr):
            sys.stderr = _unbuffered(os.dup(original))
        try:
            yield
        finally:
            os.dup2(original, _STDERR)
            os.close(original)
            if sys.stderr is not old_stderr:
                sys.stderr.close()
                sys.stderr = old_stderr
            aside.seek(0)
            on_lines(aside.read().count(b"\n"))
