"""What the server counts, and for whom: docs/metrics.md has each name with the question it answers.

Label values come from fixed lists (the methods of the served descriptors, gRPC's codes, our reasons); a caller
cannot make a series. Every series exists at zero from the start, so that a rate never misses its first event.
"""

import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, GCCollector, Info, PlatformCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tokend_server.caller_names import ANONYMOUS, MOST_NAMES, CallerNames
from tokend_server.engine_metrics import EngineMetrics
from tokend_server.file_metrics import FileMetrics
from tokend_server.method_metrics import Call, CallerMetrics, MethodMetrics, WorkMetrics
from tokend_server.metric_cells import CellTable
from tokend_server.metric_rows import LocalRow, Row
from tokend_server.process_metrics import ProcessCollector, ProcessTable
from tokend_server.served_methods import CODES, SERVICE, WORK_METHODS, Method, methods_of
from tokend_server.work_metrics import WorkLevels

__all__ = [
    "ANONYMOUS",
    "MOST_NAMES",
    "Call",
    "CallerNames",
    "FileMetrics",
    "Method",
    "MethodMetrics",
    "Metrics",
    "Tally",
    "WorkMetrics",
    "WorkerState",
    "methods_of",
]

_OTHER = "other"
_WORKER_STATES = ("starting", "serving", "draining", "down")


class Tally:
    """One series that is moved by hand: a total, or a number of living things."""

    __slots__ = ("_cell", "_cells", "_lock")

    def __init__(self, table: CellTable, cell: int) -> None:
        self._cells, self._lock, self._cell = table.cells, table.lock, cell

    def add(self, n: float) -> None:
        """Add `n`, which is negative only for what lives and dies."""
        with self._lock:
            self._cells[self._cell] += n


class WorkerState:
    """The series that tell how many workers are in which state; each worker is in one of them."""

    def __init__(self, table: CellTable) -> None:
        self._table = table
        self._gauges = {
            state: table.gauge("tokend_workers", "Workers by state.", {"state": state})
            for state in _WORKER_STATES
        }
        self._tallies = {state: Tally(table, cell) for state, cell in self._gauges.items()}
        self._state = ""

    def count(self, state: str) -> int:
        """Return how many workers of the server are in that state now."""
        return int(self._table.total(self._gauges[state]))

    def become(self, state: str) -> None:
        """Say which state this worker is in now: `starting`, `serving` or `draining`."""
        if self._state:
            self._tallies[self._state].add(-1)
        self._state = state
        self._tallies[state].add(1)

    def down(self, n: int) -> None:
        """Say that so many more workers have died and are not started again yet; negative when they are."""
        self._tallies["down"].add(n)


class Metrics:
    """All series of one server, on a registry of its own: several servers in a process do not mix.

    With several workers each process has an object of its own, on its own row; all of them show the sums.
    """

    def __init__(
        self,
        methods: Iterable[Method],
        *,
        version: str,
        clock: Callable[[], float] = time.perf_counter,
        row: Row | None = None,
        processes: ProcessTable | None = None,
        callers: CallerNames | None = None,
    ) -> None:
        """Make every series.

        Args:
            methods: Of every service that is served (`methods_of`); calls of anything else count as `other`.
            version: Of the server, for `tokend_build_info`.
            clock: Seconds from any origin, never running back.
            row: Where this process counts; None: it is the only one.
            processes: The server's processes; None: this one alone.
            callers: Who is counted apart, the same for all processes; None: nobody has a name.
        """
        self.registry = CollectorRegistry()
        self._row = row = row or LocalRow()
        self.callers = callers = callers or CallerNames()
        """Who is counted apart."""
        self._table = table = CellTable(row)
        self._by_path: dict[str, MethodMetrics] = {}
        self._by_name: dict[str, WorkMetrics] = {}
        by_caller = CallerMetrics(table, callers, CODES)
        for method in methods:
            if method.service == SERVICE and method.name in WORK_METHODS:
                self._by_path[method.path] = self._by_name[method.name] = WorkMetrics(
                    table, method, clock, by_caller
                )
            else:
                self._by_path[method.path] = MethodMetrics(table, method, clock, by_caller)
        self._other = MethodMetrics(table, Method(service=_OTHER, name=_OTHER, type="unary"), clock)
        self.live_sequences = Tally(
            table, table.gauge("tokend_live_sequences", "Open sequences of all StreamDecodes.")
        )
        self.max_streams = Tally(
            table,
            table.gauge("tokend_max_streams", "Most streams that may be open: the setting max_streams."),
        )
        self.unary_threads = Tally(
            table, table.gauge("tokend_unary_threads", "Threads for unary calls: the setting unary_threads.")
        )
        self.unary_work = WorkLevels(table, "unary")
        self.stream_work = WorkLevels(table, "stream")
        self.native_stderr_lines = Tally(
            table,
            table.counter(
                "tokend_native_stderr_lines", "Lines that native libraries printed; kept out of the log."
            ),
        )
        self.engine = EngineMetrics(table)
        self.files = FileMetrics(table)
        self.worker = WorkerState(table)
        self.worker_restarts = Tally(
            table,
            table.counter("tokend_worker_restarts", "Workers started in the place of one that had died."),
        )
        self.registry.register(table)
        self.registry.register(_InfoCollector(row, _INFOS))
        build = Info("tokend_build", "The server's version.", registry=self.registry)
        build.info({"version": _label(version), "python": platform.python_version()})
        PlatformCollector(registry=self.registry)
        if processes is None:
            processes = ProcessTable(workers=[0])
            processes.began(0, os.getpid())
            # Of several processes this would tell the one that is scraped, which does not work.
            GCCollector(registry=self.registry)
        self.registry.register(ProcessCollector(processes))

    @property
    def n_cells(self) -> int:
        """How long a row must be for all series."""
        return len(self._row.cells)

    def gauges(self) -> list[int]:
        """Return the cells that must not outlive the process that counts in them."""
        return self._table.gauges()

    def method(self, path: str) -> MethodMetrics:
        """Return the counters of a method by its path on the wire; one set serves all unknown methods."""
        return self._by_path.get(path, self._other)

    def work(self, name: str) -> WorkMetrics:
        """Return the counters of a method of our own service that tokenizes, by its name: `work("Encode")`."""
        return self._by_name[name]

    def set_tokenizer(self, **labels: str) -> None:
        """Say which tokenizer is served, as labels of `tokend_tokenizer_info`; a later call replaces the earlier."""
        self._row.set_labels({"tokend_tokenizer": {name: _label(value) for name, value in labels.items()}})


_INFOS = {"tokend_tokenizer": "The tokenizer that is served."}


class _InfoCollector(Collector):
    """Shows the labels that the processes have set; two that differ are two series."""

    def __init__(self, row: Row, help_texts: Mapping[str, str]) -> None:
        self._row = row
        self._help_texts = help_texts

    def describe(self) -> Iterable[Metric]:
        return [Metric(name, help_text, "info") for name, help_text in self._help_texts.items()]

    def collect(self) -> Iterable[Metric]:
        families = {metric.name: metric for metric in self.describe()}
        for labels in self._row.all_labels():
            for name, each in labels.items():
                families[name].add_sample(f"{name}_info", dict(each), 1)
        return families.values()


def _label(value: str) -> str:
    """Return a value that a scrape can hold: a lone surrogate, as file names may have, would break every later one."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8")[:128]
