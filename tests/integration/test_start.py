"""Starting: the ready line, `--print-config`, and starts that fail with one line and exit code 2."""

import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import __version__ as reference_version

from tests.integration.wire import Wire, until
from tests.servers import SERVE, RunningServer, fails_to_start
from tests.tokenizers_for_tests import added_token, byte_level_bpe, tokenizer_json, word_level
from tokend.v1 import tokenizer_service_pb2 as pb

ANY_PORTS = ("--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")


def why_not(*flags: str) -> str:
    """Start what cannot start; gives the one line that it says."""
    code, said = fails_to_start(*ANY_PORTS, *flags)
    assert code == 2
    [line] = said.splitlines()
    assert line.startswith("tokend: ")
    return line


def test_the_ready_line_tells_addresses_tokenizer_engine_and_workers(server: RunningServer):
    assert re.fullmatch(
        r"tokend ready grpc=127\.0\.0\.1:\d+ ops=127\.0\.0\.1:\d+ tokenizer=[0-9a-f]{12} engine=reference workers=1",
        server.ready_line,
    )


def test_only_the_threads_of_the_sockets_interrupt_nobody(server: RunningServer):
    policies: dict[bool, set[int]] = {}
    for thread in (Path("/proc") / str(server.process.pid) / "task").iterdir():
        name = (thread / "comm").read_text().strip()
        of_grpc = name in {"event_engine", "grpc_global_tim", "lifeguard"}
        policies.setdefault(of_grpc, set()).add(os.sched_getscheduler(int(thread.name)))
    # The one that answers is among the others.
    assert policies == {True: {os.SCHED_BATCH}, False: {os.SCHED_OTHER}}


def strip_at_the_end() -> str:
    """A file whose decoder makes the library panic."""
    return word_level(decoder={"type": "Strip", "content": "a", "start": 0, "stop": 1})


BAD_FILES = {
    "broken JSON": '{"version": "1.0", ',
    "no tokenizer": '{"hello": "world"}',
    "an unknown version": byte_level_bpe().replace('"version": "1.0"', '"version": "2.0"'),
    "an unknown model": tokenizer_json({"type": "Mystery"}),
    "an added token that gets another id": byte_level_bpe(
        added=[added_token(262, "<|bos|>"), added_token(999, "<|end|>")]
    ),
    "a decoder that panics": strip_at_the_end(),
}


@pytest.mark.parametrize("fault", BAD_FILES)
def test_a_file_that_cannot_be_served_ends_the_start(tokenizer_file, fault):
    path = tokenizer_file(BAD_FILES[fault])
    line = why_not("--tokenizer", str(path))
    assert str(path) in line
    if fault not in {"broken JSON", "no tokenizer"}:
        assert reference_version in line


def test_the_id_that_would_change_is_named(tokenizer_file):
    line = why_not("--tokenizer", str(tokenizer_file(BAD_FILES["an added token that gets another id"])))
    assert all(part in line for part in ("<|end|>", "999", "263"))


def test_a_missing_file_ends_the_start(tmp_path):
    assert str(tmp_path / "none.json") in why_not("--tokenizer", str(tmp_path / "none.json"))


def test_a_folder_ends_the_start(tmp_path):
    assert str(tmp_path) in why_not("--tokenizer", str(tmp_path))


@pytest.fixture
def taken_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield f"127.0.0.1:{holder.getsockname()[1]}"


@pytest.mark.parametrize("setting", ["listen", "ops_listen"])
def test_a_port_in_use_ends_the_start(taken_port, front: str, setting):
    line = why_not("--front", front, "--" + setting.replace("_", "-"), taken_port)
    assert taken_port in line
    assert f"({setting})" in line


