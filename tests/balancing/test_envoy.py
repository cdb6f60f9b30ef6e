"""The real Envoy before several servers, with the configuration in deploy/envoy."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import tokend
from tests.balancing.backends import Backends
from tests.balancing.envoy import SHIPPED, RunningEnvoy
from tests.balancing.load import Load, assert_spread_evenly
from tests.integration.wire import Wire, one_sequence, until
from tests.tools import tool
from tokend.v1 import tokenizer_service_pb2 as pb

TEXT = "Hello world"


@pytest.fixture
def envoy(backends: Backends, tmp_path: Path) -> Iterator[RunningEnvoy]:
    """Envoy before three servers, all of them well."""
    with RunningEnvoy(tmp_path, backends.addresses()) as envoy:
        until(lambda: envoy.healthy() == 3)
        yield envoy


def test_envoy_takes_the_file_as_it_is():
    done = subprocess.run(
        [tool("envoy"), "--mode", "validate", "-c", str(SHIPPED), "--log-level", "error"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "OK" in done.stdout


def test_the_calls_of_one_connection_are_spread_evenly(backends: Backends, envoy: RunningEnvoy):
    request = pb.EncodeRequest(text=TEXT)
    with Wire(envoy.address) as wire:
        # Envoy takes of two servers by chance the one with fewer calls: it takes many to be even.
        assert_spread_evenly(backends, lambda: wire.stub.Encode(request, timeout=20), n_calls=1_500)


def test_large_messages_and_streams_pass(envoy: RunningEnvoy):
    with tokend.Client(envoy.address, timeout_s=60) as client:
        assert client.encode("word " * 1_000_000).token_count > 1_000_000
        with client.decoder() as decoder:
            texts = [decoder.push(token_id) for token_id in client.encode("Schöne Grüße").ids]
            assert "".join((*texts, decoder.finish())) == "Schöne Grüße"


def test_a_rolling_restart_loses_no_call(backends: Backends, envoy: RunningEnvoy):
    with Wire(envoy.address, grpc__enable_retries=0) as wire:
        request = pb.EncodeRequest(text=TEXT)
        with Load(lambda: wire.stub.Encode(request, timeout=20)) as load:
            for number in range(3):
                load.wait_for(100)
                backends.terminate(number)
                load.wait_for(100)
                backends.start(number)
                until(lambda number=number: backends.answered()[number] > 0)
    assert [failed.error for failed in load.failed] == []


def test_a_server_that_drains_gets_no_call_and_loses_none(backends: Backends, envoy: RunningEnvoy):
    with Wire(envoy.address, grpc__enable_retries=0) as wire, Wire(backends.address(0)) as beside:
        request = pb.EncodeRequest(text=TEXT)
        stream = beside.stream("StreamDecode")
        stream.ask(one_sequence(b"a"))
        with Load(lambda: wire.stub.Encode(request, timeout=20)) as load:
            load.wait_for(100)
            process = backends.begin_to_terminate(0)
            until(lambda: envoy.healthy() == 2)
            before = backends.answered()
            load.wait_for(100)
            assert backends.answered()[0] == before[0]
            assert process.poll() is None
            # The stream goes on to its own end.
            assert stream.ask(one_sequence(b"b", end=True)).sequences[0].ended
            backends.terminate(0)
    assert [failed.error for failed in load.failed] == []


def test_a_killed_server_loses_no_call_and_one_that_comes_is_used(backends: Backends, envoy: RunningEnvoy):
    with Wire(envoy.address, grpc__enable_retries=0) as wire:
        request = pb.EncodeRequest(text=TEXT)
        with Load(lambda: wire.stub.Encode(request, timeout=20)) as load:
            until(lambda: all(backends.answered_more().values()))
            backends.kill(0)
            load.wait_for(200)
            backends.start(0)
            until(lambda: backends.answered()[0] > 0)
    assert [failed.error for failed in load.failed] == []


def test_nobody_watches_the_health_of_one_server_for_all(envoy: RunningEnvoy):
    with Wire(envoy.address) as wire:
        stub = health_pb2_grpc.HealthStub(wire.channel)
        assert stub.Check(health_pb2.HealthCheckRequest(), timeout=20).status == 1
        with pytest.raises(grpc.RpcError) as raised:
            next(stub.Watch(health_pb2.HealthCheckRequest(), timeout=20))
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED
