"""A wall clock for single processes, which can jump.

libfaketime stands between a process (Python and gRPC's core alike) and the system's wall clock. The monotonic clock is
left alone, as a real jump leaves it.
"""

import datetime as dt
import platform
from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = ["Clock", "needs_clock"]


def _library() -> Path | None:
    found = find_spec("libfaketime")
    if found is None or found.origin is None or platform.machine() != "x86_64":
        return None
    path = Path(found.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    return path if path.exists() else None


needs_clock = pytest.mark.skipif(_library() is None, reason="libfaketime has no library for this machine")


class Clock:
    """The wall clock of the processes that have its environment."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._days = 0
        self.jump("+0")

    def environment(self) -> dict[str, str]:
        """What a process has to have around it from its start."""
        return {
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            # Within a second of their time the processes look again.
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def jump(self, days: str) -> None:
        """Be so many days away from the system's clock: `+2d`, `-2d`, `+0`."""
        self._file.write_text(days)
        self._days = int(days.removesuffix("d"))

    def day(self) -> dt.date:
        """The day that it shows."""
        return (dt.datetime.now(tz=dt.UTC) + dt.timedelta(days=self._days)).date()
