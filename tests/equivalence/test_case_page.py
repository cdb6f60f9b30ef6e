"""docs/cases.md: each test that it names exists, and each test of a case is on it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
# What shows the cases on real files, and what the page itself needs.
NOT_CASES = {"test_case_page.py"}


def defined_in(paths) -> set[str]:
    return {
        name
        for path in paths
        for name in re.findall(
            r"^(?:async )?def (test_\w+)\(", path.read_text(encoding="utf-8"), flags=re.MULTILINE
        )
    }


def test_every_test_that_the_page_names_exists():
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named - defined_in((ROOT / "tests").rglob("test_*.py")) == set()
    assert all((ROOT / path).exists() for path in re.findall(r"`(tests/[\w/]+\.py)`", PAGE))


def test_every_test_of_a_case_is_on_the_page():
    cases = [path for path in Path(__file__).parent.glob("test_case_*.py") if path.name not in NOT_CASES]
    assert len(cases) > 5
    assert sorted(name for name in defined_in(cases) if f"`{name}`" not in PAGE) == []


def test_a_choice_among_outcomes_is_marked():
    rows = [
        line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith(("| kind", "|---"))
    ]
    assert all(row.count("|") == 4 for row in rows)
    assert sum("**" in row for row in rows) > 10
