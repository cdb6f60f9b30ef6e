"""Disks that are full, read-only or broken, and files that change under a running server: it serves on, unchanged.

The server writes nothing but verdicts on the fast engine, in its state folder; counts are in anonymous memory.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import tokend
from tests.faults.conftest import one_front
from tests.integration.test_engine import verdict_on_disk
from tests.integration.wire import until
from tests.integration.workers import readiness
from tests.servers import RunningServer
from tests.tokenizers_for_tests import byte_level_bpe, word_piece

# In a mount namespace of its own: a state folder of 64 KiB without a byte left, or all of it read-only.
FULL = 'mount -t tmpfs -o size=64k tmpfs "$STATE" && dd if=/dev/zero of="$STATE/filler" bs=4k 2>/dev/null; exec "$@"'
READ_ONLY = 'mount -o remount,bind,ro / && ! touch /tokend-was-here 2>/dev/null && exec "$@"'


def mounts_in_a_namespace() -> tuple[str, ...] | None:
    """How a command gets mounts of its own here, as root or as a user; None: not at all."""
    for as_whom in ((), ("--map-root-user",)):
        command = ("unshare", *as_whom, "--mount", "--propagation", "private")
        with contextlib.suppress(FileNotFoundError):
            tried = [*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
            if not subprocess.run(tried, capture_output=True, check=False).returncode:
                return command
    return None


def namespace(script: str) -> tuple[str, ...]:
    """Run a command behind a script in such a namespace."""
    return (*MOUNTS, "sh", "-c", script, "sh")


MOUNTS = mounts_in_a_namespace()
needs_mounts = pytest.mark.skipif(MOUNTS is None, reason="mounting in a namespace is not permitted here")


def serves(server: RunningServer) -> None:
    """It answers as the file on which it was started would."""
    text = "the naïve 🙂"
    with tokend.Client(server.grpc) as client:
        assert client.encode(text).ids == Tokenizer.from_str(byte_level_bpe()).encode(text).ids
        assert client.tokenizer_info().fingerprint == hashlib.sha256(byte_level_bpe().encode()).hexdigest()
    assert server.get("/readyz") == "ready\n"


def told(server: RunningServer, words: str) -> bool:
    return any(words in line for line in server.stderr_lines)


@one_front
@needs_mounts
def test_a_full_disk_costs_the_verdict_and_nothing_else(server_with, tmp_path, tell):
    server = server_with(
        "--engine",
        "auto",
        env={"STATE": str(tmp_path), "TOKEND_STATE_DIR": str(tmp_path)},
        around=namespace(FULL),
    )
    serves(server)
    # Verification ends, its verdict finds no place on the disk, and memory keeps it.
    until(lambda: told(server, "the verdict cannot be written"), within_s=120)
    until(lambda: server.metric("tokend_engine_state", state="pending") == 0)
    serves(server)
    tell(
        "a full disk",
        load="calls",
        lost="none",
        after="the verdict is kept in memory, and said so in the log",
    )


@one_front
@pytest.mark.parametrize("workers", [1, 2])
def test_a_log_on_a_full_disk_costs_the_log_alone(server_with, tell, workers):
    to_nowhere = ("sh", "-c", 'exec "$@" 2>/dev/full', "sh")
    env = {"PYTHONUNBUFFERED": ""}
    server = server_with("--workers", str(workers), "--log-level", "debug", env=env, around=to_nowhere)
    serves(server)
    with tokend.Client(server.grpc) as client, pytest.raises(tokend.UnknownTokenIdError):
        client.decode([1_000_000])
    serves(server)
    if workers > 1:
        os.kill(children(server.process.pid)[-1], signal.SIGKILL)
        until(lambda: server.metric("tokend_worker_restarts_total") == 1)
        until(lambda: readiness(server.ops)[0] == 200)
        serves(server)
    # The fixture asks for the exit code of a drain.
    plural = "s" * (workers > 1)
    tell(
        f"the log on a full disk, {workers} worker{plural}",
        load="calls",
        lost="none",
        after="as ever, without a log",
    )


@needs_mounts
@pytest.mark.parametrize("workers", [1, 2])
def test_with_a_read_only_root_it_serves(server_with, tell, workers):
    flags = ("--engine", "auto", "--workers", str(workers))
    server = server_with(*flags, env={"HOME": "/root", "TMPDIR": "/tmp"}, around=namespace(READ_ONLY))
    serves(server)
    tell(
        f"a read-only root, {workers} worker{'s' * (workers > 1)}",
        load="calls",
        lost="none",
        after="as ever; verdicts are kept in memory",
    )


def test_nothing_of_a_running_server_is_a_file_that_can_be_spoiled(server_with):
    server = server_with("--workers", "2")
    pids = [server.process.pid, *children(server.process.pid)]
    assert len(pids) == 4
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                opened = str(descriptor.readlink())
            except FileNotFoundError:
                continue  # closed meanwhile
            # Files on disk that are open for writing; pipes, sockets and memory have other names.
            if opened.startswith("/") and not opened.startswith(("/dev/", "/memfd:")):
                flags = int(
                    Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text().split("flags:")[1].split()[0], 8
                )
                assert flags & os.O_ACCMODE == os.O_RDONLY, opened
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            _, access, _, _, _, *name = line.split(maxsplit=5)
            shared_and_written = access[1] == "w" and access[3] == "s"
            assert not shared_and_written or name[0].startswith(("/dev/zero", "/memfd:")), line


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@one_front
def test_a_verdict_that_is_spoiled_or_lost_under_a_running_server_changes_nothing(
    tmp_path, tokenizer_file, tell
):
    state, file = tmp_path / "state", tokenizer_file(byte_level_bpe())
    verdict_on_disk(file, state)
    [path] = state.glob("verdict-*.json")
    server = RunningServer("--engine", "auto", "--state-dir", str(state), tokenizer=file)
    assert server.facts["engine"] == "fastokens"
    path.write_bytes(b"\x00" * 4096)
    serves(server)
    shutil.rmtree(state)
    serves(server)
    assert server.metric("tokend_engine_state", state="verified") == 1
    # The next start finds what is spoiled, says so, and begins on the reference.
    state.mkdir()
    path.write_text(json.dumps({"format": 1, "kind": "verified"}))
    assert server.stop() == 0
    again = RunningServer("--engine", "auto", "--state-dir", str(state), tokenizer=file)
    assert again.facts["engine"] == "reference"
    until(lambda: told(again, "no usable verdict"))
    serves(again)
    assert again.stop() == 0
    tell(
        "a spoiled, then a lost verdict file",
        load="calls",
        lost="none",
        after="the next start says so and verifies anew",
    )


@one_front
def test_a_tokenizer_file_that_is_replaced_is_not_looked_at_again(server_with, tmp_path, tell):
    file = tmp_path / "tokenizer.json"
    file.write_text(byte_level_bpe())
    server = server_with(tokenizer=file)
    for replace in (spoil, swap, remove):
        replace(file)
        serves(server)
        with tokend.Client(server.grpc) as client:
            assert client.download().data == byte_level_bpe().encode()
    tell(
        "the tokenizer file spoiled, replaced, removed",
        load="calls",
        lost="none",
        after="fingerprint and ids as before",
    )


@one_front
def test_a_worker_that_is_replaced_serves_the_file_of_the_start(fleet_of, tmp_path, tell):
    file = tmp_path / "tokenizer.json"
    file.write_text(byte_level_bpe())
    fleet = fleet_of(2, tokenizer=file)
    swap(file)
    for name in ("worker 0", "worker 1"):
        fleet.kill(name)
    until(lambda: fleet.workers("serving") == 2)
    serves(fleet)
    tell(
        "the tokenizer file replaced, then every worker killed",
        load="calls",
        lost="those in work",
        after="new workers serve the file of the start",
    )


def spoil(file: Path) -> None:
    """Write into the file itself."""
    with file.open("r+b") as opened:
        opened.write(b"\x00" * 1_000)


def swap(file: Path) -> None:
    """Move another file into its place, as deployments do."""
    other = file.with_suffix(".new")
    other.write_text(word_piece())
    other.replace(file)


def remove(file: Path) -> None:
    file.unlink()
