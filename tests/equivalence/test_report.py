"""The table of docs/fidelity.md is there, about all that is compared, and says that nothing differs."""

import pytest

from tests.equivalence.report import END, PAGE, START, table, write
from tests.equivalence.subjects import SMALL, TRAINED, ZOO
from tests.equivalence.tiktoken_engine import NAMES


def rows():
    text = PAGE.read_text(encoding="utf-8").split(START, 1)[1].split(END, 1)[0]
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if "|" in line
    ]


def test_every_tokenizer_has_a_row_without_differences():
    found = {row[0]: row for row in rows() if len(row) > 4}
    assert {subject.name for subject in (*ZOO, *TRAINED)} <= set(found)
    assert f"{len(SMALL)} small files" in found
    assert {name: row[5] for name, row in found.items() if row[5] not in {"0", "differences", "---:"}} == {}


def test_tiktoken_has_its_rows_too():
    found = {row[0]: row[3] for row in rows() if len(row) == 4}
    assert {name: found[name] for name in NAMES} == dict.fromkeys(NAMES, "0")


def test_a_table_puts_numbers_on_the_right():
    text = table(("name", "ids"), [("a", "1,000"), ("b", "0")])
    assert text == "| name | ids |\n| --- | ---: |\n| a | 1,000 |\n| b | 0 |"


@pytest.mark.parametrize(
    "old", ["# Page\n\nProse.\n", f"# Page\n\nProse.\n\n{START}\n\nold\n\n{END}\n\nMore.\n"]
)
def test_the_section_is_replaced_and_the_prose_kept(tmp_path, old):
    page = tmp_path / "page.md"
    page.write_text(old)
    write(f"{START}\n\nnew\n\n{END}", page)
    new = page.read_text()
    assert new.startswith("# Page\n\nProse.\n")
    assert new.count(START) == new.count(END) == 1
    assert "old" not in new
    assert "new" in new
    assert new.endswith("More.\n" if "More" in old else f"{END}\n")
