"""Workers that die, and workers that are told to end: the others go on, and no count is lost."""

import os
import signal

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.wire import failure_of, in_flight, one_sequence, refused, until
from tests.integration.workers import Fleet, counters, is_alive, readiness
from tokend.v1 import tokenizer_service_pb2 as pb

SMILE = "🙂".encode()
NOT_SERVING = 2


def test_it_is_not_ready_while_a_worker_is_down(fleet_of):
    fleet = fleet_of(2)
    # Each further death in a row is waited out for longer.
    for _ in range(3):
        fleet.kill("worker 1")
    os.kill(fleet.pids()["worker 1"], signal.SIGKILL)
    until(lambda: readiness(fleet.ops) == (503, "not ready: 1 of 2 workers serve\n"))
    assert fleet.workers("down") == 1
    until(lambda: readiness(fleet.ops)[0] == 200)
    assert (fleet.workers("serving"), fleet.workers("down")) == (2, 0)
    assert fleet.metric("tokend_worker_restarts_total") == 4


def goes_on(stream) -> bool:
    try:
        return stream.ask(one_sequence(b"b")).sequences[0].text == "b"
    except grpc.RpcError:
        assert failure_of(stream.call).code == grpc.StatusCode.UNAVAILABLE
        return False


def test_when_all_have_died_gauges_are_gone_and_counts_have_stayed(fleet_of, stack):
    fleet = fleet_of(3)
    streams = [wire.stream("StreamDecode") for wire in fleet.connect(stack, a_worker=2)]
    for stream in streams:
        stream.ask(one_sequence(b"abc"))
    n_streams = fleet.metric("tokend_live_streams", method="StreamDecode")
    assert n_streams >= 6
    tokens = fleet.metric("tokend_tokens_total", method="StreamDecode")
    assert tokens == 3 * n_streams
    cpu_s = fleet.metric("process_cpu_seconds_total")
    for n in range(3):
        os.kill(fleet.pids()[f"worker {n}"], signal.SIGKILL)
    until(lambda: fleet.metric("tokend_worker_restarts_total") == 3 and fleet.workers("serving") == 3)
    assert in_flight(fleet) == {}
    assert fleet.metric("tokend_tokens_total", method="StreamDecode") == tokens
    assert fleet.metric("process_cpu_seconds_total") >= cpu_s
    for stream in streams:
        assert not goes_on(stream)
        stream.cancel()


def test_the_ops_port_comes_back_with_all_counts(fleet_of, stack):
    fleet = fleet_of(2)
    for wire in fleet.connect(stack):
        wire.stub.Encode(pb.EncodeRequest(text="ab"))
    before = counters(fleet)
    fleet.kill("ops")
    after = counters(fleet)
    assert {name for name, value in before.items() if after[name] < value} == set()
    assert fleet.metric("tokend_worker_restarts_total") == 0


def test_sigterm_drains_all_workers(fleet_of, stack, front):
    fleet = fleet_of(2)
    wires = fleet.connect(stack, a_worker=2)
    watches = [
        health_pb2_grpc.HealthStub(wire.channel).Watch(health_pb2.HealthCheckRequest()) for wire in wires
    ]
    for watch in watches:
        next(watch)
    streams = [wire.stream("StreamDecode") for wire in wires]
    for stream in streams:
        assert stream.ask(one_sequence(SMILE[:2])).sequences[0].text == ""
    text = "the " * 20_000
    calls = [wire.stub.Encode.future(pb.EncodeRequest(text=text)) for wire in wires for _ in range(5)]
    until(lambda: fleet.metric("grpc_server_started_total", grpc_method="Encode") == len(calls))
    pids = fleet.pids().values()

    fleet.process.send_signal(signal.SIGTERM)
    for watch in watches:
        assert next(watch).status == NOT_SERVING
    until(lambda: readiness(fleet.ops) == (503, "not ready: shutting down\n"))
    late = [refused(wire.stub.Encode, pb.EncodeRequest(text="a")) for wire in wires]
    assert {failure.code for failure in late} == {grpc.StatusCode.UNAVAILABLE}
    # grpcio's clients were told to leave, and found nobody else on the port.
    assert {failure.reason for failure in late} == {"SHUTTING_DOWN" if front == "native" else ""}
    for stream in streams:
        # The grace time over, the held bytes come out.
        [output] = next(stream.call).sequences
        assert (output.text, output.ended) == ("\ufffd", True)
        with pytest.raises(grpc.RpcError):
            next(stream.call)
        assert failure_of(stream.call).reason == "SHUTTING_DOWN"
        stream.cancel()
    for call in calls:
        # What is put before it, 20,000 words and the last space.
        assert call.result(timeout=20).encoding.token_count == 20_002
    assert fleet.process.wait(15) == 0
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_at_once_is_one_drain(fleet_of, number):
    fleet = fleet_of(2)
    for pid in [*fleet.pids().values(), fleet.process.pid]:
        os.kill(pid, number)
    assert fleet.process.wait(15) == 0


def test_a_worker_that_is_told_to_end_drains_and_is_replaced(fleet_of, stack):
    fleet = fleet_of(2)
    fleet.connect(stack)
    ended = fleet.pids()["worker 0"]
    os.kill(ended, signal.SIGTERM)
    until(lambda: fleet.pids()["worker 0"] != ended)
    until(lambda: fleet.workers("serving") == 2)
    assert [line for line in fleet.stderr_lines if "exit_code=0" in line]


def test_nothing_outlives_a_killed_parent(fleet_of):
    fleet = fleet_of(2)
    pids = fleet.pids().values()
    fleet.process.kill()
    assert fleet.process.wait(10) == -signal.SIGKILL
    until(lambda: not any(map(is_alive, pids)))
    # The ports are free again.
    again = Fleet("--workers", "2", "--listen", fleet.grpc, "--ops-listen", fleet.ops)
    assert again.grpc == fleet.grpc
    assert again.stop() == 0
    # The fixture asks for the exit code of a drain.
    fleet.process.returncode = 0
