"""What the two fronts must do alike although they do it in different ways, and what the native one does of its own."""

import asyncio
import os
import signal
import socket
import subprocess
from collections import Counter
from contextlib import ExitStack
from importlib.util import find_spec

import grpc
import pytest

import tokend
from tests.integration.conftest import NATIVE
from tests.integration.wire import (
    Stream,
    Wire,
    encode_options,
    failure_of,
    in_flight,
    little_endian,
    one_sequence,
    refused,
    until,
)
from tests.servers import SERVE, RunningServer, impatient
from tests.tokenizers_for_tests import byte_level_bpe
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import tokenizer_service_pb2_grpc as pb_grpc
from tokend.v1 import types_pb2 as types

needs_native = pytest.mark.skipif(
    find_spec("pygrpc_native") is None, reason="tokend[native] is not installed"
)
PACKED = encode_options(id_format=types.ID_FORMAT_PACKED)


@pytest.fixture
def own_server(tokenizer_file, front: str):
    """Start a server of the test's own, with flags."""
    running = []

    def start(*flags: str) -> RunningServer:
        given = ("--front", front, "--drain-grace-s", "2", *flags)
        running.append(RunningServer(*given, tokenizer=tokenizer_file(byte_level_bpe())))
        return running[-1]

    yield start
    assert [server.stop() for server in running] == [0] * len(running)


async def open_at_once(target: str, n_streams: int) -> list[str]:
    """Open streams at the same time, hold each open until all of them have an answer, and give those."""
    waiting = asyncio.Barrier(n_streams)

    async def one(stub: pb_grpc.TokenizerServiceStub) -> str:
        stream = stub.StreamDecode(timeout=120)
        await stream.write(one_sequence([104], end=True))
        answer = await stream.read()
        await waiting.wait()
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        return answer.sequences[0].text

    async with grpc.aio.insecure_channel(target) as channel:
        stub = pb_grpc.TokenizerServiceStub(channel)
        return await asyncio.gather(*(one(stub) for _ in range(n_streams)))


def test_five_thousand_streams_opened_at_once_are_all_served(own_server):
    server = own_server()
    assert asyncio.run(open_at_once(server.grpc, 5_000)) == ["h"] * 5_000
    until(lambda: in_flight(server) == {})


def test_of_streams_opened_at_once_those_over_the_limit_are_told_so(own_server):
    server = own_server("--max-streams", "200")
    with Wire(server.grpc) as wire:
        streams = [wire.stream("StreamDecode") for _ in range(1_000)]
        for stream in streams:
            stream.send(one_sequence([104]))
        outcomes = Counter(outcome_of(stream) for stream in streams)
        assert outcomes == {"h": 200, "UNAVAILABLE SERVER_OVERLOADED": 800}
        for stream in streams:
            stream.cancel()
    until(lambda: in_flight(server) == {})


def outcome_of(stream: Stream) -> str:
    """The first answer of a stream, or its code and reason."""
    try:
        return next(stream.call).sequences[0].text
    except grpc.RpcError:
        failure = failure_of(stream.call)
        return f"{failure.code.name} {failure.reason}"


def test_thousands_of_calls_at_once_are_answered(wire: Wire):
    calls = [wire.stub.Encode.future(pb.EncodeRequest(text=f"{n}"), timeout=60) for n in range(3_000)]
    for n, call in enumerate(calls):
        assert list(call.result().encoding.ids) == [262, *str(n).encode()]


# grpcio's clients are not refused by a server that stops: they are sent away.
@pytest.mark.parametrize("front", [NATIVE], indirect=True)
def test_refusals_are_retried_by_the_client_although_a_front_may_not_say_when(own_server):
    server = own_server()
    with Wire(server.grpc) as wire, tokend.Client(server.grpc) as client:
        client.encode("a")
        stream = wire.stream("StreamDecode")
        stream.ask(one_sequence([104]))
        server.process.send_signal(signal.SIGTERM)
        before = server.metric("grpc_server_started_total", grpc_method="Encode")
        until(lambda: refused(wire.stub.Encode, pb.EncodeRequest()).reason == "SHUTTING_DOWN")
        tried = server.metric("grpc_server_started_total", grpc_method="Encode")
        with pytest.raises(tokend.UnavailableError, match="SHUTTING_DOWN"):
            client.encode("a")
        after = server.metric("grpc_server_started_total", grpc_method="Encode")
        assert (tried > before, after - tried) == (True, 5)
        stream.cancel()


def test_answers_in_work_at_a_stop_arrive_to_the_last_byte(own_server):
    server = own_server("--drain-grace-s", "20")
    ids = little_endian([104] * 1_000_000)
    with Wire(server.grpc) as wire:
        calls = [
            wire.stub.Decode.future(pb.DecodeRequest(packed_ids=ids, options={"include_bytes": True}))
            for _ in range(6)
        ]
        until(lambda: server.metric("grpc_server_started_total", grpc_method="Decode") == len(calls))
        server.process.send_signal(signal.SIGTERM)
        for call in calls:
            answer = call.result(timeout=30)
            assert len(answer.text) == len(answer.raw_bytes) == 1_000_000
    assert server.process.wait(20) == 0


