"""`python -m tokend_server verify FILE`: whether the fast engine may serve a file, and why not."""

import os
import sys
from collections.abc import Sequence

from tokend_server.config import ConfigError, load
from tokend_server.data import default_tokenizer_path
from tokend_server.engine.verdicts import VerdictStore
from tokend_server.engine.verification import render_report, verify
from tokend_server.errors import TokenizerFileError
from tokend_server.loading import state_folder
from tokend_server.setting_flags import VERIFY

__all__ = ["EXIT_NOT_SERVABLE", "EXIT_REFERENCE_ONLY", "EXIT_VERIFIED", "main"]

EXIT_VERIFIED = 0
EXIT_NOT_SERVABLE = 2
EXIT_REFERENCE_ONLY = 3


def main(arguments: Sequence[str]) -> int:
    """Verify, print the report on stdout and progress on stderr, and keep the verdict for `serve`.

    Args:
        arguments: The file and flags; see `VERIFY`. Those that `serve` will have give it the verdict.

    Returns:
        0 if the fast engine may serve the file, 3 if only the reference may, 2 if nothing can.
    """
    try:
        settings = load(arguments, os.environ, command=VERIFY).settings
    except ConfigError as error:
        return _fail(str(error))
    progress = _Progress()
    store = VerdictStore(state_folder(settings), warn=_warn)
    try:
        report = verify(
            settings.tokenizer or default_tokenizer_path(),
            progress=progress.told,
            store=store,
            control_tokens=settings.control_tokens,
        )
    except TokenizerFileError as error:
        return _fail(str(error))
    finally:
        progress.end()
    sys.stdout.write(render_report(report))
    return EXIT_VERIFIED if report.may_serve else EXIT_REFERENCE_ONLY


class _Progress:
    """One line that moves on a terminal; elsewhere one line a phase."""

    def __init__(self) -> None:
        self._moves = sys.stderr.isatty()
        self._phase = ""

    def told(self, phase: str, share: float) -> None:
        if self._moves:
            sys.stderr.write(f"\r\x1b[K{phase} {share:.0%}")
            sys.stderr.flush()
        elif phase != self._phase:
            sys.stderr.write(f"{phase}\n")
        self._phase = phase

    def end(self) -> None:
        if self._moves and self._phase:
            sys.stderr.write("\r\x1b[K")


def _warn(what: str) -> None:
    sys.stderr.write(f"tokend: {what}\n")


def _fail(message: str) -> int:
    _warn(message)
    return EXIT_NOT_SERVABLE
