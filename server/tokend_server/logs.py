"""Structured logs on stderr: one line a record, a fixed message and named fields, and never a caller's text.

That no text gets in is by construction: our own records are a message that stands in the source and fields of
plain values; what other libraries log is reduced to who logged and where; of an exception only its type and the
places it passed through are told (its message may quote the text that caused it).
"""

import contextlib
import json
import logging
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

__all__ = ["Field", "Log", "configure", "get", "trace"]

Field = str | int | float | bool | None
_ROOT = "tokend"
# Strings longer than this are cut: a field is a name or a figure.
_MAX_FIELD_CHARACTERS = 512
_MAX_FRAMES = 12


class Log:
    """Writes records of one part of the server."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, message: str, /, **fields: Field) -> None:
        """Write one record for each call or message; `message` is a literal, never built from a request."""
        self._write(logging.DEBUG, message, fields)

    def info(self, message: str, /, **fields: Field) -> None:
        """Write what an operator wants to see: start, stop, each refusal."""
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: Field) -> None:
        """Write what works but is probably not meant, as truncation inside the tokenizer file."""
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, /, *, error: BaseException | None = None, **fields: Field) -> None:
        """Write a fault of the server; of `error` its type and its way through the code, not its message."""
        if error is not None:
            fields = {**fields, "exception": type(error).__name__, "trace": trace(error.__traceback__)}
        self._write(logging.ERROR, message, fields)

    def is_debug(self) -> bool:
        """Tell whether debug records are written, for callers whose fields cost something."""
        return self._logger.isEnabledFor(logging.DEBUG)

    def _write(self, level: int, message: str, fields: Mapping[str, Field]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, message, extra={"tokend_fields": fields})


def get(name: str) -> Log:
    """Return the log of one part of the server, as `get("transport")`."""
    return Log(logging.getLogger(f"{_ROOT}.{name}"))


def trace(traceback: TracebackType | None) -> str:
    """Return the places an exception passed through, outermost first: `file.py:12 f > ...`. Empty without one."""
    places = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        places.append(
            f"{'/'.join(code.co_filename.rsplit('/', 2)[-2:])}:{traceback.tb_lineno} {code.co_name}"
        )
        traceback = traceback.tb_next
    return " > ".join(places[-_MAX_FRAMES:])


def _fields_of(record: logging.LogRecord) -> tuple[str, Mapping[str, Field]]:
    """Return a record's message and fields; a foreign record is reduced to who logged and where."""
    fields: Mapping[str, Field] | None = getattr(record, "tokend_fields", None)
    if fields is not None:
        return record.msg, fields
    foreign: dict[str, Field] = {"library": record.name, "at": f"{record.filename}:{record.lineno}"}
    if record.exc_info and record.exc_info[0] is not None:
        foreign["exception"] = record.exc_info[0].__name__
        foreign["trace"] = trace(record.exc_info[2])
    return "a library logged a record; its message is withheld", foreign


def _plain(value: Field) -> Field:
    if isinstance(value, str) and len(value) > _MAX_FIELD_CHARACTERS:
        return value[:_MAX_FIELD_CHARACTERS] + "…"
    return value


def _time_of(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message, fields = _fields_of(record)
        line: dict[str, Field] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        # The four fixed keys come first, and win over a field of the same name, so that a line always has them. ASCII
        # output keeps lone surrogates, line separators and every encoding of the terminal harmless.
        plain = {name: _plain(value) for name, value in fields.items()}
        return json.dumps(line | plain | line, default=_kind_of)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message, fields = _fields_of(record)
        parts = [_time_of(record), f"{record.levelname:<7}", record.name, message]
        parts += [f"{name}={_quoted(value)}" for name, value in fields.items()]
        return " ".join(parts)


def _kind_of(value: object) -> str:
    """Stand in for what is no plain value: its type, because its text is not ours to print."""
    return f"<{type(value).__name__}>"


def _quoted(value: Field) -> str:
    """Return a value of a text line: bare where no one can mistake its end, else a JSON string."""
    plain = _plain(value)
    if (
        isinstance(plain, str)
        and plain.isascii()
        and plain.isprintable()
        and plain
        and not set(plain) & set(' "=\\')
    ):
        return plain
    return json.dumps(plain, default=_kind_of)


class _StderrHandler(logging.Handler):
    """Writes to whatever `sys.stderr` is at that moment: the guard of native_stderr.py rebinds it."""

    def emit(self, record: logging.LogRecord) -> None:
        # A log that cannot be written must not fail the call; logging's own way would print the record's arguments.
        with contextlib.suppress(Exception):
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()


def configure(level: str, log_format: str) -> None:
    """Send every record of the process to stderr in one form; later calls replace earlier ones.

    Exceptions that end a thread, or that Python cannot raise, are logged the same way instead of printed.

    Args:
        level: `debug`, `info`, `warning` or `error`: the least severe record that is written.
        log_format: `text` or `json`.
    """
    handler = _StderrHandler()
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _StderrHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    # Other libraries are heard from warnings on; our own level is the setting's.
    root.setLevel(logging.WARNING)
    logging.getLogger(_ROOT).setLevel(level.upper())
    threading.excepthook = _log_thread_exception
    sys.unraisablehook = _log_unraisable


def _log_thread_exception(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is not SystemExit:
        get("thread").error(
            "a thread ended with an exception",
            exception=args.exc_type.__name__,
            trace=trace(args.exc_traceback),
        )


def _log_unraisable(args: "UnraisableHookArgs") -> None:
    get("thread").error(
        "an exception could not be raised", exception=args.exc_type.__name__, trace=trace(args.exc_traceback)
    )
