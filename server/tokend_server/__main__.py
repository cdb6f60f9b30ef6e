"""`python -m tokend_server serve`: read the settings, serve until a signal, exit with a code that says how."""

import os
import select
import signal
import sys
from collections.abc import Sequence

from tokend_server import logs
from tokend_server.app import App
from tokend_server.config import ConfigError, Settings, load, print_config
from tokend_server.errors import TokenizerFileError

__all__ = ["main"]

_EXIT_STOPPED = 0
_EXIT_NOT_STARTED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server.

    Args:
        argv: `serve` and its flags; None: the process's own.

    Returns:
        0 after a drain, 2 if it could not start.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] != ["serve"]:
        return _fail("usage: python -m tokend_server serve [--help]")
    try:
        loaded = load(arguments[1:], os.environ)
    except ConfigError as error:
        return _fail(str(error))
    if loaded.print_config:
        sys.stdout.write(print_config(loaded))
        return _EXIT_STOPPED
    return _serve(loaded.settings)


def _serve(settings: Settings) -> int:
    logs.configure(settings.log_level, settings.log_format)
    stop = _StopSignals()
    try:
        app = App(settings)
    except OSError as error:
        return _fail(error.strerror or str(error))
    try:
        ready_line = app.start()
    except TokenizerFileError as error:
        app.stop()
        return _fail(str(error))
    if not stop.came():
        print(ready_line, flush=True)  # noqa: T201 (the ready line is the product's word on stdout)
    stop.wait()
    app.stop()
    return _EXIT_STOPPED


class _StopSignals:
    """SIGTERM and SIGINT, as bytes in a pipe; made before the start, so that one that comes during it counts too.

    An Event set by a handler would lose some: Python runs handlers on the main thread alone, which does not wake up
    if the kernel gives the signal to another one, and a handler that interrupts `Event.wait` at a bad moment waits
    for the lock that it interrupted. A forked child must call `signal.set_wakeup_fd(-1)`.
    """

    def __init__(self) -> None:
        self._read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: None)

    def came(self) -> bool:
        """Tell whether one has come."""
        return bool(select.select([self._read_end], [], [], 0)[0])

    def wait(self) -> None:
        """Wait for one."""
        os.read(self._read_end, 1)


def _fail(message: str) -> int:
    print(f"tokend: {message}", file=sys.stderr)  # noqa: T201 (why there is no server)
    return _EXIT_NOT_STARTED


if __name__ == "__main__":
    sys.exit(main())
