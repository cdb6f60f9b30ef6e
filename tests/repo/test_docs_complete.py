"""Walks everything that users can name, and demands that the documentation has it, rightly, and nothing else."""

import json
import re
from pathlib import Path

import pytest

from tokend.v1 import error_reason_pb2, tokenizer_service_pb2
from tokend_server.config import settings_list
from tokend_server.errors import Reason
from tokend_server.metrics import Metrics, methods_of
from tokend_server.transport.status import CODES

DOCS = Path(__file__).parents[2] / "docs"
SERVICE = tokenizer_service_pb2.DESCRIPTOR.services_by_name["TokenizerService"]


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def rows(name: str) -> dict[str, list[str]]:
    """The table rows of a page whose first cell is one `name`, by that name."""
    found = {}
    for line in read(name).splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) > 2 and (name_cell := re.fullmatch(r"`([a-z_]+)`", cells[0])):
            assert name_cell[1] not in found, f"{name_cell[1]} is documented twice"
            found[name_cell[1]] = cells[1:]
    return found


def sections(name: str) -> dict[str, str]:
    parts = re.split(r"^## (\S+)$", read(name), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def our_metrics() -> dict[str, tuple[str, set[str]]]:
    """Type and label names of every series that is ours, by the name that a query uses."""
    metrics = Metrics(methods_of(SERVICE), version="0")
    metrics.set_tokenizer(fingerprint="f", name="n")
    found = {}
    for family in metrics.registry.collect():
        if family.name.startswith(("tokend_", "grpc_")):
            suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
            kind = "gauge" if family.type == "info" else family.type
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            found[family.name + suffix] = (kind, labels)
    return found


def test_every_setting_is_documented_with_its_default_and_no_other_is():
    documented = {name: cells[0] for name, cells in rows("configuration.md").items()}
    assert documented == {
        each.name: f"`{each.default}`" if each.default else "unset" for each in settings_list()
    }


def test_every_metric_is_documented_with_type_and_labels_and_no_other_is():
    documented = rows("metrics.md")
    actual = our_metrics()
    assert documented.keys() == actual.keys()
    for name, (kind, labels) in actual.items():
        assert documented[name][0] == kind, name
        assert set(re.findall(r"`([a-z_]+)`", documented[name][1])) == labels, name
        unit, question = documented[name][2:]
        assert unit, name
        assert "?" in question, f"{name} answers no question"


def test_every_query_of_the_metrics_page_names_metrics_that_exist():
    queried = set(re.findall(r"\b(?:tokend|grpc_server)_[a-z_]+", read("metrics.md").split("```promql")[1]))
    known = {name for name, _ in our_metrics().items()}
    assert queried
    for name in queried:
        assert name in known or re.sub(r"_(bucket|sum|count)$", "", name) in known, name


def test_every_rpc_is_documented():
    page = read("api.md")
    missing = [each.name for each in SERVICE.methods if f"`{each.name}`" not in page]
    assert not missing


def test_every_error_reason_is_documented_and_no_other_is():
    assert list(sections("errors.md")) == list(Reason)


def test_the_reasons_of_the_proto_are_those_of_the_server():
    in_proto = {name.removeprefix("ERROR_REASON_") for name in error_reason_pb2.ErrorReason.keys()}  # noqa: SIM118 (an enum wrapper, no dict)
    assert in_proto - {"UNSPECIFIED"} == set(Reason)


@pytest.mark.parametrize("reason", Reason)
def test_an_error_reason_has_its_code_its_keys_an_example_and_what_to_do(reason):
    section = sections("errors.md")[reason]
    assert f"- Code: {CODES[reason].name}\n" in section
    assert "- When: " in section
    assert "- What to do: " in section
    example = json.loads(section.split("```json")[1].split("```")[0])
    assert (example["reason"], example["domain"]) == (reason, "tokend")
    keys = re.search(r"^- Metadata: (.*)$", section, flags=re.MULTILINE)[1]
    assert example["metadata"].keys() <= set(re.findall(r"`([a-z_]+)`", keys))
    assert bool(example["metadata"]) == (keys != "none.")
