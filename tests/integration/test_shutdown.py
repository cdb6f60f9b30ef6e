"""SIGTERM and SIGINT: what is in flight is answered, what is open is flushed, and the process ends with 0."""

import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.wire import (
    Failure,
    Stream,
    Wire,
    encode_options,
    failure_of,
    in_flight,
    one_sequence,
    refused,
    until,
)
from tests.servers import SERVE, RunningServer
from tests.tokenizers_for_tests import byte_level_bpe, word_level
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2 as types

SERVING, NOT_SERVING = 1, 2
SMILE = "🙂".encode()
GRACE_S = 2


@pytest.fixture
def doomed(tokenizer_file, front: str) -> Iterator[RunningServer]:
    """A server of the test's own, to be stopped in it."""
    flags = ("--front", front, "--drain-grace-s", str(GRACE_S))
    server = RunningServer(*flags, tokenizer=tokenizer_file(byte_level_bpe()))
    yield server
    assert server.stop() == 0


@pytest.fixture
def doomed_wire(doomed: RunningServer) -> Iterator[Wire]:
    with Wire(doomed.grpc) as wire:
        yield wire


def readiness(server: RunningServer) -> int:
    try:
        server.get("/readyz")
    except urllib.error.HTTPError as answer:
        return answer.code
    return 200


def assert_pushback(failure: Failure, front: str) -> None:
    """A refusal tells when to come back; gRPC's own key for it can be sent by grpcio alone."""
    assert failure.retry_after_ms is not None
    expected = None if front == "native" else str(failure.retry_after_ms)
    assert failure.trailing.get("grpc-retry-pushback-ms") == expected


def test_what_is_in_flight_is_answered_and_open_streams_are_flushed(
    doomed: RunningServer, doomed_wire: Wire, front: str
):
    watch = health_pb2_grpc.HealthStub(doomed_wire.channel).Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == SERVING
    halves = [doomed_wire.stream("StreamDecode") for _ in range(3)]
    for stream in halves:
        stream.ask(one_sequence(SMILE[:2]))
    finisher = doomed_wire.stream("StreamDecode")
    finisher.ask(one_sequence(SMILE[:2]))
    batches = [doomed_wire.stream("StreamEncode") for _ in range(2)]
    for stream in batches:
        stream.ask(pb.StreamEncodeRequest(batch_id=1, texts=["a"]))
    words = 20_000
    calls = [
        doomed_wire.stub.Encode.future(
            pb.EncodeRequest(
                text="the " * words + "x" * n, options=encode_options(id_format=types.ID_FORMAT_PACKED)
            )
        )
        for n in range(50)
    ]
    until(lambda: doomed.metric("tokend_in_flight_calls", method="Encode") > 0)
    until(lambda: doomed.metric("grpc_server_started_total", grpc_method="Encode") == 50)

    doomed.process.send_signal(signal.SIGTERM)
    assert next(watch).status == NOT_SERVING
    until(lambda: readiness(doomed) == 503)
    late = refused(doomed_wire.stub.Encode, pb.EncodeRequest(text="a"))
    while late.code == grpc.StatusCode.CANCELLED:
        # It met the GOAWAY on its way (docs/adr/0017-goaway-first.md): our clients send it again.
        late = refused(doomed_wire.stub.Encode, pb.EncodeRequest(text="a"))
    assert late.code == grpc.StatusCode.UNAVAILABLE
    if front == "native":
        assert late.reason == "SHUTTING_DOWN"
        assert_pushback(late, front)
    else:
        # The client was told to leave, and found nobody else on the port.
        assert "failed to connect" in late.message

    # A sequence that was open goes on to its own end; a new one is refused.
    assert finisher.ask(one_sequence(SMILE[2:], end=True)).sequences[0].text == "🙂"
    assert ended(finisher) == []
    for stream in halves:
        [last] = ended(stream)
        assert [(each.text, each.ended) for each in last.sequences] == [("\ufffd", True)]
    for stream in batches:
        assert ended(stream) == []
    for n, call in enumerate(calls):
        # `the`, then ` the` for each other word, then the rest of the text.
        assert call.result(timeout=20).encoding.token_count == words + 1 + n
    assert doomed.process.wait(GRACE_S + 8) == 0


def ended(stream: Stream) -> list[pb.StreamDecodeResponse]:
    """Read a stream to the end that the server makes."""
    answers = []
    try:
        answers.extend(iter(stream.call))
    except grpc.RpcError:
        failure = failure_of(stream.call)
        assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
        assert failure.retry_after_ms is not None
    else:
        raise AssertionError("the stream ended with OK")
    finally:
        stream.cancel()
    return answers


