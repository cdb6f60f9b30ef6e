"""SIGTERM and SIGINT, as something that can be waited for together with pipes."""

import contextlib
import os
import select
import signal

__all__ = ["StopSignals"]


class StopSignals:
    """Takes SIGTERM and SIGINT from its making on, so that one that comes during the start counts too.

    They arrive as bytes in a pipe. An Event set by a handler would lose some: Python runs handlers on the main thread
    alone, which does not wake up if the kernel gives the signal to another one, and a handler that interrupts
    `Event.wait` at a bad moment waits for the lock that it interrupted.

    A process has one of these. A forked child makes its own, which replaces its parent's.
    """

    def __init__(self, *, watch_children: bool = False) -> None:
        """Begin.

        Args:
            watch_children: Also wake up when a child process ends.
        """
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._came = self._woken = False
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: None)
        signal.signal(signal.SIGCHLD, (lambda _number, _frame: None) if watch_children else signal.SIG_DFL)

    def came(self) -> bool:
        """Tell whether one has come, now or earlier."""
        self._read()
        return self._came

    def wait(self, *descriptors: int, timeout_s: float | None = None) -> None:
        """Wait until one has come, a child has ended, a descriptor can be read or is at its end, or time is up.

        What has happened since the last wait counts, so that a caller may look around between two.
        """
        self._read()
        if not self._came and not self._woken:
            # A poll has no limit on descriptors as select has.
            poll = select.poll()
            for descriptor in (self._read_end, *descriptors):
                poll.register(descriptor, select.POLLIN)
            poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)
            self._read()
        self._woken = False

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while numbers := os.read(self._read_end, 512):
                self._came |= signal.SIGTERM in numbers or signal.SIGINT in numbers
                self._woken = True

    def close(self) -> None:
        """Let go of the pipe, as a forked child does with its parent's; the handlers stay."""
        if signal.set_wakeup_fd(-1) != self._write_end:
            # Another one has taken over already.
            raise RuntimeError("these stop signals are not those in force")
        os.close(self._read_end)
        os.close(self._write_end)
