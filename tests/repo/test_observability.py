"""What is shipped for Prometheus and Grafana agrees with the code and the documentation; needs no Prometheus."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.observability.panels import queries
from tests.repo.test_docs_complete import our_metrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def rules(name: str) -> list[dict[str, object]]:
    groups = yaml.safe_load((DEPLOY / f"prometheus/rules/{name}.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = rules("tokend-alerts")
RECORDS = rules("tokend-recording")


@pytest.mark.parametrize("alert", ALERTS, ids=[alert["alert"] for alert in ALERTS])
def test_an_alert_links_to_its_section_of_the_runbook(alert):
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert (page, anchor) == ("docs/runbook.md", alert["alert"].lower())
    parts = re.split(r"^## (\S+)$", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    section = dict(zip(parts[1::2], parts[2::2], strict=True))[alert["alert"]]
    for head in ("What it means", "Where to look", "What to do"):
        assert f"- **{head}.** " in section
    assert f"`{alert['labels']['severity']}`, after {alert.get('for', 'the first sight')}." in section


def test_the_runbook_has_no_other_sections():
    found = re.findall(
        r"^## (\S+)$", (ROOT / "docs/runbook.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert found == [alert["alert"] for alert in ALERTS]


def test_the_panels_that_the_runbook_names_exist():
    titles = {query.title for query in queries("5m")}
    rows = {query.row for query in queries("5m")}
    named = re.findall(
        r"\*([A-Z][^*\n]+)\*(?!\*)",
        re.sub(r"\*\*[^*]+\*\*", "", (ROOT / "docs/runbook.md").read_text(encoding="utf-8")),
    )
    assert named
    assert set(named) <= titles | rows


def test_rules_and_panels_name_metrics_that_exist():
    expressions = [str(rule["expr"]) for rule in (*ALERTS, *RECORDS)] + [
        each.expression for each in queries("5m")
    ]
    records = {str(rule["record"]) for rule in RECORDS}
    known = our_metrics()
    for expression in expressions:
        for name in re.findall(r"(?<![\w:])(?:tokend|grpc_server)_[a-z_]+(?=[{)\[ ]|$)", expression):
            assert name in known or re.sub(r"_(bucket|sum|count)$", "", name) in known, (name, expression)
        for name in re.findall(r"\b[a-z_]+:[a-z_]+:[a-z_0-9]+", expression):
            assert name in records, (name, expression)


def test_the_dashboard_is_what_its_script_makes():
    script = DEPLOY / "grafana/make_dashboard.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_panels_do_not_lie_on_each_other_and_fill_their_rows():
    panels = json.loads((DEPLOY / "grafana/dashboards/tokend.json").read_text(encoding="utf-8"))["panels"]
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(taken) == 24 * (1 + max(y for _, y in taken))


def test_grafana_is_told_of_the_data_source_and_the_folder_of_the_dashboard():
    provisioning = DEPLOY / "grafana/provisioning"
    sources = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text(encoding="utf-8"))
    assert [source["type"] for source in sources["datasources"]] == ["prometheus"]
    providers = yaml.safe_load((provisioning / "dashboards/tokend.yml").read_text(encoding="utf-8"))
    assert [provider["type"] for provider in providers["providers"]] == ["file"]
