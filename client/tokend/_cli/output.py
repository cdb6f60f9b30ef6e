"""What a command writes to standard output: exact bytes, whatever the locale."""

import base64
import json
import os
import sys
from dataclasses import dataclass
from typing import IO

from tokend._cli.failures import bad_input

__all__ = ["Output", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Standard output as UTF-8."""

    stream: IO[bytes]
    is_terminal: bool

    @classmethod
    def of_process(cls) -> "Output":
        """The process's standard output."""
        if sys.stdout is None:
            raise bad_input("standard output is closed")
        return cls(stream=sys.stdout.buffer, is_terminal=sys.stdout.isatty())

    def write(self, text: str) -> None:
        """Writes text as it is; the bytes of a file name that is not UTF-8 come out as they are."""
        self.stream.write(text.encode("utf-8", "surrogateescape"))

    def write_bytes(self, data: bytes) -> None:
        """Writes bytes as they are."""
        self.stream.write(data)

    def write_json(self, reply: object) -> None:
        """Writes one JSON value on a line; bytes are base64, as in protobuf's JSON."""
        line = json.dumps(reply, ensure_ascii=False, default=_base64)
        # A file name's odd bytes are lone surrogates, which backslashreplace turns into JSON's own escapes.
        self.stream.write(line.encode("utf-8", "backslashreplace") + b"\n")

    def end_line(self, last: str) -> None:
        """Ends a text that is meant to be exact: a terminal gets the newline that the text lacks, others nothing."""
        if self.is_terminal and last and not last.endswith("\n"):
            self.stream.write(b"\n")

    def has_colour(self, wish: str) -> bool:
        """Whether to colour: `always`, `never`, or `auto` for a terminal that can, unless NO_COLOR is set."""
        if wish != "auto":
            return wish == "always"
        return self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def flush(self) -> None:
        """Hands everything over now; where nobody reads any more this raises BrokenPipeError."""
        self.stream.flush()


def note(message: str) -> None:
    """Says something on standard error that is no failure."""
    sys.stderr.write(f"tokend: note: {message}\n")


def _base64(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    raise TypeError(f"no JSON for {type(value).__name__}")
