"""deploy/compose.yaml: well-formed by the compose specification, and at one with what it mounts and starts."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tools import module
from tokend_server.config import load

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = ["compose.yaml", "compose.tokenizer.yaml"]


def text_of(name: str) -> str:
    """The file with its variables filled in, as compose does it."""
    return re.sub(
        r"\$\{\w+:\?[^}]*\}", "/somewhere/tokenizer.json", (DEPLOY / name).read_text(encoding="utf-8")
    )


def services_of(name: str) -> dict[str, Any]:
    return yaml.safe_load(text_of(name))["services"]


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_well_formed(name: str):
    module("compose_spec").PyCompose.from_yaml(text_of(name)).validate()


def test_the_parser_finds_a_misspelt_key():
    compose = module("compose_spec").PyCompose
    with pytest.raises(ValueError, match="reed_only"):
        compose.from_yaml(text_of("compose.yaml").replace("read_only", "reed_only"))


def test_what_is_mounted_is_there():
    whole = yaml.safe_load(text_of("compose.yaml"))
    sources = [
        mount.split(":")[0] for each in whole["services"].values() for mount in each.get("volumes", ())
    ]
    assert any(source.startswith("./") for source in sources)
    for source in sources:
        assert (DEPLOY / source).exists() if source.startswith("./") else source in whole["volumes"], source


@pytest.mark.parametrize("name", FILES)
def test_the_servers_variables_are_settings(name: str):
    load([], services_of(name)["tokend"]["environment"])


def test_prometheus_and_grafana_find_each_other_and_the_server():
    services = services_of("compose.yaml")
    [job] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    [target] = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert f"127.0.0.1:{port}:{port}" in services[host]["ports"]
    [source] = yaml.safe_load(
        (DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml").read_text()
    )["datasources"]
    assert source["url"] == "http://prometheus:9090"
    mounts = dict(mount.split(":")[1::-1] for mount in services["grafana"]["volumes"])
    [provider] = yaml.safe_load(
        (DEPLOY / "grafana" / "provisioning" / "dashboards" / "tokend.yml").read_text()
    )["providers"]
    assert provider["options"]["path"] in mounts
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (DEPLOY / "grafana" / "dashboards" / Path(home).name).exists()


def test_a_container_has_the_time_that_its_server_takes_to_stop():
    service = services_of("compose.yaml")["tokend"]
    grace_s = load([], service["environment"]).settings.drain_grace_s
    assert float(service["stop_grace_period"].rstrip("s")) >= grace_s + 12


def test_the_container_writes_only_where_it_may():
    service = services_of("compose.yaml")["tokend"]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert [mount.split(":")[1] for mount in service["volumes"]] == ["/var/lib/tokend"]
