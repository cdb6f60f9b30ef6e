"""What is counted by caller: the label, and the calls of each."""

from collections.abc import Mapping, Sequence

from tokend_server.caller_names import CallerNames
from tokend_server.metric_cells import CellTable

__all__ = ["CallerLabel", "CallerMetrics"]


class CallerLabel:
    """The label `caller` of one place in the table of names; not shown while nobody has it."""

    def __init__(self, names: CallerNames, place: int, labels: Mapping[str, str]) -> None:
        self._names, self._place, self._labels = names, place, labels

    def __call__(self) -> Mapping[str, str] | None:
        """Return the labels as they are now; None: nobody has the place."""
        name = self._names.name_at(self._place)
        return None if name is None else {**self._labels, "caller": name}


class CallerMetrics:
    """What is counted of every caller, whichever of our methods it calls."""

    def __init__(self, table: CellTable, names: CallerNames, codes: Sequence[str]) -> None:
        self.names = names
        self._ended = tuple(
            tuple(
                table.counter(
                    "tokend_caller_calls",
                    "Calls that ended, by caller and status code.",
                    CallerLabel(names, place, {"grpc_code": code}),
                )
                for code in codes
            )
            for place in range(names.n_places)
        )

    def cell(self, caller: str, code: int) -> int:
        """Return the cell of the calls that a caller had end with a code."""
        return self._ended[self.names.place(caller)][code]
