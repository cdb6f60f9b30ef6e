"""Several workers on one port: they start, spread the load, die and drain as one server."""

import socket
import subprocess
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import tokend
from tests.integration.wire import Wire, until
from tests.integration.workers import memory_bytes, n_threads, readiness, worker_of
from tests.servers import SERVE, RunningServer, fails_to_start
from tests.tokenizers_for_tests import byte_level_bpe, word_level
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend_server.cores import usable_cores
from tokend_server.data import default_tokenizer_path
from tokend_server.engine.artifact import read_artifact
from tokend_server.engine.special_tokens import select_control_tokens
from tokend_server.engine.verdicts import Verdict, VerdictKind, VerdictStore
from tokend_server.engine.verification import verdict_key

SMILE = "🙂".encode()
NOT_SERVING = 2


@pytest.fixture
def verified(tokenizer_file, tmp_path) -> tuple[Path, Path]:
    """A tokenizer file, and a state folder with a verdict by which the fast engine may serve it."""
    path = tokenizer_file(byte_level_bpe())
    artifact = read_artifact(path)
    verdict = Verdict(
        key=verdict_key(artifact, select_control_tokens(artifact, ())),
        kind=VerdictKind.VERIFIED,
        reason="",
        excluded=frozenset(),
        decided_at="2026-11-29T00:00:00+00:00",
    )
    assert VerdictStore(tmp_path).save(verdict)
    return path, tmp_path


def test_all_workers_serve_on_one_port(fleet_of, stack):
    fleet = fleet_of(3)
    assert fleet.facts["workers"] == "3"
    assert fleet.workers("serving") == 3
    assert fleet.get("/readyz") == "ready\n"
    wires = fleet.connect(stack, a_worker=2)
    assert len({worker_of(wire) for wire in wires}) == 3
    for wire in wires:
        assert wire.stub.Encode(pb.EncodeRequest(text="ab")).encoding.ids == [262, 97, 98]
        health = health_pb2_grpc.HealthStub(wire.channel)
        assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    # The counts of all are shown as one server's.
    assert fleet.metric("grpc_server_handled_total", grpc_method="Encode", grpc_code="OK") == len(wires)
    assert fleet.metric("tokend_tokens_total", method="Encode") == 3 * len(wires)
    assert fleet.metric("tokend_tokenizer_info") == 1


def test_one_client_uses_all_workers_with_enough_connections(fleet_of):
    fleet = fleet_of(2)
    with tokend.Client(fleet.grpc, connections=24) as client:
        assert len({worker_of_client(client) for _ in range(48)}) == 2


def worker_of_client(client: tokend.Client) -> str:
    """Which worker the client's next call goes to: errors carry the request id."""
    with pytest.raises(tokend.TokendError) as raised:
        client.decode([999_999])
    return raised.value.request_id.partition("-")[0]


def test_the_fast_engine_is_loaded_once_and_serves_in_all_workers(fleet_of, verified, frozen, stack):
    path, state = verified
    fleet = fleet_of(2, "--engine", "auto", "--state-dir", str(state), tokenizer=path)
    assert fleet.facts["engine"] == "fastokens"
    texts = [f"the {n} é 🙂" for n in range(300)]
    expected = frozen(byte_level_bpe()).encoder.reference.count(texts)
    for _ in range(2):
        for wire in fleet.connect(stack):
            answer = wire.stub.CountTokens(pb.CountTokensRequest(texts=texts), timeout=20)
            assert list(answer.counts) == expected
        # What is started later has it too.
        fleet.kill("worker 0")
    assert fleet.metric("tokend_engine_texts_total", engine="fastokens") >= 4 * len(texts)
    assert fleet.metric("tokend_engine_state", state="verified") == 2
    assert n_threads(fleet.process.pid) == 1


def test_every_worker_serves_batches_where_the_library_is_told_to_use_threads(fleet_of, stack, monkeypatch):
    # A parent that had used the library's threads would leave children that wait for them for ever.
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    fleet = fleet_of(2)
    for wire in fleet.connect(stack):
        texts = [f"the {n} " * 200 for n in range(200)]
        assert len(wire.stub.BatchEncode(pb.BatchEncodeRequest(texts=texts), timeout=30).encodings) == 200


