"""Gauges of what is in work now, and of how much fits."""

from tokend_server.metric_cells import CellTable

__all__ = ["Level", "WorkLevels"]


class Level:
    """One gauge that has a single owner, who sets it under a lock of its own."""

    __slots__ = ("_cell", "_cells")

    def __init__(self, table: CellTable, cell: int) -> None:
        self._cells, self._cell = table.cells, cell

    def set(self, value: float) -> None:
        """Show this value from now on."""
        self._cells[self._cell] = value


class WorkLevels:
    """What is in work now and what fits, of one kind of calls: `unary` or `stream`."""

    def __init__(self, table: CellTable, kind: str) -> None:
        labels = {"kind": kind}
        self.texts = Level(
            table, table.gauge("tokend_work_texts", "Texts, or lists of ids, in work.", labels)
        )
        self.text_bytes = Level(table, table.gauge("tokend_work_bytes", "Bytes of requests in work.", labels))
        self.max_texts = Level(
            table, table.gauge("tokend_max_work_texts", "Most texts, or lists of ids, in work.", labels)
        )
        self.max_text_bytes = Level(
            table, table.gauge("tokend_max_work_bytes", "Most bytes of requests in work.", labels)
        )
