"""Connections: made anew after a time, so that clients spread; pings that are let be; metadata that is too much."""

import sys
import threading
import time

import grpc
import pytest

from tests.faults.silent_proxy import SilentProxy
from tests.integration.wire import Wire, failure_of, one_sequence, refused, until
from tests.servers import RunningServer, fails_to_start
from tests.tokenizers_for_tests import byte_level_bpe
from tokend.v1 import tokenizer_service_pb2 as pb

HELLO = pb.EncodeRequest(text="hello")


@pytest.fixture(scope="module")
def ageing(tokenizer_file):
    """A server that has connections made anew after a second, and gives what is open one more."""
    flags = ("--max-connection-age-s", "1", "--max-connection-age-grace-s", "1", "--drain-grace-s", "1")
    server = RunningServer(*flags, tokenizer=tokenizer_file(byte_level_bpe()))
    yield server
    assert server.stop() == 0


def test_connections_are_made_anew_and_no_call_fails(ageing: RunningServer):
    """Case SV-011: with `max_connection_age` a client finds new servers; none of its calls notices."""
    with SilentProxy(ageing.grpc) as proxy, Wire(proxy.target) as wire:
        deadline_s = time.monotonic() + 20
        while proxy.n_connections < 3:
            assert time.monotonic() < deadline_s, "no connection was made anew"
            wire.stub.Encode(HELLO, timeout=10)


def test_an_open_stream_goes_on_for_the_grace_time(ageing: RunningServer):
    with SilentProxy(ageing.grpc) as proxy, Wire(proxy.target) as wire:
        stream = wire.stream("StreamDecode", timeout=None)
        opened_s = time.monotonic()
        assert stream.ask(one_sequence([104])).sequences[0].text == "h"
        with pytest.raises(grpc.RpcError) as ended:
            next(stream.call)
        stream.half_close()
        # Age and grace, the first of them varied by a tenth.
        assert time.monotonic() - opened_s > 1.8
        assert ended.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


def test_the_native_front_refuses_an_age():
    for flag in ("--max-connection-age-s", "--max-connection-age-grace-s"):
        code, said = fails_to_start("--front", "native", flag, "60")
        assert code == 2
        assert "no age of connections" in said


_PATIENT = """
import sys
from tokend_server.transport import server
server._MIN_PING_INTERVAL_MS = {min_interval_ms}
from tokend_server.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("min_interval_ms", "lets_be"), [(500, True), (300_000, False)])
def test_pings_of_a_client_are_let_be(tokenizer_file, min_interval_ms: int, lets_be: bool):
    """A client may ping at twice the least interval, with nothing open: as 10 s to our 5, ten times as fast.

    With gRPC's own least interval, five minutes, the same pings cost it the connection.
    """
    command = (sys.executable, "-c", _PATIENT.format(min_interval_ms=min_interval_ms), "serve")
    server = RunningServer(
        "--drain-grace-s", "1", tokenizer=tokenizer_file(byte_level_bpe()), command=command
    )
    pings = {
        "grpc__keepalive_time_ms": 1_000,
        "grpc__keepalive_timeout_ms": 5_000,
        "grpc__keepalive_permit_without_calls": 1,
        "grpc__http2__max_pings_without_data": 0,
    }
    with SilentProxy(server.grpc) as proxy, Wire(proxy.target, **pings) as wire:
        wire.stub.Encode(HELLO, timeout=10)
        # Four pings, where three are too many. A call in between would make good for them.
        threading.Event().wait(4.5)
        wire.stub.Encode(HELLO, wait_for_ready=True, timeout=10)
        assert (proxy.n_connections == 1) is lets_be
    assert server.stop() == 0


def test_metadata_above_the_limit_is_refused(server_for, wire_to, front: str):
    wire = wire_to(server_for(byte_level_bpe(), "--max-metadata-bytes", "4KiB"))
    wire.stub.Encode(HELLO, metadata=[("x", "a" * 2_000)], timeout=10)
    failure = refused(wire.stub.Encode, HELLO, metadata=[("x", "a" * 6_000)])
    assert failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    if front == "grpcio":  # What the native front passes on is not always refused: docs/configuration.md.
        stream = wire.stream("StreamDecode", metadata=[("x", "a" * 6_000)])
        stream.send(one_sequence([104]))
        with pytest.raises(grpc.RpcError) as ended:
            next(stream.call)
        stream.half_close()
        assert failure_of(ended.value).code is grpc.StatusCode.RESOURCE_EXHAUSTED
    until(lambda: len(wire.stub.Encode(HELLO, timeout=10).encoding.ids) > 0)