def test_auto_is_a_worker_for_each_usable_core(fleet_of):
    fleet = fleet_of("auto")
    assert fleet.n_workers == usable_cores()


def test_the_parent_has_one_thread_and_takes_no_connection(fleet_of, stack):
    fleet = fleet_of(2)
    fleet.connect(stack)
    fleet.kill("worker 0")
    parent = fleet.process.pid
    assert n_threads(parent) == 1
    port = int(fleet.grpc.rpartition(":")[2])
    of_parent = {str(each.readlink()) for each in Path(f"/proc/{parent}/fd").iterdir()}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].partition(":")[2], 16) == port:
            assert f"socket:[{fields[9]}]" not in of_parent


def test_it_is_ready_only_when_all_workers_serve(tokenizer_file):
    slow = tokenizer_file(word_level(["[UNK]", *(f"word{n}" for n in range(150_000))]))
    ops = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [*SERVE, "--workers", "3", "--listen", "127.0.0.1:0", "--ops-listen", ops, "--tokenizer", str(slow)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        answers = []
        until(lambda: answers.append(readiness(ops)) or answers[-1] == (200, "ready\n"), within_s=60)
        # The ops port tells of the loading.
        assert (503, "not ready: 0 of 3 workers serve\n") in answers
        assert process.stdout.readline().endswith(" workers=3\n")
    finally:
        process.terminate()
        assert process.wait(20) == 0
        process.stdout.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def test_a_port_of_workers_is_refused_to_other_servers(fleet_of, server: RunningServer):
    fleet = fleet_of(2)
    for workers in ("1", "2"):
        for taken in (fleet.grpc, server.grpc):
            flags = ("--workers", workers, "--listen", taken, "--ops-listen", "127.0.0.1:0")
            code, said = fails_to_start(*flags)
            assert code == 2
            [line] = said.splitlines()
            assert line.startswith(f"tokend: cannot listen on {taken} (listen)")
        flags = ("--workers", workers, "--listen", "127.0.0.1:0", "--ops-listen", fleet.ops)
        code, said = fails_to_start(*flags)
        assert (code, said.count("\n")) == (2, 1)
        assert said.startswith(f"tokend: cannot listen on {fleet.ops} (ops_listen)")


def test_servers_share_a_port_where_both_are_told_to(fleet_of, stack):
    first = fleet_of(2, "--allow-port-sharing")
    fleet_of(2, "--allow-port-sharing", "--listen", first.grpc)
    wires = [stack.enter_context(Wire(first.grpc)) for _ in range(60)]
    assert len({worker_of(wire) for wire in wires}) == 4


def test_a_file_that_cannot_be_served_ends_the_start_with_one_line(tokenizer_file):
    panics = tokenizer_file(word_level(decoder={"type": "Strip", "content": "a", "start": 0, "stop": 1}))
    for path in (panics, Path("/no/such/tokenizer.json")):
        code, said = fails_to_start(
            "--workers", "2", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0",
            "--tokenizer", str(path), "--log-level", "error",
        )  # fmt: skip
        assert code == 2
        [line] = said.splitlines()
        assert line.startswith(f"tokend: {path}: ")


def test_a_further_worker_takes_little_memory(fleet_of, server: RunningServer, stack):
    # The embedded tokenizer, as the single server has it.
    fleet = fleet_of(3, tokenizer=default_tokenizer_path())
    for wire in fleet.connect(stack, a_worker=2):
        wire.stub.Encode(pb.EncodeRequest(text="a text of some words " * 50))
    single = memory_bytes(server.process.pid)
    pids = fleet.pids()
    private = [private_bytes(pids[f"worker {n}"]) for n in range(3)]
    assert max(private) < 0.4 * single, (private, single)


def private_bytes(pid: int) -> int:
    """What a process has for itself: so much more memory is taken than without it."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Private_"))
