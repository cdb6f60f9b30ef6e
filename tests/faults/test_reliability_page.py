"""docs/reliability.md: the tests that it names exist, each fault test is on it, and its tables come from the commands."""

import re
from pathlib import Path

import pytest

from tests.faults.report import FAULTS, PAGE, SOAK, faults_section, placed

TESTS = Path(__file__).parents[1]


def defined_in(paths) -> set[str]:
    found = (
        re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE) for path in paths
    )
    return {name for names in found for name in names}


def test_the_tests_that_the_page_names_exist_and_each_fault_test_is_named():
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text(encoding="utf-8")))
    assert named - defined_in(TESTS.rglob("test_*.py")) == set()
    ours = [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    assert defined_in(ours) - named == set()


def test_a_table_goes_between_its_markers_and_leaves_the_rest():
    row = {"fault": "f", "front": "grpcio", "load": "a | b", "lost": "none", "after": "well"}
    page = placed(f"before\n{FAULTS[0]}\nold\n{FAULTS[1]}\nafter {SOAK[0]}", FAULTS, faults_section([row]))
    assert page.startswith("before\n")
    assert page.endswith(f"after {SOAK[0]}")
    assert "old" not in page
    assert "| f | grpcio | a \\| b | none | well |" in page
    with pytest.raises(ValueError, match="has no place"):
        placed("nothing", FAULTS, "")
