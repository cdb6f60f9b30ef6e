"""A table of numbers that the hot path adds to, and the Prometheus collector that reads it.

prometheus_client's own counters take a lock each and a histogram walks its buckets: a call that moves a dozen of
them pays twice what it pays here. Here every series is a cell of one row of doubles (metric_rows.py), one lock guards
all, and a histogram finds its bucket by bisection. A scrape copies the row under the lock, so that what it shows belongs
together.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tokend_server.metric_rows import Cells, LocalRow, Row

__all__ = ["CellTable", "Cells", "Histogram", "Labels"]

Labels = Mapping[str, str] | Callable[[], Mapping[str, str] | None] | None
"""The labels of a series: fixed, or asked for at each scrape, which leaves the series out for None."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Histogram:
    """Where a histogram's cells lie: one for each bound, one for what is above all, then the sum."""

    bounds: tuple[float, ...]
    first: int
    sum: int

    def observe(self, cells: Cells, value: float) -> None:
        """Count `value` in its bucket; the caller holds the table's lock."""
        cells[self.first + bisect_left(self.bounds, value)] += 1
        cells[self.sum] += value


@dataclass(kw_only=True, slots=True)
class _Family:
    name: str
    help: str
    type: str
    least: bool
    rows: list[tuple[Labels, int | Histogram]] = field(default_factory=list)


class CellTable(Collector):
    """Hands out cells, all of them at zero from the start, and shows them to a registry."""

    def __init__(self, row: Row | None = None) -> None:
        """Begin a table on a row; None: on one of its own."""
        self._row = row or LocalRow()
        self.cells: Cells = self._row.cells
        self._n_cells = 0
        # Reentrant: a garbage collection that starts under the lock may end a dropped call, which counts it.
        self.lock = threading.RLock()
        self._families: dict[str, _Family] = {}

    def counter(self, name: str, help_text: str, labels: Labels = None) -> int:
        """Add a series that only grows, named `name` with `_total` behind it, and return its cell."""
        return self._single(name, help_text, "counter", labels)

    def gauge(self, name: str, help_text: str, labels: Labels = None) -> int:
        """Add a series that goes up and down, and return its cell."""
        return self._single(name, help_text, "gauge", labels)

    def least(self, name: str, help_text: str) -> int:
        """Add a gauge of which not the sum of all processes is shown but the least that is not 0; return its cell."""
        cell = self._single(name, help_text, "gauge", None)
        self._families[name].least = True
        return cell

    def histogram(
        self, name: str, help_text: str, bounds: tuple[float, ...], labels: Labels = None
    ) -> Histogram:
        """Add a histogram whose buckets end at `bounds` (ascending, each included) and at infinity."""
        first = self._allocate(len(bounds) + 2)
        histogram = Histogram(bounds=bounds, first=first, sum=first + len(bounds) + 1)
        self._family(name, help_text, "histogram").rows.append((labels, histogram))
        return histogram

    def _single(self, name: str, help_text: str, kind: str, labels: Labels) -> int:
        cell = self._allocate(1)
        self._family(name, help_text, kind).rows.append((labels, cell))
        return cell

    def _allocate(self, n_cells: int) -> int:
        first, self._n_cells = self._n_cells, self._n_cells + n_cells
        self._row.grow(self._n_cells)
        return first

    def _family(self, name: str, help_text: str, kind: str) -> _Family:
        return self._families.setdefault(name, _Family(name=name, help=help_text, type=kind, least=False))

    def total(self, cell: int) -> float:
        """Return what a scrape would show of a counter or a gauge."""
        with self.lock:
            return self._row.totals()[cell]

    def gauges(self) -> list[int]:
        """Return the cells of all gauges: what must not outlive the process that counts."""
        return [
            cell
            for family in self._families.values()
            if family.type == "gauge"
            for _, cell in family.rows
            if isinstance(cell, int)
        ]

    def describe(self) -> Iterable[Metric]:
        """Yield the families without samples; a registry checks their names when the table is registered."""
        for family in self._families.values():
            yield Metric(family.name, family.help, family.type)

    def collect(self) -> Iterable[Metric]:
        """Yield every family with the values of one moment; those of other processes may be microseconds apart."""
        with self.lock:
            values = self._row.totals()
        for family in self._families.values():
            metric = Metric(family.name, family.help, family.type)
            suffix = "_total" if family.type == "counter" else ""
            for given, cells in family.rows:
                labels = given() if callable(given) else given or {}
                if labels is None:
                    continue
                if isinstance(cells, Histogram):
                    _add_histogram(metric, labels, cells, values)
                else:
                    shown = self._least_of(cells) if family.least else values[cells]
                    metric.add_sample(family.name + suffix, dict(labels), shown)
            yield metric

    def _least_of(self, cell: int) -> float:
        return min(filter(None, self._row.each(cell)), default=0.0)


def _add_histogram(
    metric: Metric, labels: Mapping[str, str], histogram: Histogram, values: Sequence[float]
) -> None:
    total = 0.0
    for offset, bound in enumerate((*histogram.bounds, float("inf"))):
        total += values[histogram.first + offset]
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": _bound_text(bound)}, total)
    metric.add_sample(f"{metric.name}_count", dict(labels), total)
    metric.add_sample(f"{metric.name}_sum", dict(labels), values[histogram.sum])


def _bound_text(bound: float) -> str:
    """Return a bound as the label `le`; whole powers of two are written out, as 1048576.0."""
    return "+Inf" if bound == float("inf") else repr(bound)
