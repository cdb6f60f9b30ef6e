"""What `tokend` shows on a terminal: colours, ids under their tokens, the last newline, the progress bar."""

import itertools
import os
import re
import subprocess
import sys
import time

import pytest

from tests.client.cli_process import COMMAND, WITHIN_S, Cli, open_terminal, read_terminal
from tests.servers import RunningServer

SGR = re.compile(r"\x1b\[([0-9;]*)m")


@pytest.fixture
def cli(byte_server: RunningServer) -> Cli:
    return Cli(byte_server.grpc)


def cells(line: str) -> list[tuple[str, str]]:
    """The coloured parts of a line: background and text."""
    return [
        (re.search(r"48;5;(\d+)", style)[1], text)
        for style, text in re.findall(r"\x1b\[([0-9;]+)m([^\x1b]*)\x1b\[0m", line)
        if "48;5" in style
    ]


def test_show_colours_neighbours_differently_and_puts_ids_under_tokens(cli: Cli):
    above, below = map(cells, cli.on_terminal("encode", "--show", "the  aaaa é").splitlines())
    assert [text.strip() for _, text in above] == ["<|bos|>", "the", "·", "·", "aaaa", "·", "\\xc3", "\\xa9"]
    assert [text.strip() for _, text in below] == ["262", "257", "32", "32", "261", "32", "195", "169"]
    colours = [colour for colour, _ in above]
    assert colours == [colour for colour, _ in below]
    assert all(one != other for one, other in itertools.pairwise(colours))
    assert [len(text) for _, text in above] == [len(text) for _, text in below]


def test_show_breaks_lines_at_newlines_and_at_the_width_of_the_terminal(cli: Cli):
    shown = cli.on_terminal("encode", "--show", "--no-add-special-tokens", "a\nthe" + "bc" * 20, columns=20)
    plain = [SGR.sub("", line) for line in shown.splitlines()]
    assert [line.rstrip() for line in plain[:2]] == ["a ↵", "9710"]
    assert all(len(line) <= 20 for line in plain)
    assert "".join(line.replace(" ", "") for line in plain[2::2]) == "the" + "bc" * 20


def test_show_is_bold_for_special_tokens(cli: Cli):
    first, second = SGR.findall(cli.on_terminal("encode", "--show", "x").splitlines()[0])[::2]
    assert first.startswith("1;")
    assert not second.startswith("1;")


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_show_is_a_plain_list_where_colours_are_not_wanted(byte_server: RunningServer, env: dict[str, str]):
    cli = Cli(byte_server.grpc, env)
    plain = cli.on_terminal("encode", "--show", "the")
    assert plain == cli("encode", "--show", "the").text
    assert "\x1b" not in plain
    assert "\x1b" in cli.on_terminal("encode", "--show", "the", "--color", "always")


def test_show_of_wide_characters_keeps_ids_in_line(server: RunningServer):
    above, below = Cli(server.grpc)("encode", "--show", "--color", "always", "次の行").text.splitlines()
    for (_, token), (_, number) in zip(cells(above), cells(below), strict=True):
        wide = sum(each > "\u3000" for each in token)
        assert len(token) + wide == len(number)


def test_a_terminal_gets_the_newline_that_a_text_lacks_and_no_second_one(cli: Cli):
    assert cli.on_terminal("decode", "104", "105") == "hi\n"
    assert cli.on_terminal("decode", "104", "10") == "h\n"
    assert cli("decode", "104", "105").out == b"hi"


def test_progress_appears_after_a_second_and_leaves_nothing_behind(cli: Cli):
    shown, end = open_terminal()
    process = subprocess.Popen(
        [*COMMAND, "count", "--lines", "--total"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=end,
        env=cli.environment(),
    )
    os.close(end)
    # More than a pipe holds: once it is written, the command is at work.
    half = b"the the the the the the the the the the\n" * 20 * 1024
    process.stdin.write(half)
    process.stdin.flush()
    time.sleep(1.2)
    process.stdin.write(half)
    out, _ = process.communicate(timeout=WITHIN_S)
    assert out == b"%d\ttotal\n" % (2 * 20 * 1024 * 11)
    bar = read_terminal(shown)
    assert re.search(r"\r\x1b\[K[\d.]+ [kM]B, [\d.]+ [kM]B/s", bar)
    assert bar.endswith("\r\x1b[K")


def test_short_work_shows_no_progress(cli: Cli):
    assert cli.on_terminal("count", "/dev/null") == "1\t/dev/null\n"


def test_the_bar_tells_share_size_speed_and_time_left():
    script = """
import time
from tokend._cli.progress import ProgressBar
bar = ProgressBar(4_000_000)
time.sleep(1.05)
bar.advance(1_000_000)
bar.clear()
"""
    shown, end = open_terminal()
    process = subprocess.Popen([sys.executable, "-c", script], stderr=end)
    os.close(end)
    text = read_terminal(shown)
    assert process.wait(WITHIN_S) == 0
    drawn = re.fullmatch(
        r"\r\x1b\[K\[######                  \]  25% of 4\.0 MB, 1\.0 MB, [\d.]+ kB/s, [34] s left\r\x1b\[K",
        text,
    )
    assert drawn, text