@pytest.mark.parametrize("host", ["no-such-host.invalid", "no..name"])
@pytest.mark.parametrize(("setting", "workers"), [("listen", "1"), ("listen", "2"), ("ops_listen", "1")])
def test_a_name_that_cannot_be_resolved_is_told_as_such(front: str, setting: str, workers: str, host: str):
    flags = ("--front", front, "--workers", workers, "--" + setting.replace("_", "-"), f"{host}:1")
    # Who listens under a name is warned first.
    code, said = fails_to_start(*ANY_PORTS, "--log-level", "error", *flags)
    wanted = f"tokend: cannot listen on {host}:1 ({setting}): the name {host} cannot be resolved: "
    assert (code, said[: len(wanted)], said.count("\n")) == (2, wanted, 1)


def test_two_servers_do_not_share_a_port_without_a_word(server: RunningServer, front: str):
    assert server.grpc in why_not("--front", front, "--listen", server.grpc)
    assert server.ops in why_not("--front", front, "--ops-listen", server.ops)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--no-such-flag"], "--no-such-flag"),
        (["--max-ids", "many"], "--max-ids"),
        (["--listen", "nowhere"], "--listen"),
        (["--log-level", "loud"], "--log-level"),
        (["--max-text-bytes", "100MiB"], "max_text_bytes"),
        (["--control-tokens", "<no such token>"], "<no such token>"),
        (["--control-tokens", "/(/"], "/(/"),
        (["--config", "/no/such/file.toml"], "/no/such/file.toml"),
    ],
)
def test_a_setting_that_cannot_be_used_ends_the_start(flags, named):
    assert named in why_not(*flags)


def test_an_unknown_key_of_the_file_ends_the_start(tmp_path):
    path = tmp_path / "tokend.toml"
    path.write_text("max_idz = 3\n")
    line = why_not("--config", str(path))
    assert "max_idz" in line
    assert "max_ids" in line


def test_an_unknown_variable_ends_the_start(monkeypatch):
    monkeypatch.setenv("TOKEND_MAX_IDZ", "3")
    assert "TOKEND_MAX_IDZ" in why_not()


def test_without_the_word_serve_there_is_no_server():
    done = subprocess.run(
        [sys.executable, "-m", "tokend_server"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)


def test_print_config_shows_each_value_and_where_it_came_from(tmp_path, monkeypatch):
    path = tmp_path / "tokend.toml"
    path.write_text("max_ids = 5\nmax_streams = 6\n")
    monkeypatch.setenv("TOKEND_MAX_STREAMS", "7")
    monkeypatch.setenv("TOKEND_MAX_STOP_STRINGS", "8")
    done = subprocess.run(
        [*SERVE, "--print-config", "--config", str(path), "--max-stop-strings", "9"],
        capture_output=True,
        text=True,
        check=True,
    )
    values = tomllib.loads(done.stdout)
    assert (values["max_ids"], values["max_streams"], values["max_stop_strings"]) == (5, 7, 9)
    origins = dict(re.findall(r"^(\w+) = .*?  # (.*)$", done.stdout, re.MULTILINE))
    assert origins["max_ids"] == f"file {path}"
    assert origins["max_streams"] == "environment TOKEND_MAX_STREAMS"
    assert origins["max_stop_strings"] == "flag --max-stop-strings"
    assert origins["max_batch_texts"] == "default"
    assert done.stderr == ""


def test_the_log_can_be_json_lines(server_for):
    server = server_for(byte_level_bpe(), "--log-format", "json")
    until(lambda: any("--control-tokens" in line for line in server.stderr_lines))
    records = [json.loads(line) for line in server.stderr_lines]
    [serving] = [record for record in records if record["message"] == "serving"]
    assert serving["fingerprint"].startswith(server.facts["tokenizer"])
    [left_out] = [record for record in records if "--control-tokens" in record["message"]]
    assert left_out["tokens"] == "<tool>"


def test_a_file_with_a_name_that_is_no_text_is_served(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9-\xff.json")
    path.write_text(byte_level_bpe(), encoding="utf-8")
    server = RunningServer(tokenizer=path)
    try:
        with Wire(server.grpc) as wire:
            assert wire.stub.GetTokenizer(pb.GetTokenizerRequest()).name.startswith("caf")
        assert "tokend_tokenizer_info" in server.get("/metrics")
    finally:
        assert server.stop() == 0
