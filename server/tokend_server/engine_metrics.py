"""What is counted of the engines: which one has the texts, and whether the fast one is to be trusted."""

from tokend_server.metric_cells import CellTable

__all__ = ["ENGINES", "ENGINE_STATES", "SHADOW_RESULTS", "EngineMetrics"]

ENGINES = ("reference", "fastokens")
_OTHER = "other"
ENGINE_STATES = ("disabled", "unsupported", "pending", "verified", "quarantined")
SHADOW_RESULTS = ("same", "different", "dropped")


class EngineMetrics:
    """The series of both engines; all calls may come from any thread."""

    def __init__(self, table: CellTable) -> None:
        self._table = table
        self._texts = {
            engine: table.counter("tokend_engine_texts", "Texts encoded, by engine.", {"engine": engine})
            for engine in (*ENGINES, _OTHER)
        }
        self._checks = {
            result: table.counter(
                "tokend_shadow_checks", "Sampled answers made again by the reference.", {"result": result}
            )
            for result in SHADOW_RESULTS
        }
        self._failures = table.counter(
            "tokend_engine_failures", "Batches on which the fast engine failed, served by the reference."
        )
        self._states = {
            state: table.gauge(
                "tokend_engine_state", "Workers by the fast engine's standing.", {"state": state}
            )
            for state in ENGINE_STATES
        }
        self._state = ""

    def encoded(self, engine: str, n_texts: int) -> None:
        """Count texts that an engine encoded."""
        self._add(self._texts.get(engine, self._texts[_OTHER]), n_texts)

    def shadow_checked(self, result: str) -> None:
        """Count a sampled answer: `same`, `different` or `dropped`."""
        self._add(self._checks[result], 1)

    def failed(self) -> None:
        """Count a batch on which the fast engine failed."""
        self._add(self._failures, 1)

    def become(self, state: str) -> None:
        """Say what the fast engine's standing is now in this process, by one of `ENGINE_STATES`."""
        with self._table.lock:
            if self._state:
                self._table.cells[self._states[self._state]] -= 1
            self._state = state
            self._table.cells[self._states[state]] += 1

    def _add(self, cell: int, n: float) -> None:
        with self._table.lock:
            self._table.cells[cell] += n
