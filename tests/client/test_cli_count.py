"""`tokend count` on files, lines, pipes and what cannot be counted."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.cli_process import COMMAND, WITHIN_S, Cli
from tests.servers import RunningServer
from tests.tokenizers_for_tests import byte_level_bpe

LIMIT = 4096


@pytest.fixture
def cli(byte_server: RunningServer) -> Cli:
    return Cli(byte_server.grpc)


@pytest.fixture
def strict_cli(server_for: Callable[..., RunningServer]) -> Cli:
    """A server that takes no text above 4,096 bytes."""
    return Cli(server_for(byte_level_bpe(), "--max-text-bytes", str(LIMIT)).grpc)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_bytes(b"the\nab\r\n\n\xc3\xa9")
    (tmp_path / "b.txt").write_bytes(b"xyz\n")
    (tmp_path / "empty").write_bytes(b"")
    return tmp_path


def test_each_file_is_counted_whole_and_then_the_total(cli: Cli, folder: Path):
    done = cli("count", "a.txt", "b.txt", "empty", cwd=folder)
    assert done.text == "10\ta.txt\n5\tb.txt\n1\tempty\n16\ttotal\n"


def test_one_file_needs_no_total(cli: Cli, folder: Path):
    assert cli("count", "a.txt", cwd=folder).text == "10\ta.txt\n"


def test_each_line_is_a_text_without_its_end(cli: Cli, folder: Path):
    done = cli("count", "--lines", "--no-add-special-tokens", "a.txt", "empty", "b.txt", cwd=folder)
    assert done.text == "1\ta.txt:1\n2\ta.txt:2\n0\ta.txt:3\n2\ta.txt:4\n3\tb.txt:1\n8\ttotal\n"


def test_the_total_can_come_alone(cli: Cli, folder: Path):
    assert cli("count", "--total", "--lines", "a.txt", cwd=folder).text == "9\ttotal\n"


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_standard_input_is_a_file(cli: Cli, arguments: tuple[str, ...]):
    assert cli("count", *arguments, stdin=b"abc").text == "4\t-\n"


def test_json_is_one_object_a_text_and_the_total(cli: Cli, folder: Path):
    lines = [
        json.loads(line)
        for line in cli("count", "--json", "--lines", "b.txt", "a.txt", cwd=folder).out.splitlines()
    ]
    assert lines[0] == {"name": "b.txt", "line": 1, "count": 4}
    assert [line["count"] for line in lines[1:-1]] == [2, 3, 1, 3]
    assert (lines[-1]["total"], lines[-1]["texts"], len(lines[-1]["fingerprint"])) == (13, 5, 64)
    assert json.loads(cli("count", "--json", stdin=b"").out.splitlines()[0]) == {"name": "-", "count": 1}


def test_count_options_are_those_of_encode(cli: Cli):
    assert cli("count", "--special-tokens", "parse", stdin=b"<|end|>").text == "2\t-\n"
    assert cli("count", "--max-tokens", "2", stdin=b"abc").text == "2\t-\n"


def test_names_that_are_no_utf8_are_names_all_the_same(cli: Cli, tmp_path: Path):
    name = b"odd\xff.txt"
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))).write_bytes(b"abc")
    assert cli("count", name, cwd=tmp_path).out == b"4\todd\xff.txt\n"
    assert (
        json.loads(cli("count", "--json", name, cwd=tmp_path).out.splitlines()[0])["name"] == "odd\udcff.txt"
    )


def test_a_file_above_the_text_limit_is_an_error_that_names_lines(strict_cli: Cli, tmp_path: Path):
    (tmp_path / "big").write_bytes(b"0123456789abcde\n" * (LIMIT // 16) + b"x")
    done = strict_cli("count", "big", cwd=tmp_path, code=2)
    assert done.complaint == (
        "big has more than 4,096 bytes, the longest text that the server takes; "
        "--lines counts each line as a text of its own"
    )
    assert strict_cli("count", "--lines", "--total", "big", cwd=tmp_path).text == f"{LIMIT + 2}\ttotal\n"


def test_a_file_of_just_the_limit_is_counted(strict_cli: Cli):
    assert strict_cli("count", stdin=b"x" * LIMIT).text == f"{LIMIT + 1}\t-\n"
    lines = b"y" * LIMIT + b"\r\n" + b"z" * LIMIT
    assert strict_cli("count", "--lines", stdin=lines).text == f"{LIMIT + 1}\t-:1\n{LIMIT + 1}\t-:2\n"


def test_a_line_above_the_text_limit_is_an_error_with_its_number(strict_cli: Cli):
    done = strict_cli("count", "--lines", stdin=b"ok\n" + b"x" * (LIMIT + 1) + b"\nok\n", code=2)
    assert done.text == "3\t-:1\n"
    assert done.complaint.startswith("standard input:2 has more than 4,096 bytes")


def test_bytes_that_are_no_utf8_are_an_error_with_their_position(cli: Cli, tmp_path: Path):
    (tmp_path / "latin1").write_bytes("ok\nna\u00efve\n".encode("latin-1"))
    words = "latin1 is not UTF-8: byte 0xef at position 5 (counted from 0)"
    assert words in cli("count", "latin1", cwd=tmp_path, code=2).complaint
    done = cli("count", "--lines", "latin1", cwd=tmp_path, code=2)
    assert words in done.complaint
    assert done.text == "3\tlatin1:1\n"


def test_bad_files_are_named_the_others_counted_and_no_total_given(cli: Cli, folder: Path):
    done = cli("count", "a.txt", "missing", "b.txt", ".", cwd=folder, code=2)
    assert done.text == "10\ta.txt\n5\tb.txt\n"
    assert done.err.splitlines() == [
        "tokend: cannot read missing: No such file or directory",
        "tokend: cannot read .: Is a directory",
        "tokend: no total: 2 files could not be counted",
    ]


def test_a_refused_text_is_named_by_file_and_line(cli: Cli, folder: Path):
    (folder / "c.txt").write_bytes(b"fine\nnot <|end|>\n")
    done = cli("count", "--lines", "--special-tokens", "reject", "b.txt", "c.txt", cwd=folder, code=2)
    assert done.complaint.startswith(
        "c.txt:2 holds the control token <|end|> at character 4; --special-tokens text"
    )


def test_wrong_options_show_before_anything_is_read(cli: Cli):
    with cli.start("count", "--allow-special", "<no such token>") as process:
        # Standard input stays open: nothing of it is waited for.
        assert process.wait(WITHIN_S) == 2
        assert b"--allow-special" in process.stderr.read()


def test_standard_input_cannot_be_read_twice(cli: Cli):
    assert "named twice" in cli("count", "-", "-", stdin=b"x", code=2).complaint


def test_lines_of_a_large_file_come_in_order_and_the_file_is_never_all_in_memory(cli: Cli, tmp_path: Path):
    n_lines, padding = 120_000, b" the" * 100
    with (tmp_path / "large").open("wb") as file:
        for number in range(n_lines):
            file.write(b"%d%s\n" % (number, padding))
    (tmp_path / "small").write_bytes(b"1\n")

    def peak_bytes(name: str) -> int:
        with (tmp_path / "counts").open("wb") as out:
            process = subprocess.Popen(
                [*COMMAND, "count", "--lines", "--no-add-special-tokens", name],
                stdout=out, cwd=tmp_path, env=cli.environment(),
            )  # fmt: skip
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return usage.ru_maxrss * 1024

    small = peak_bytes("small")
    large = peak_bytes("large")
    counts = [line.split(b"\t") for line in (tmp_path / "counts").read_bytes().splitlines()]
    assert [place for _, place in counts] == [b"large:%d" % number for number in range(1, n_lines + 1)]
    assert all(int(count) == 100 + len(str(number)) for number, (count, _) in enumerate(counts))
    assert (tmp_path / "large").stat().st_size > 45_000_000
    assert large - small < 25_000_000


def test_output_that_nobody_reads_any_more_ends_the_command_quietly(cli: Cli, tmp_path: Path):
    (tmp_path / "lines").write_bytes(b"x\n" * 200_000)
    with cli.start("count", "--lines", str(tmp_path / "lines")) as process:
        assert process.stdout.readline().startswith(b"2\t")
        process.stdout.close()
        assert process.wait(WITHIN_S) == 141
        assert process.stderr.read() == b""
