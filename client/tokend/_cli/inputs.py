"""What a command reads: texts and ids from arguments, standard input and files.

Files are bytes here and are decoded strictly: no newline is changed, no byte-order mark dropped, and what is not
UTF-8 is refused with its place.
"""

import os
import sys
from collections.abc import Sequence
from io import BufferedReader
from typing import IO

from tokend._cli.failures import CliFailure, bad_input

__all__ = [
    "IdReader",
    "argument_text",
    "decoded",
    "label",
    "open_input",
    "parse_ids",
    "read_bytes",
    "read_text",
    "standard_input",
]

STANDARD_INPUT = "-"
_READ_BYTES = 1 << 20
_MAX_ID = 0xFFFFFFFF
_SEPARATORS = b" \t\n\r\f\v,"
_ID_BYTES = b"0123456789" + _SEPARATORS
# Longer than any id with some leading zeros: no more of such a word has to be read to refuse it.
_LONGEST_WORD = 32


def argument_text(value: str, name: str) -> str:
    """Reads an argument of the command line as text.

    >>> argument_text("naïve", "TEXT")
    'naïve'
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        # Bytes that the locale could not read; in a locale without UTF-8 they may be UTF-8 all the same.
        return decoded(os.fsencode(value), name)
    return value


def standard_input() -> IO[bytes]:
    """The process's standard input."""
    if sys.stdin is None:
        raise bad_input("standard input is closed")
    return sys.stdin.buffer


def label(name: str) -> str:
    """What an input is called in a sentence."""
    return "standard input" if name == STANDARD_INPUT else name


def open_input(name: str) -> BufferedReader:
    """Opens a file for reading; `-` is standard input, which closing leaves open."""
    if name == STANDARD_INPUT:
        return open(standard_input().fileno(), "rb", closefd=False)
    try:
        return open(name, "rb")  # noqa: PTH123 (a name of odd bytes stays as it is)
    except OSError as error:
        raise unreadable(name, error) from error
    except ValueError as error:
        raise bad_input(f"cannot read {name!r}: {error}") from error


def unreadable(name: str, error: OSError) -> CliFailure:
    """A file that cannot be read."""
    return bad_input(f"cannot read {label(name)}: {error.strerror or error}")


def read_text(name: str) -> str:
    """Reads a whole file, or standard input, as text."""
    with open_input(name) as file:
        return decoded(read_bytes(file, name), name)


def read_bytes(file: BufferedReader, name: str, n_bytes: int | None = None) -> bytes:
    """Reads so many bytes, fewer where the file ends before, or all.

    Args:
        file: An open file.
        name: What it is called.
        n_bytes: How many, at most; None: all.
    """
    parts = []
    left = _READ_BYTES if n_bytes is None else n_bytes
    # In portions, since one read of all would not see a Ctrl-C that falls between two of its system calls.
    while left:
        try:
            part = file.read1(min(left, _READ_BYTES))
        except OSError as error:
            raise unreadable(name, error) from error
        if not part:
            break
        parts.append(part)
        if n_bytes is not None:
            left -= len(part)
    return b"".join(parts)


def decoded(data: bytes, name: str, *, start_byte: int = 0) -> str:
    """Reads bytes as UTF-8.

    Args:
        data: The bytes.
        name: The file that they come from.
        start_byte: Where in the file they start.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        at = error.start
    raise bad_input(
        f"{label(name)} is not UTF-8: byte 0x{data[at]:02x} at position {start_byte + at:,} (counted from 0); "
        "convert it, for example with iconv"
    )


def parse_ids(words: Sequence[str], name: str) -> list[int]:
    """Reads ids from arguments.

    >>> parse_ids(["1", "2,3"], "IDS"), parse_ids(["[4, 5]"], "IDS")
    ([1, 2, 3], [4, 5])
    """
    reader = IdReader(name)
    return [*reader.feed(" ".join(words).encode("utf-8", "surrogateescape")), *reader.finish()]


class IdReader:
    r"""Ids out of bytes that come in any portions, between white space or commas; brackets may stand around all.

    >>> reader = IdReader("-")
    >>> reader.feed(b"15 4"), reader.feed(b"2\n7"), reader.finish()
    ([15], [42], [7])
    """

    def __init__(self, name: str) -> None:
        self._name = label(name)
        self._rest = b""
        self._n_ids = 0
        self._is_open = False
        self._is_closed = False

    def feed(self, data: bytes) -> list[int]:
        """Takes some bytes and returns the ids that are complete with them."""
        data = self._rest + data
        # A last word without a separator after it may go on in the next portion.
        end = max(data.rfind(bytes([separator])) for separator in _SEPARATORS) + 1
        self._rest = data[end:]
        if len(self._rest) > _LONGEST_WORD:
            raise self._refused(self._rest)
        return self._ids(data[:end])

    def finish(self) -> list[int]:
        """Returns the last id, if the input ended right behind it."""
        rest, self._rest = self._rest, b""
        return self._ids(rest)

    def _ids(self, data: bytes) -> list[int]:
        words = data.replace(b",", b" ").split()
        if not self._is_closed and not data.translate(None, _ID_BYTES):
            # Nothing but digits, as nearly always: no word needs a look of its own.
            if max(map(len, words), default=0) > _LONGEST_WORD:
                raise self._refused(max(words, key=len))
            ids = [int(word) for word in words]
        else:
            ids = [number for word in words for number in self._slow(word)]
        if ids and max(ids) > _MAX_ID:
            raise self._refused(str(max(ids)).encode())
        self._n_ids += len(ids)
        return ids

    def _slow(self, word: bytes) -> list[int]:
        bare = word
        if self._is_closed:
            raise self._refused(word)
        if bare.startswith(b"[") and not self._is_open and not self._n_ids:
            self._is_open, bare = True, bare[1:]
        if bare.endswith(b"]") and self._is_open:
            self._is_closed, bare = True, bare[:-1]
        if not bare:
            return []
        if not bare.isdigit() or len(bare) > _LONGEST_WORD:
            raise self._refused(word)
        return [int(bare)]

    def _refused(self, word: bytes) -> CliFailure:
        shown = word[:_LONGEST_WORD].decode("utf-8", "backslashreplace")
        more = "..." if len(word) > _LONGEST_WORD else ""
        return bad_input(
            f"{self._name}: {shown!r}{more} is not an id; ids are whole numbers from 0 to {_MAX_ID}, "
            "separated by white space or commas"
        )
