"""The panels of the shipped Grafana dashboard, and their queries as Prometheus takes them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parents[2] / "deploy/grafana/dashboards/tokend.json"
# What Grafana puts in for its variables, with everything chosen.
_CHOSEN = {"$job": "tokend", "$instance": ".*", "$method": ".*"}


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query of one panel."""

    row: str
    panel: dict[str, Any]
    expression: str
    legend: str
    variables: frozenset[str]

    @property
    def title(self) -> str:
        """The panel's title."""
        title: str = self.panel["title"]
        return title

    @property
    def label(self) -> str:
        """What to call the query."""
        return f"{self.title}: {self.legend}"


def queries(window: str) -> list[Query]:
    """Every query of every panel, in the order of the page.

    Args:
        window: What `$__rate_interval` stands for, as `5s`.
    """
    found, row = [], ""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
            continue
        for target in panel["targets"]:
            expression: str = target["expr"].replace("$__rate_interval", window)
            used = frozenset(name for name in _CHOSEN if name in expression)
            for name, chosen in _CHOSEN.items():
                expression = expression.replace(name, chosen)
            found.append(
                Query(
                    row=row,
                    panel=panel,
                    expression=expression,
                    legend=target["legendFormat"],
                    variables=used,
                )
            )
    return found
