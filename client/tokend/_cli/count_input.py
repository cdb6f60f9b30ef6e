"""The texts that `tokend count` counts: whole files or their lines, in batches, in bounded memory."""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedReader

from tokend._cli.failures import CliFailure, bad_input
from tokend._cli.inputs import STANDARD_INPUT, decoded, label, open_input, read_bytes, unreadable

__all__ = ["TextBatch", "batches", "total_bytes"]

_BATCH_TEXTS = 1024
_BATCH_BYTES = 1 << 20
_LONGEST_LINE_END = len(b"\r\n")


@dataclass(slots=True)
class TextBatch:
    """Texts that are counted in one call, and where each comes from."""

    texts: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    lines: list[int | None] = field(default_factory=list)
    """The number of each line, from 1; None for whole files."""
    n_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """Whether it is time to send it."""
        return len(self.texts) >= _BATCH_TEXTS or self.n_bytes >= _BATCH_BYTES

    def add(self, text: str, name: str, line: int | None, n_bytes: int) -> None:
        """Takes one more text."""
        self.texts.append(text)
        self.names.append(name)
        self.lines.append(line)
        self.n_bytes += n_bytes

    def subject(self, index: int) -> str:
        """What one text is called in a sentence."""
        line = self.lines[index]
        return label(self.names[index]) + ("" if line is None else f":{line}")

    def place(self, index: int) -> str:
        """Where one text comes from: its file, or its file and line."""
        line = self.lines[index]
        return self.names[index] if line is None else f"{self.names[index]}:{line}"


def batches(names: Sequence[str], *, by_line: bool, max_text_bytes: int) -> Iterator[TextBatch | CliFailure]:
    """Reads files and gathers their texts.

    A file that cannot be counted gives its failure, after the texts before the bad place; then the next one is read.

    Args:
        names: The files; `-` is standard input.
        by_line: Each line is a text, without its line end; else each file is one.
        max_text_bytes: The longest text that the server takes; no more of one is ever read.
    """
    batch = TextBatch()
    for name in names:
        try:
            with open_input(name) as file:
                texts = _lines(file, name, max_text_bytes) if by_line else _whole(file, name, max_text_bytes)
                for text, line, n_bytes in texts:
                    batch.add(text, name, line, n_bytes)
                    if batch.is_full:
                        yield batch
                        batch = TextBatch()
        except CliFailure as failure:
            if batch.texts:
                yield batch
                batch = TextBatch()
            yield failure
    if batch.texts:
        yield batch


def total_bytes(names: Sequence[str]) -> int | None:
    """How many bytes there are to read; None if one of the files is a pipe or the like."""
    total = 0
    for name in names:
        try:
            status = os.fstat(0) if name == STANDARD_INPUT else os.stat(name)  # noqa: PTH116 (names of odd bytes)
        except (OSError, ValueError):
            continue
        if not stat.S_ISREG(status.st_mode):
            return None
        total += status.st_size
    return total


def _whole(file: BufferedReader, name: str, max_text_bytes: int) -> Iterator[tuple[str, None, int]]:
    data = read_bytes(file, name, max_text_bytes + 1)
    if len(data) > max_text_bytes:
        raise bad_input(
            f"{label(name)} has more than {max_text_bytes:,} bytes, the longest text that the server takes; "
            "--lines counts each line as a text of its own"
        )
    yield decoded(data, name), None, len(data)


def _lines(file: BufferedReader, name: str, max_text_bytes: int) -> Iterator[tuple[str, int, int]]:
    start_byte, number = 0, 0
    while data := _read_line(file, name, max_text_bytes + _LONGEST_LINE_END):
        number += 1
        line = data.removesuffix(b"\n")
        if line is not data:
            line = line.removesuffix(b"\r")
        if len(line) > max_text_bytes:
            raise bad_input(
                f"{label(name)}:{number} has more than {max_text_bytes:,} bytes, the longest text that the server takes; "
                "its --max-text-bytes allows more"
            )
        yield decoded(line, name, start_byte=start_byte), number, len(data)
        start_byte += len(data)


def _read_line(file: BufferedReader, name: str, n_bytes: int) -> bytes:
    try:
        return file.readline(n_bytes)
    except OSError as error:
        raise unreadable(name, error) from error
