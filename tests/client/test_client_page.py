"""docs/client.md is true: its Python runs, and it names every method, argument, option and error."""

import inspect
import re
from pathlib import Path

import tokend
from tests.servers import RunningServer

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
CODE = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def table(heading: str) -> set[str]:
    """The names in the first column of a heading's first table."""
    section = f"\n{CODE.sub('', PAGE)}".split(f"\n{heading}\n", 1)[1].split("\n#", 1)[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    return set(re.findall(r"`(\w+)`", " ".join(cells)))


def test_the_python_of_the_page_runs(server: RunningServer) -> None:
    blocks = CODE.findall(PAGE)
    assert len(blocks) > 10
    names: dict[str, object] = {}
    for block in blocks:
        line = PAGE[: PAGE.index(block)].count("\n")
        code = compile("\n" * line + block.replace("127.0.0.1:50051", server.grpc), "docs/client.md", "exec")
        exec(code, names)


def test_every_method_is_on_the_page() -> None:
    for kind in (tokend.Client, tokend.AsyncClient):
        assert table("# The Python client") == {
            name for name in vars(kind) if not name.startswith("_") and name != "close"
        }


def test_every_argument_of_the_clients_is_on_the_page() -> None:
    arguments = set(inspect.signature(tokend.AsyncClient).parameters)
    assert table("## Connect") == arguments
    assert arguments - {"join_calls"} == set(inspect.signature(tokend.Client).parameters)


def test_every_option_is_on_the_page() -> None:
    assert table("## Encode") == set(tokend.EncodeOptions.__annotations__)
    assert table("## Decode") == set(tokend.DecodeOptions.__annotations__)


def test_every_error_is_on_the_page() -> None:
    errors = {name for name in tokend.__all__ if name.endswith("Error")} - {"TokendError"}
    assert table("## Errors") == errors


def test_every_link_of_the_page_leads_somewhere() -> None:
    anchors = {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", PAGE, flags=re.MULTILINE)
    }
    for link in re.findall(r"\]\(([^)]+)\)", PAGE):
        page, _, anchor = link.partition("#")
        assert (Path(__file__).parents[2] / "docs" / page).exists()
        assert page or anchor in anchors
