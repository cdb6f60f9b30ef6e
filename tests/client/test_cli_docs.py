"""docs/cli.md is true: each block prints what it says, and every command and flag is in it."""

import argparse
import os
import re
from pathlib import Path

from tests.client.console_page import page_as_run
from tests.servers import RunningServer
from tokend._cli.arguments import build_parser

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
WRITE = "TOKEND_TEST_WRITE_DOCS"


def steady(shown: str) -> str:
    """What is shown, without what differs from start to start: ports, and which engine serves already."""
    shown = re.sub(r"^((?:fast )?engine {3,}).*$", r"\1", shown, flags=re.MULTILINE)
    return re.sub(r" engine=\S+", " engine=", re.sub(r"(127\.0\.0\.1):\d\d+", r"\1:PORT", shown))


def test_each_block_prints_what_the_page_says(server: RunningServer, tmp_path: Path):
    page = PAGE.read_text(encoding="utf-8")
    as_run = page_as_run(page, server.grpc, tmp_path)
    if os.environ.get(WRITE):
        PAGE.write_text(as_run, encoding="utf-8")
        return
    assert steady(page) == steady(as_run), f"{WRITE}=1 with this test writes the real outputs into the page"


def test_the_ready_line_of_the_page_is_that_of_the_server(server: RunningServer):
    lines = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("tokend ready")
    ]
    assert list(map(steady, lines)) == [steady(server.ready_line)]


def test_every_command_and_flag_is_on_the_page():
    page = PAGE.read_text(encoding="utf-8")
    (commands,) = (
        action.choices for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    for name, parser in commands.items():
        assert f"`tokend {name}`" in page, name
        for action in parser._actions:
            flag = max(action.option_strings, key=len, default="")
            assert flag in {"", "--help"} or re.search(rf"{flag}\b", page), (name, flag)