def test_a_compressed_request_is_read(wire: Wire):
    request = pb.EncodeRequest(text="the " * 1_000, options=PACKED)
    encoding = wire.stub.Encode(request, compression=grpc.Compression.Gzip).encoding
    assert encoding.token_count == 1_000 + 1


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_it_listens_on_ipv6(own_server):
    server = own_server("--listen", "[::1]:0")
    assert server.grpc.startswith("[::1]:")
    with Wire(server.grpc) as wire:
        assert wire.stub.Encode(pb.EncodeRequest(text="a")).encoding.token_count == 2
        assert [len(answer.sequences) for answer in wire.stub.StreamDecode(iter([one_sequence([104])]))] == [
            1,
            1,
        ]


def test_the_wildcard_is_for_both_families(own_server):
    server = own_server("--listen", "[::]:0")
    port = server.grpc.rpartition(":")[2]
    for host in ("127.0.0.1", "[::1]") if socket.has_ipv6 else ("127.0.0.1",):
        with Wire(f"{host}:{port}") as wire:
            assert wire.stub.Encode(pb.EncodeRequest(text="a")).encoding.token_count == 2


def test_workers_share_a_port_behind_either_front(own_server):
    server = own_server("--workers", "2")
    n_wires = 16
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(server.grpc)) for _ in range(n_wires)]
        streams = [wire.stream("StreamDecode") for wire in wires]
        for wire, stream in zip(wires, streams, strict=True):
            assert wire.stub.Encode(pb.EncodeRequest(text="a")).encoding.token_count == 2
            assert stream.ask(one_sequence([0xF0])).sequences[0].pending_bytes == 1
        assert server.metric("grpc_server_handled_total", grpc_method="Encode", grpc_code="OK") == n_wires
        server.process.send_signal(signal.SIGTERM)
        for stream in streams:
            assert next(stream.call).sequences[0].text == "\ufffd"
            stream.cancel()


def test_metadata_far_over_the_limit_harms_no_other_call(wire: Wire):
    metadata = [("x-padding", "p" * 200_000)]
    long = wire.stub.CountTokens.future(pb.CountTokensRequest(texts=["the " * 100_000]), timeout=20)
    failure = refused(wire.stub.Encode, pb.EncodeRequest(), metadata=metadata)
    assert failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert long.result().total == 100_000 + 2


def test_small_calls_pass_large_ones_that_fill_every_thread(wire_to, server_for):
    wire: Wire = wire_to(server_for(byte_level_bpe(), "--unary-threads", "2"))
    large = [
        wire.stub.Encode.future(
            pb.EncodeRequest(text="hello the world " * 50_000, options=PACKED), timeout=60
        )
        for _ in range(2)
    ]
    small = [wire.stub.Encode.future(pb.EncodeRequest(text="a"), timeout=60) for _ in range(50)]
    assert {call.result().encoding.token_count for call in small} == {2}
    assert {call.result().encoding.token_count > 100_000 for call in large} == {True}


@needs_native
def test_a_stream_that_is_blocked_both_ways_ends_although_the_front_does_not_tell_that_its_client_left(
    tokenizer_file,
):
    command = impatient(1.0)
    flags = ("--front", "native", "--drain-grace-s", "2")
    server = RunningServer(*flags, tokenizer=tokenizer_file(byte_level_bpe()), command=command)
    with Wire(server.grpc) as wire:
        slow = wire.raw_stream("StreamDecode", timeout=None)
        message = one_sequence(packed_ids=b"x\0\0\0" * 10_000).SerializeToString()
        for _ in range(1_000):
            slow.send(message)
        other = wire.stream("StreamDecode")
        other.ask(one_sequence([0xF0]))
        until(lambda: sum(in_flight(server).values()) == 4)
        slow.cancel()
        until(lambda: sum(in_flight(server).values()) == 2, within_s=10)
        # Streams that merely wait for their client are let be.
        assert other.ask(one_sequence([0x9F, 0x99, 0x82])).sequences[0].text == "🙂"
        other.rest()
    assert server.stop() == 0


@needs_native
def test_the_native_front_s_folder_goes_with_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    server = RunningServer("--front", "native")
    [folder] = tmp_path.glob("tokend-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert server.stop() == 0
    assert list(tmp_path.iterdir()) == []


@needs_native
def test_without_a_folder_for_its_socket_the_start_says_what_helps(tmp_path):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    code, said = start({"TMPDIR": str(deep)})
    assert (code, len(said.splitlines())) == (2, 1)
    assert "TMPDIR" in said


def test_without_its_package_the_start_names_the_extra(tmp_path):
    missing = 'raise ModuleNotFoundError("No module named \'pygrpc_native\'", name="pygrpc_native")\n'
    (tmp_path / "pygrpc_native.py").write_text(missing)
    code, said = start({"PYTHONPATH": str(tmp_path)})
    assert (code, len(said.splitlines())) == (2, 1)
    assert "tokend[native]" in said


def start(env: dict[str, str]) -> tuple[int, str]:
    """Start a server on the native front that cannot; gives its exit code and what it said."""
    done = subprocess.run(
        [*SERVE, "--front", "native", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **env},
    )
    return done.returncode, done.stderr
