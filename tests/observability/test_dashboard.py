"""The shipped dashboard on the data of real servers: no panel stays empty, and what the load moves is seen."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.observability.load import CALLERS
from tests.observability.panels import DASHBOARD, Query, queries
from tests.observability.scraped import Scraped
from tests.tools import module

# Faults that no load brings about: their series are there, at 0.
STAY_AT_ZERO = {
    "Shadow checks and faults: check: {{result}}",
    "Shadow checks and faults: engine failures",
    "Shadow checks and faults: lines that native libraries print",
    "Workers started again: {{instance}}",
    "Failed by the server: Failed by the server",
    "Workers with an older file: {{file}}",
    "Certificate, time left: {{instance}}",
}
QUERIES = queries("5s")
ROWS = [
    "At a glance", "Tokens", "Latency", "Errors and refusals", "Saturation", "Streams", "Engines", "Who serves what",
]  # fmt: skip


def values(series: list[dict[str, Any]]) -> list[float]:
    """Every number of a range query's answer."""
    return [float(value) for each in series for _, value in each["values"] if math.isfinite(float(value))]


@pytest.mark.parametrize("query", QUERIES, ids=[each.label for each in QUERIES])
def test_a_query_of_a_panel_returns_data(scraped: Scraped, query: Query):
    found = values(scraped.prometheus.range(query.expression, scraped.start, scraped.end))
    assert found
    if query.label in STAY_AT_ZERO:
        assert set(found) == {0.0}
    else:
        assert max(found) > 0


def test_the_dashboard_has_its_rows_and_no_query_twice():
    assert list(dict.fromkeys(each.row for each in QUERIES)) == ROWS
    labels = Counter(each.label for each in QUERIES)
    assert max(labels.values()) == 1


def test_every_query_is_about_the_chosen_job_and_instances():
    for query in QUERIES:
        assert {"$job", "$instance"} <= query.variables, query.label


def test_both_servers_and_all_workers_are_seen(scraped: Scraped):
    prometheus = scraped.prometheus
    instances = {each.ops for each in scraped.servers}
    found = prometheus.range("tokend_tokenizer_info", scraped.start, scraped.end)
    assert {each["metric"]["instance"] for each in found} == instances
    assert len({each["metric"]["fingerprint"] for each in found}) == 1
    workers = prometheus.range("rate(tokend_worker_cpu_seconds_total[5s]) > 0", scraped.start, scraped.end)
    assert len({(each["metric"]["instance"], each["metric"]["worker"]) for each in workers}) == 3


def test_callers_are_told_apart(scraped: Scraped):
    found = scraped.prometheus.range("rate(tokend_tokens_total[5s]) > 0", scraped.start, scraped.end)
    tokens = {(each["metric"]["caller"], each["metric"]["method"]) for each in found}
    # The newcomer's requests are all wrong.
    assert {caller for caller, _ in tokens} == set(CALLERS) - {"newcomer"}
    assert {method for caller, method in tokens if caller == "training"} >= {"BatchEncode", "StreamEncode"}
    refused = scraped.prometheus.range(
        'rate(tokend_caller_calls_total{grpc_code!="OK"}[5s]) > 0', scraped.start, scraped.end
    )
    assert {each["metric"]["caller"] for each in refused} == {"newcomer"}


def test_token_totals_move_while_streams_are_open(scraped: Scraped):
    # StreamDecode's totals grow from one scrape to the next; requests are counted when a sequence ends.
    [series] = scraped.prometheus.range(
        'sum(tokend_tokens_total{method="StreamDecode"})', scraped.start, scraped.end
    )
    totals = [float(value) for _, value in series["values"]]
    # The machine may be busy, and scrapes late.
    assert len(set(totals)) >= 5


def test_every_recorded_series_has_data_and_no_fault_is_alerted(scraped: Scraped):
    prometheus = scraped.prometheus
    groups = {group["name"]: group["rules"] for group in prometheus.get("rules")["groups"]}
    for rule in groups["tokend-recording"]:
        assert rule["health"] == "ok", rule
        assert values(prometheus.range(rule["name"], scraped.start, scraped.end)), rule["name"]
    active = {rule["name"] for rule in groups["tokend-alerts"] if rule["alerts"]}
    # The load is wrong on purpose, and no alert fires before its time; but these are pending.
    assert {"TokendClientsExpectAnotherTokenizer", "TokendUnknownIds", "TokendBrokenCharacters"} <= active
    assert not active & {"TokendDown", "TokendAbsent", "TokendNotServing", "TokendTokenizersDiffer"}
    assert not active & {"TokendServerFaults", "TokendFastEngineQuarantined", "TokendNativeOutput"}


def test_grafana_s_own_models_take_every_field_of_the_dashboard():
    # Its JSON is read into the types of Grafana's SDK and written again: what they do not know would be gone.
    plugins = module("grafana_foundation_sdk.cog.plugins")
    models, encoder = (
        module(f"grafana_foundation_sdk.{name}") for name in ("models.dashboard", "cog.encoder")
    )
    plugins.register_default_plugins()
    shipped = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    kept = json.loads(json.dumps(models.Dashboard.from_json(shipped), cls=encoder.JSONEncoder))
    assert not list(lost(shipped, kept))


def lost(shipped: Any, kept: Any, place: str = "") -> Iterator[str]:
    """The places of what is in the one and not in the other; nothing, and what is empty, may be either."""
    if isinstance(shipped, dict) and isinstance(kept, dict):
        for key, value in shipped.items():
            if key in kept:
                yield from lost(value, kept[key], f"{place}/{key}")
            elif value not in (None, {}, [], ""):
                yield f"{place}/{key}"
    elif isinstance(shipped, list) and isinstance(kept, list) and len(shipped) == len(kept):
        for n, (one, other) in enumerate(zip(shipped, kept, strict=True)):
            yield from lost(one, other, f"{place}/{n}")
    elif shipped != kept:
        yield place


def test_the_picture_of_the_documentation_can_be_drawn(scraped: Scraped, tmp_path):
    from tests.observability.picture import ROWS as DRAWN
    from tests.observability.picture import draw

    assert set(DRAWN) < set(ROWS)
    draw(scraped, tmp_path / "dashboard.png")
    assert (tmp_path / "dashboard.png").read_bytes().startswith(b"\x89PNG")
