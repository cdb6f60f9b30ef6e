"""The engines of a real server: which one serves, how that is told, and that the answers are the same."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tokend
from tests.engine.fast_for_tests import save_verdict
from tests.integration.wire import Wire
from tests.servers import RunningServer
from tests.tokenizers_for_tests import BL, WP, load, write
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend_server.engine.verdicts import VerdictKind

TEXTS = ["the aaaa", "", "naïve 日本 🙂", "a<|end|>b", "x\u180ey", "tool <tool>"] * 40


def verdict_on_disk(path: Path, state: Path, **changes) -> None:
    """A verdict with the one code point that the engines cut differently."""
    save_verdict(path, state, excluded={0x180E}, **changes)


@contextlib.contextmanager
def serving(path: Path, state: Path, *flags: str):
    server = RunningServer("--engine", "auto", "--state-dir", str(state), *flags, tokenizer=path)
    try:
        with tokend.Client(server.grpc) as client:
            yield server, client
    finally:
        assert server.stop() == 0


@pytest.fixture
def file(tmp_path):
    return write(tmp_path, BL())


def expected_ids() -> list[list[int]]:
    reference = load(BL())
    reference.encode_special_tokens = True
    return [reference.encode(text).ids for text in TEXTS]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_with_a_verdict_the_fast_engine_serves_from_the_first_call(file, tmp_path, workers):
    verdict_on_disk(file, tmp_path / "state")
    with serving(file, tmp_path / "state", "--workers", workers, "--shadow-every", "1") as (server, client):
        assert server.facts["engine"] == "fastokens"
        engine = client.tokenizer_info().engine
        assert (engine.name, engine.state, engine.reason) == ("fastokens", "VERIFIED", "")
        assert engine.excluded_code_points == 1
        packed = client.encode_batch(TEXTS)
        with Wire(server.grpc) as wire:
            listed = wire.stub.BatchEncode(pb.BatchEncodeRequest(texts=TEXTS)).encodings
        for answers in (packed, listed):
            assert [list(answer.ids) for answer in answers] == expected_ids()
            assert [answer.special_text_count for answer in answers] == [0, 0, 0, 1, 0, 0] * 40
        assert list(client.count(TEXTS).counts) == [len(ids) for ids in expected_ids()]
        assert server.metric("tokend_engine_texts_total", engine="fastokens") == 3 * 40 * 4
        assert server.metric("tokend_engine_texts_total", engine="reference") == 3 * 40 * 2
        assert server.metric("tokend_engine_state", state="verified") == int(workers)
        assert server.metric("tokend_tokenizer_info", engine="fastokens") == 1
        deadline_s = time.monotonic() + 20
        while not server.metric("tokend_shadow_checks_total", result="same"):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        assert server.metric("tokend_shadow_checks_total", result="different") == 0


def test_without_a_verdict_it_starts_on_the_reference_and_ends_at_once_while_it_verifies(file, tmp_path):
    with serving(file, tmp_path / "state") as (server, client):
        assert server.facts["engine"] == "reference"
        engine = client.tokenizer_info().engine
        assert (engine.name, engine.state, engine.reason) == (
            "reference",
            "PENDING",
            "verification is running",
        )
        assert [list(answer.ids) for answer in client.encode_batch(TEXTS)] == expected_ids()
        assert server.metric("tokend_engine_state", state="pending") == 1
        child = child_of(server.process.pid)
        started_s = time.monotonic()
    assert time.monotonic() - started_s < 10
    assert not Path(f"/proc/{child}").exists()


def test_a_server_that_is_killed_leaves_no_child_behind(file, tmp_path):
    server = RunningServer("--engine", "auto", "--state-dir", str(tmp_path), tokenizer=file)
    child = child_of(server.process.pid)
    server.process.kill()
    assert server.stop() == -signal.SIGKILL
    until_gone(child)


def until_gone(pid: int) -> None:
    deadline_s = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        # A child whose parent is gone may wait as a zombie for whoever inherits it.
        with contextlib.suppress(OSError):
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def child_of(pid: int) -> int:
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        for found in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                status = found.with_name("status").read_text()
                if b"verification.child" in found.read_bytes() and re.search(rf"PPid:\t{pid}\n", status):
                    return int(found.parent.name)
        time.sleep(0.05)
    raise AssertionError("no child verifies")


def test_a_quarantine_on_disk_is_told_and_the_reference_serves(file, tmp_path):
    verdict_on_disk(file, tmp_path, kind=VerdictKind.QUARANTINED, reason="a sampled answer differed")
    with serving(file, tmp_path) as (server, client):
        assert server.facts["engine"] == "reference"
        engine = client.tokenizer_info().engine
        assert engine.state == "QUARANTINED"
        assert engine.reason.startswith("a sampled answer differed (at ")
        assert server.metric("tokend_engine_state", state="quarantined") == 1


def test_a_state_folder_that_cannot_be_had_does_not_keep_it_from_serving(file, tmp_path):
    (tmp_path / "occupied").write_text("")
    with serving(file, tmp_path / "occupied" / "state") as (_, client):
        assert client.encode("the").ids == [262, *load(BL()).encode("the", add_special_tokens=False).ids]


def verify(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tokend_server", "verify", *arguments],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )


@pytest.mark.timeout(900)
def test_verify_reports_and_serve_uses_its_verdict(file, tmp_path):
    done = verify(str(file), "--state-dir", str(tmp_path / "state"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict    VERIFIED: the fast engine may serve this file\n" in done.stdout
    assert "code points\n" in done.stderr
    with serving(file, tmp_path / "state") as (server, client):
        assert server.facts["engine"] == "fastokens"
        assert [list(answer.ids) for answer in client.encode_batch(TEXTS)] == expected_ids()


def test_verify_of_a_file_for_the_reference_only_ends_with_3(tmp_path):
    done = verify(str(write(tmp_path, WP())), "--state-dir", str(tmp_path))
    assert (done.returncode, done.stderr) == (3, "")
    assert "verdict    REFERENCE ONLY: the model is WordPiece\n" in done.stdout


def test_verify_of_what_cannot_be_served_ends_with_2(tmp_path):
    done = verify(str(tmp_path / "none.json"))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"tokend: .*none\.json: no such file \(tokenizers [\d.]+\)\n", done.stderr)
    assert verify("--no-such-flag").returncode == 2
