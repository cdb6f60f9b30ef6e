"""What the server counts, and for whom: docs/metrics.md has each name with the question it answers.

Label values come from fixed lists (the methods of the served descriptors, gRPC's codes, our reasons); a caller
cannot make a series. Every series exists at zero from the start, so that a rate never misses its first event.
"""

import platform
import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, GCCollector, Info, PlatformCollector, ProcessCollector

from tokend_server.method_metrics import (
    SERVICE,
    WORK_METHODS,
    Call,
    Method,
    MethodMetrics,
    WorkMetrics,
    methods_of,
)
from tokend_server.metric_cells import CellTable

__all__ = ["Call", "Method", "MethodMetrics", "Metrics", "Tally", "WorkMetrics", "methods_of"]

_OTHER = "other"


class Tally:
    """One series that is moved by hand: a total, or a number of living things."""

    __slots__ = ("_cell", "_cells", "_lock")

    def __init__(self, table: CellTable, cell: int) -> None:
        self._cells, self._lock, self._cell = table.cells, table.lock, cell

    def add(self, n: float) -> None:
        """Add `n`, which is negative only for what lives and dies."""
        with self._lock:
            self._cells[self._cell] += n


class Metrics:
    """All series of one server, on a registry of its own: several servers in a process do not mix."""

    def __init__(
        self, methods: Iterable[Method], *, version: str, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Make every series.

        Args:
            methods: Of every service that is served (`methods_of`); calls of anything else count as `other`.
            version: Of the server, for `tokend_build_info`.
            clock: Seconds from any origin, never running back.
        """
        self.registry = CollectorRegistry()
        self._table = table = CellTable()
        self._by_path: dict[str, MethodMetrics] = {}
        self._by_name: dict[str, WorkMetrics] = {}
        for method in methods:
            if method.service == SERVICE and method.name in WORK_METHODS:
                self._by_path[method.path] = self._by_name[method.name] = WorkMetrics(table, method, clock)
            else:
                self._by_path[method.path] = MethodMetrics(table, method, clock)
        self._other = MethodMetrics(table, Method(service=_OTHER, name=_OTHER, type="unary"), clock)
        self.live_sequences = Tally(
            table, table.gauge("tokend_live_sequences", "Open sequences of all StreamDecodes.")
        )
        self.native_stderr_lines = Tally(
            table,
            table.counter(
                "tokend_native_stderr_lines", "Lines that native libraries printed; kept out of the log."
            ),
        )
        self.registry.register(table)
        self._tokenizer = Info("tokend_tokenizer", "The tokenizer that is served.", registry=self.registry)
        build = Info("tokend_build", "The server's version.", registry=self.registry)
        build.info({"version": _label(version), "python": platform.python_version()})
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def method(self, path: str) -> MethodMetrics:
        """Return the counters of a method by its path on the wire; one set serves all unknown methods."""
        return self._by_path.get(path, self._other)

    def work(self, name: str) -> WorkMetrics:
        """Return the counters of a method of our own service that tokenizes, by its name: `work("Encode")`."""
        return self._by_name[name]

    def set_tokenizer(self, **labels: str) -> None:
        """Say which tokenizer is served, as labels of `tokend_tokenizer_info`; a later call replaces the earlier."""
        self._tokenizer.info({name: _label(value) for name, value in labels.items()})


def _label(value: str) -> str:
    """Return a value that a scrape can hold: a lone surrogate, as file names may have, would break every later one."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8")[:128]
