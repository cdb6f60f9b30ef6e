"""`python -m tokend_server serve`, `verify` and `new-token`: read the settings, serve until a signal, exit with a code that says how."""

import os
import sys
from collections.abc import Sequence

from tokend_server import logs, new_token_command, verify_command
from tokend_server.app import App
from tokend_server.config import ConfigError, Settings, UnixAddress, load, print_config
from tokend_server.cores import usable_cores
from tokend_server.errors import CredentialsError, TokenizerFileError
from tokend_server.fleet import Fleet
from tokend_server.native_stderr import unbuffer_stderr
from tokend_server.stop_signals import StopSignals
from tokend_server.supervisor import StartFailed
from tokend_server.tracing import problem_with

__all__ = ["main"]

_EXIT_STOPPED = 0
_EXIT_CUT_OFF = 1
_EXIT_NOT_STARTED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server, verify a file, or make a token.

    Args:
        argv: `serve` and its flags, `verify` and a file, or `new-token` and a name; None: the process's own.

    Returns:
        Of `verify` and `new-token`: see there. Of `serve`: 0 after a drain, 1 if a worker had to be killed at its end, 2 if it could not start.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["verify"]:
        return verify_command.main(arguments[1:])
    if arguments[:1] == ["new-token"]:
        return new_token_command.main(arguments[1:])
    if arguments[:1] != ["serve"]:
        return _fail("usage: python -m tokend_server serve [--help], verify FILE, or new-token NAME")
    try:
        loaded = load(arguments[1:], os.environ)
    except ConfigError as error:
        return _fail(str(error))
    if loaded.print_config:
        sys.stdout.write(print_config(loaded))
        return _EXIT_STOPPED
    return _start(loaded.settings)


def _start(settings: Settings) -> int:
    if problem := problem_with(settings.traces):
        return _fail(problem)
    unbuffer_stderr()
    logs.configure(settings.log_level, settings.log_format)
    n_workers = settings.workers or (1 if isinstance(settings.listen, UnixAddress) else usable_cores())
    return _serve(settings) if n_workers == 1 else _serve_by_workers(settings, n_workers)


def _serve(settings: Settings) -> int:
    stop = StopSignals()
    try:
        app = App(settings)
    except (OSError, CredentialsError) as error:
        return _fail(_line_of(error))
    try:
        ready_line = app.start()
    except TokenizerFileError as error:
        app.stop()
        return _fail(str(error))
    if not stop.came():
        _say(ready_line)
    stop.wait()
    app.stop()
    return _EXIT_STOPPED


def _serve_by_workers(settings: Settings, n_workers: int) -> int:
    try:
        fleet = Fleet(settings, n_workers, StopSignals(watch_children=True))
    except (OSError, CredentialsError) as error:
        return _fail(_line_of(error))
    try:
        ready_line = fleet.start()
    except (TokenizerFileError, StartFailed, OSError) as error:
        fleet.stop()
        return _fail(str(error))
    if ready_line:
        _say(ready_line)
        fleet.watch()
    return _EXIT_STOPPED if fleet.stop() else _EXIT_CUT_OFF


def _line_of(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _say(ready_line: str) -> None:
    print(ready_line, flush=True)  # noqa: T201 (the ready line is the product's word on stdout)


def _fail(message: str) -> int:
    print(f"tokend: {message}", file=sys.stderr)  # noqa: T201 (why there is no server)
    return _EXIT_NOT_STARTED


if __name__ == "__main__":
    sys.exit(main())
