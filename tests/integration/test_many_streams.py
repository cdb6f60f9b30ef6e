"""Streams in number and in length: none starves another, none leaks, none makes the server grow."""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.wire import Wire, in_flight, one_sequence, until
from tests.servers import RunningServer
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2 as types

SMILE = "🙂".encode()
# The long form of the case is 100,000; what a message costs is flat, which fewer show too.
N_MESSAGES = int(os.environ.get("TOKEND_TEST_MESSAGES", "20000"))


@pytest.fixture(autouse=True)
def nothing_is_left(byte_server: RunningServer):
    """Whatever a test here does, its calls, streams and sequences are counted out again."""
    yield
    until(lambda: in_flight(byte_server) == {}, within_s=10)


def test_a_thousand_sequences_on_one_stream_do_not_mix(wire: Wire):
    chance = random.Random(2)
    texts = [f"sequence {n}: " + "".join(chance.choices("aé北🙂", k=6)) for n in range(1000)]
    rest = [text.encode() for text in texts]
    stream, said = wire.stream("StreamDecode"), [""] * 1000
    while any(rest):
        inputs = []
        for n in chance.sample(range(1000), 400):
            size = chance.randint(0, 30)
            taken, rest[n] = rest[n][:size], rest[n][size:]
            inputs.append(types.SequenceInput(sequence_id=n, ids=taken))
        for output in stream.ask(pb.StreamDecodeRequest(sequences=inputs)).sequences:
            said[output.sequence_id] += output.text
    for answer in stream.rest():
        for output in answer.sequences:
            said[output.sequence_id] += output.text
    assert said == texts


def test_messages_of_one_id_have_a_flat_cost(wire: Wire):
    message = one_sequence([104]).SerializeToString()
    call = wire.channel.stream_stream("/tokend.v1.TokenizerService/StreamDecode")
    answers = call(itertools.repeat(message, N_MESSAGES), timeout=300)
    third, took_s, started_s = N_MESSAGES // 3, [], time.monotonic()
    for n, _ in enumerate(answers):
        if n and n % third == 0:
            took_s.append(time.monotonic() - started_s)
            started_s = time.monotonic()
    # The last answer is that to half-close.
    assert n == N_MESSAGES
    assert took_s[-1] < 3 * took_s[0] + 1
    assert sum(took_s) < N_MESSAGES / 500


def test_idle_streams_starve_neither_calls_nor_health(wire: Wire, byte_server: RunningServer):
    # 64 threads answer unary calls.
    streams = [wire.stream("StreamDecode", timeout=60) for _ in range(500)]
    for stream in streams:
        stream.send(one_sequence(SMILE[:2]))
    for stream in streams:
        assert next(stream.call).sequences[0].pending_bytes == 2
    assert byte_server.metric("tokend_live_streams", method="StreamDecode") == 500
    assert byte_server.metric("tokend_live_sequences") == 500
    started_s = time.monotonic()
    assert wire.stub.Encode(pb.EncodeRequest(text="the"), timeout=2).encoding.token_count == 2
    health = health_pb2_grpc.HealthStub(wire.channel)
    assert health.Check(health_pb2.HealthCheckRequest(), timeout=2).status == 1
    assert time.monotonic() - started_s < 2
    # Half of them end well, half of them leave with pending bytes; `nothing_is_left` looks at the gauges.
    for stream in streams[::2]:
        assert stream.rest()[0].sequences[0].text == "\ufffd"
    for stream in streams[1::2]:
        stream.cancel()


def test_a_stream_that_is_cancelled_before_its_first_message_is_counted_out(
    wire: Wire, byte_server: RunningServer
):
    def cancelled() -> float:
        return byte_server.metric(
            "grpc_server_handled_total", grpc_method="StreamEncode", grpc_code="Canceled"
        )

    before = cancelled()
    for _ in range(50):
        wire.stream("StreamEncode").cancel()
    streams = [wire.stream("StreamEncode") for _ in range(50)]
    until(lambda: len(in_flight(byte_server)) == 1)
    for stream in streams:
        stream.cancel()
    # Of the first fifty, those that left before the server heard of them are not known to it.
    until(lambda: 50 <= cancelled() - before <= 100)


def test_a_stream_whose_deadline_passes_is_counted_as_such(wire: Wire, byte_server: RunningServer):
    def expired() -> float:
        return byte_server.metric(
            "grpc_server_handled_total", grpc_method="StreamDecode", grpc_code="DeadlineExceeded"
        )

    before = expired()
    stream = wire.stream("StreamDecode", timeout=0.3)
    stream.ask(one_sequence(SMILE[:2]))
    with pytest.raises(grpc.RpcError) as raised:
        next(stream.call)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    stream.cancel()
    until(lambda: expired() == before + 1)


def resident_bytes(server: RunningServer) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def test_a_reader_that_does_not_read_does_not_make_the_server_grow(wire: Wire, byte_server: RunningServer):
    message = one_sequence(packed_ids=b"x\0\0\0" * 10_000).SerializeToString()
    before = resident_bytes(byte_server)
    # Its deadline ends it on the native front, which does not tell the server that such a client has left.
    stream = wire.raw_stream("StreamDecode", timeout=8)
    for _ in range(1000):
        stream.send(message)
    greatest = 0
    deadline_s = time.monotonic() + 3
    while time.monotonic() < deadline_s:
        greatest = max(greatest, resident_bytes(byte_server))
        time.sleep(0.1)
    assert greatest - before < 50 << 20
    # It was not that nothing had come: answers did pile up until flow control stopped them.
    assert byte_server.metric("tokend_live_sequences") == 1
    assert wire.stub.Encode(pb.EncodeRequest(text="the"), timeout=2).encoding.token_count == 2
    stream.cancel()


CLIENT = """
import sys, grpc
from tokend.v1 import tokenizer_service_pb2 as pb, tokenizer_service_pb2_grpc as pb_grpc
import threading
def requests():
    yield pb.StreamDecodeRequest(sequences=[{"ids": [0xF0, 0x9F]}])
    threading.Event().wait()
stub = pb_grpc.TokenizerServiceStub(grpc.insecure_channel(sys.argv[1]))
answers = stub.StreamDecode(requests())
next(answers)
print("open", flush=True)
threading.Event().wait()
"""


def test_a_client_that_is_killed_leaves_nothing_open(byte_server: RunningServer):
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, byte_server.grpc], stdout=subprocess.PIPE, text=True
    )
    assert client.stdout.readline() == "open\n"
    assert byte_server.metric("tokend_live_sequences") == 1
    client.send_signal(signal.SIGKILL)
    client.wait()
    client.stdout.close()
    until(lambda: in_flight(byte_server) == {}, within_s=5)
