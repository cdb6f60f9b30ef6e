"""A progress bar on standard error, for work that takes longer than a second on a terminal."""

import sys
import time
from typing import TextIO

__all__ = ["ProgressBar"]

_QUIET_S = 1.0
_EVERY_S = 0.1
_BAR_COLUMNS = 24
_CLEAR = "\r\x1b[K"
_KB, _MB, _GB = 10**3, 10**6, 10**9


class ProgressBar:
    """Bytes done out of bytes to do; silent where standard error is no terminal.

    Args:
        total_bytes: How much there is to do; None: nobody knows.
    """

    def __init__(self, total_bytes: int | None) -> None:
        self._stream: TextIO | None = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._start_s = time.monotonic()
        self._drawn_s = self._start_s + _QUIET_S - _EVERY_S
        self._is_drawn = False

    def advance(self, n_bytes: int) -> None:
        """Counts bytes as done, and draws the bar if it is time."""
        self._done_bytes += n_bytes
        now_s = time.monotonic()
        if self._stream is None or now_s - self._drawn_s < _EVERY_S:
            return
        self._drawn_s = now_s
        self._is_drawn = True
        self._stream.write(_CLEAR + self._line(now_s - self._start_s))
        self._stream.flush()

    def clear(self) -> None:
        """Takes the bar away, so that something else can be written."""
        if self._stream is not None and self._is_drawn:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._is_drawn = False

    def _line(self, elapsed_s: float) -> str:
        per_s = self._done_bytes / elapsed_s
        speed = f"{_size(self._done_bytes)}, {_size(round(per_s))}/s"
        if not self._total_bytes:
            return speed
        share = min(self._done_bytes / self._total_bytes, 1.0)
        left_s = round((self._total_bytes - self._done_bytes) / per_s) if per_s else 0
        bar = "#" * round(share * _BAR_COLUMNS)
        return f"[{bar:<{_BAR_COLUMNS}}] {share:4.0%} of {_size(self._total_bytes)}, {speed}, {max(left_s, 0)} s left"


def _size(n_bytes: int) -> str:
    for unit, name in ((_GB, "GB"), (_MB, "MB"), (_KB, "kB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.1f} {name}"
    return f"{n_bytes} B"
