"""The shipped Prometheus files: promtool takes them, each alert fires in a test, and its runbook says what to do."""

import re
from pathlib import Path

from tests.observability.prometheus import promtool

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy/prometheus"


def test_promtool_takes_the_configuration_and_its_rules():
    said = promtool("check", "config", str(DEPLOY / "prometheus.yml"))
    assert "2 rule files found" in said


def test_the_unit_tests_of_the_rules_pass():
    promtool("test", "rules", *map(str, sorted((DEPLOY / "tests").glob("*.test.yml"))))


def names(path: Path, key: str) -> list[str]:
    return re.findall(rf"^\s*- {key}: (\S+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_every_alert_and_every_record_has_a_unit_test():
    tests = {path.name: path.read_text(encoding="utf-8") for path in (DEPLOY / "tests").glob("*.test.yml")}
    fired = re.findall(r"alertname: (\S+)\n\s+eval_time: \S+\n\s+exp_alerts:\n", tests["alerts.test.yml"])
    assert fired == names(DEPLOY / "rules/tokend-alerts.yml", "alert")
    asked = re.findall(r"expr: (\S+)$", tests["recording.test.yml"], flags=re.MULTILINE)
    assert sorted(set(asked)) == sorted(names(DEPLOY / "rules/tokend-recording.yml", "record"))
