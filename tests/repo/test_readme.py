"""The README is true: its commands print what it shows, and its Python runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.client.console_page import page_as_run
from tests.servers import RunningServer

README = Path(__file__).parents[2] / "README.md"
WRITE = "TOKEND_TEST_WRITE_DOCS"


def test_each_block_prints_what_the_readme_shows(server: RunningServer, tmp_path: Path):
    page = README.read_text(encoding="utf-8")
    as_run = page_as_run(page, server.grpc, tmp_path)
    if os.environ.get(WRITE):
        README.write_text(as_run, encoding="utf-8")
        return
    assert page == as_run, f"{WRITE}=1 with this test writes the real outputs into the page"


def test_the_python_of_the_readme_runs(server: RunningServer):
    (block,) = re.findall(
        r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    subprocess.run(
        [sys.executable, "-c", block.replace("127.0.0.1:50051", server.grpc)], check=True, timeout=60
    )


def test_the_scrape_of_the_readme_is_what_a_new_server_shows():
    server = RunningServer()
    try:
        from tokend import Client

        with Client(server.grpc) as client:
            client.decode(client.encode("Hello world").ids)
        shown = [
            line for line in server.get("/metrics").splitlines() if line.startswith("tokend_tokens_total")
        ]
    finally:
        assert server.stop() == 0
    assert "\n".join(shown) in README.read_text(encoding="utf-8")


def test_the_ready_line_of_the_readme_is_that_of_the_server(server: RunningServer):
    shown = re.search(r"^tokend ready .*$", README.read_text(encoding="utf-8"), re.MULTILINE)[0]
    for fact in ("tokenizer", "workers"):
        assert f"{fact}={server.facts[fact]}" in shown
    assert [part.split("=")[0] for part in shown.split()] == [
        part.split("=")[0] for part in server.ready_line.split()
    ]


def test_every_link_of_the_readme_leads_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []
