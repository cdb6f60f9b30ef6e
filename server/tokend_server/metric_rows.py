"""Where the numbers of a server's metrics lie: a row of cells for each process that counts.

A server of one process has one row, an array of its own. With several workers the rows lie side by side in memory
that all of them share, made before the fork. Each process writes its own row alone, so none waits for another, and
whoever is scraped adds them up. A row outlives its process: the next one goes on from its counts, so that no sum ever
runs back; only what lived in the process (gauges, labels) is cleared when it has died.
"""

import json
import mmap
import struct
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

__all__ = ["Cells", "Labels", "LocalRow", "Row", "SharedRow", "SharedRows"]

Labels = Mapping[str, Mapping[str, str]]
"""The labels of info metrics, by the metric's name."""

_CELL_BYTES = 8
# A dozen labels of 128 characters; memory that is never written is never taken.
_LABELS_BYTES = 16 * 1024
_LABELS_HEAD = struct.Struct("=II")  # length, checksum


class Cells(Protocol):
    """Numbers by place: an array, or a view of shared memory."""

    def __getitem__(self, cell: int, /) -> float: ...
    def __setitem__(self, cell: int, value: float, /) -> None: ...
    def __len__(self) -> int: ...


class Row(Protocol):
    """What one process counts into, and what a scrape of it shows."""

    @property
    def cells(self) -> Cells:
        """The cells of this process."""

    def grow(self, n_cells: int) -> None:
        """Make room for that many cells in all, the new ones at zero."""

    def totals(self) -> Sequence[float]:
        """Return a copy of what a scrape shows: for each cell the sum over all rows."""

    def each(self, cell: int) -> Sequence[float]:
        """Return what the processes have in a cell, one by one."""

    def set_labels(self, labels: Labels) -> None:
        """Set the labels of this process's info metrics, for all of them at once."""

    def all_labels(self) -> list[Labels]:
        """Return the labels that the processes have set."""


class LocalRow:
    """The only row of a server of one process."""

    def __init__(self) -> None:
        self.cells: array[float] = array("d")
        self._labels: list[Labels] = []

    def grow(self, n_cells: int) -> None:
        """Make room for that many cells in all, the new ones at zero."""
        self.cells.extend([0.0] * (n_cells - len(self.cells)))

    def totals(self) -> Sequence[float]:
        """Return a copy of the cells; the caller keeps writers out meanwhile."""
        return self.cells[:]

    def each(self, cell: int) -> Sequence[float]:
        """Return the cell."""
        return [self.cells[cell]]

    def set_labels(self, labels: Labels) -> None:
        """Set the labels of the info metrics."""
        self._labels = [labels]

    def all_labels(self) -> list[Labels]:
        """Return the labels, or nothing before there are any."""
        return self._labels


class SharedRows:
    """The rows of several processes, all at zero. Made once, before the first fork."""

    def __init__(self, n_rows: int, n_cells: int) -> None:
        """Take the memory.

        Args:
            n_rows: How many processes count.
            n_cells: How many cells a row has.
        """
        self.n_cells = n_cells
        self._cells_bytes = n_cells * _CELL_BYTES
        stride = self._cells_bytes + _LABELS_BYTES
        # Anonymous and shared: children that are forked later write into the same pages.
        memory = memoryview(mmap.mmap(-1, n_rows * stride))
        parts = [memory[n * stride : (n + 1) * stride] for n in range(n_rows)]
        self._rows = [part[: self._cells_bytes].cast("d") for part in parts]
        self._labels = [part[self._cells_bytes :] for part in parts]

    def row(self, n: int) -> "SharedRow":
        """Return the row of one process; whatever is in it stays."""
        return SharedRow(self, self._rows[n], self._labels[n])

    def totals(self) -> list[float]:
        """Return for each cell the sum over all rows.

        A writer is not held up, so two cells of one row may be some microseconds apart. Each cell by itself is read
        whole: it is eight aligned bytes.
        """
        return list(map(sum, zip(*(row.tolist() for row in self._rows), strict=True)))

    def each(self, cell: int) -> list[float]:
        """Return what the rows have in a cell, one by one."""
        return [row[cell] for row in self._rows]

    def bury(self, n: int, gauges: Iterable[int]) -> None:
        """Clear what lived in a process that has died: its gauges and labels. Its counts stay."""
        for cell in gauges:
            self._rows[n][cell] = 0.0
        _LABELS_HEAD.pack_into(self._labels[n], 0, 0, 0)

    def all_labels(self) -> list[Labels]:
        """Return the labels that living processes have set, each set once."""
        found = [labels for area in self._labels if (labels := _read_labels(area)) is not None]
        return [labels for n, labels in enumerate(found) if labels not in found[:n]]


class SharedRow:
    """The row of one of several processes."""

    def __init__(self, rows: SharedRows, cells: "memoryview[float]", labels: "memoryview[int]") -> None:
        self._rows = rows
        self._label_bytes = labels
        self.cells = cells

    def grow(self, n_cells: int) -> None:
        """Check that there is room: every process makes the same series in the same order.

        Raises:
            ValueError: There is not.
        """
        if n_cells > len(self.cells):
            raise ValueError(f"a row of {len(self.cells)} cells is too short for {n_cells}")

    def totals(self) -> Sequence[float]:
        """Return for each cell the sum over all rows."""
        return self._rows.totals()

    def each(self, cell: int) -> Sequence[float]:
        """Return what all rows have in a cell, one by one."""
        return self._rows.each(cell)

    def set_labels(self, labels: Labels) -> None:
        """Set the labels of this process; a reader sees the old ones, the new ones, or for a moment none."""
        data = json.dumps(labels).encode()
        self._label_bytes[_LABELS_HEAD.size : _LABELS_HEAD.size + len(data)] = data
        _LABELS_HEAD.pack_into(self._label_bytes, 0, len(data), zlib.crc32(data))

    def all_labels(self) -> list[Labels]:
        """Return the labels that living processes have set, each set once."""
        return self._rows.all_labels()


def _read_labels(area: "memoryview[int]") -> Labels | None:
    """Read one process's labels; None where it has set none, died while it wrote, or is writing now."""
    length, checksum = _LABELS_HEAD.unpack_from(area)
    data = bytes(area[_LABELS_HEAD.size : _LABELS_HEAD.size + length])
    if not length or zlib.crc32(data) != checksum:
        return None
    labels: Labels = json.loads(data)
    return labels