def test_a_sequence_that_goes_on_is_ended_by_the_grace_time(doomed: RunningServer, doomed_wire: Wire):
    stream = doomed_wire.stream("StreamDecode")
    stream.ask(one_sequence(b"a"))
    doomed.process.send_signal(signal.SIGTERM)
    started_s = time.monotonic()
    texts = []
    while True:
        stream.send(one_sequence(SMILE[:1]))
        try:
            texts += [each.text for each in next(stream.call).sequences]
        except grpc.RpcError:
            break
        time.sleep(0.05)
    assert GRACE_S - 0.5 < time.monotonic() - started_s < GRACE_S + 1.5
    # The bytes that were held come out at the end.
    assert "".join(texts).strip("\ufffd") == ""
    assert texts[-1]
    assert failure_of(stream.call).reason == "SHUTTING_DOWN"
    stream.cancel()
    assert doomed.process.wait(GRACE_S + 5) == 0


def test_a_draining_stream_opens_no_new_sequence(doomed: RunningServer, doomed_wire: Wire):
    stream = doomed_wire.stream("StreamDecode")
    stream.ask(one_sequence(b"a"))
    doomed.process.send_signal(signal.SIGTERM)
    until(lambda: readiness(doomed) == 503)
    # Ended at once: one that slipped in before the drain reached this stream would go on.
    request = one_sequence(b"b", sequence_id=2, end=True)
    until(lambda: stream.ask(request).sequences[0].end_reason == types.END_REASON_ERROR)
    assert stream.ask(one_sequence(b"c")).sequences[0].text == "c"
    assert [len(answer.sequences) for answer in ended_after(stream, one_sequence(end=True))] == [1]


def ended_after(stream: Stream, request: pb.StreamDecodeRequest) -> list[pb.StreamDecodeResponse]:
    stream.send(request)
    return ended(stream)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_streams_watches_and_connections_hold_nothing_up(
    doomed: RunningServer, doomed_wire: Wire, number: signal.Signals
):
    watch = health_pb2_grpc.HealthStub(doomed_wire.channel).Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == SERVING
    streams = [doomed_wire.stream(name) for name in ("StreamDecode", "StreamEncode") * 3]
    done = doomed_wire.stream("StreamDecode")
    done.ask(one_sequence(b"a", end=True))
    until(lambda: sum(in_flight(doomed).values()) == 7)
    started_s = time.monotonic()
    doomed.process.send_signal(number)
    for stream in (*streams, done):
        assert ended(stream) == []
    assert [answer.status for answer in watch] == [NOT_SERVING]
    assert doomed.process.wait(10) == 0
    assert time.monotonic() - started_s < GRACE_S - 0.5


def test_a_reader_that_does_not_read_cannot_hold_a_stop_up(doomed: RunningServer, doomed_wire: Wire):
    stream = doomed_wire.raw_stream("StreamDecode", timeout=None)
    message = one_sequence(b"x" * 20_000).SerializeToString()
    for _ in range(400):
        stream.send(message)
    # Answers pile up until flow control stops the server.
    until(lambda: stalled(doomed))
    doomed.process.send_signal(signal.SIGTERM)
    assert doomed.process.wait(GRACE_S + 4) == 0
    stream.cancel()


def stalled(server: RunningServer) -> bool:
    def sent() -> float:
        return server.metric("grpc_server_msg_sent_total", grpc_method="StreamDecode")

    before = sent()
    time.sleep(0.3)
    return 0 < before == sent()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def slow_file(tokenizer_file):
    """A vocabulary that takes the library a while to load."""
    return tokenizer_file(word_level(["[UNK]", *(f"word{n}" for n in range(400_000))]))


def test_before_the_tokenizer_is_loaded_calls_are_told_to_come_back(slow_file, front: str):
    server, wire, process = start_loading(slow_file, front)
    with wire:
        failure = refused(wire.stub.Encode, pb.EncodeRequest(text="a"))
        assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "TOKENIZER_LOADING")
        assert_pushback(failure, front)
        health = health_pb2_grpc.HealthStub(wire.channel)
        assert health.Check(health_pb2.HealthCheckRequest()).status == NOT_SERVING
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(f"http://{server}/readyz", timeout=5)
        assert raised.value.code == 503
        # What waits at its channel for the server is served by it.
        watch = health.Watch(health_pb2.HealthCheckRequest())
        assert [next(watch).status, next(watch).status] == [NOT_SERVING, SERVING]
        assert wire.stub.Encode(pb.EncodeRequest(text="word1")).encoding.ids == [2]
        assert process.stdout.readline().startswith("tokend ready ")
        process.terminate()
        process.communicate(timeout=20)
        assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start_ends_it_without_a_ready_line(slow_file, front: str, number):
    _, wire, process = start_loading(slow_file, front)
    wire.channel.close()
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err


def start_loading(path, front: str) -> tuple[str, Wire, subprocess.Popen[str]]:
    """Start a server, and come back while it still loads."""
    target, ops = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [*SERVE, "--front", front, "--listen", target, "--ops-listen", ops, "--tokenizer", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    last_resort = threading.Timer(60, process.kill)
    last_resort.daemon = True
    last_resort.start()
    wire = Wire(target, grpc__initial_reconnect_backoff_ms=50, grpc__max_reconnect_backoff_ms=50)
    grpc.channel_ready_future(wire.channel).result(timeout=20)
    return ops, wire, process
