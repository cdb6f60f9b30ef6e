"""OpenTelemetry spans of a real server, sent to a receiver on loopback as a collector would take them."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

import tokend
from tests.integration.wire import Wire, encode_options, one_sequence, refused, until
from tests.servers import RunningServer, fails_to_start
from tests.tokenizers_for_tests import byte_level_bpe
from tokend.v1 import tokenizer_service_pb2 as pb

pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="tokend[otel] is not installed")

from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = [("traceparent", f"00-{TRACE}-{PARENT}-01")]
NOT_SAMPLED = [("traceparent", f"00-{TRACE}-{PARENT}-00")]
SERVICE = "tokend.v1.TokenizerService"


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans over OTLP and keeps them."""

    def __init__(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self._lock = threading.Lock()
        self._spans: list[tuple[dict[str, Any], Span]] = []

    def Export(self, request, _context):  # noqa: N802 (as OTLP has it)
        with self._lock:
            for each in request.resource_spans:
                resource = plain(each.resource.attributes)
                self._spans += [(resource, span) for scope in each.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def take(self, n: int) -> list[tuple[dict[str, Any], Span]]:
        """Wait for `n` spans, and for no more; they are taken out."""
        until(lambda: len(self._spans) >= n)
        with self._lock:
            found, self._spans = self._spans, []
        assert len(found) == n
        return found

    def stop(self) -> None:
        self._server.stop(0).wait()


def plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def start(receiver: Receiver, tokenizer_file, front: str) -> Iterator[Callable[..., RunningServer]]:
    """Start a server that sends its spans to the receiver at once, with more variables of the environment."""
    import os

    running: list[RunningServer] = []

    def run(*flags: str, **variables: str) -> RunningServer:
        told = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            **variables,
        }
        running.append(
            RunningServer(
                "--front", front, "--traces", "otlp", "--drain-grace-s", "2", *flags,
                tokenizer=tokenizer_file(byte_level_bpe()), env={**os.environ, **told},
            )
        )  # fmt: skip
        return running[-1]

    yield run
    for server in running:
        assert server.stop() == 0


@pytest.fixture(scope="module")
def traced(start) -> RunningServer:
    return start("--log-format", "json", "--log-level", "debug")


@pytest.fixture(scope="module")
def traced_wire(traced: RunningServer) -> Iterator[Wire]:
    with Wire(traced.grpc) as wire:
        yield wire


def test_a_call_is_a_span_of_the_caller_s_trace_with_what_it_was(
    traced: RunningServer, traced_wire: Wire, receiver: Receiver
):
    metadata = [*SAMPLED, ("x-request-id", "r-1")]
    answer = traced_wire.stub.BatchEncode(
        pb.BatchEncodeRequest(texts=["abc", "d"], options=encode_options()), metadata=metadata
    )
    [(resource, span)] = receiver.take(1)
    assert resource["service.name"] == "tokend"
    assert span.name == f"{SERVICE}/BatchEncode"
    assert span.kind == Span.SPAN_KIND_SERVER
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    attributes = plain(span.attributes)
    assert 0 < attributes.pop("tokend.queue_seconds") < 60
    assert attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": f"{SERVICE}/BatchEncode",
        "rpc.response.status_code": "OK",
        "tokend.n_tokens": 4,
        "tokend.n_texts": 2,
        "tokend.engine": "reference",
        "tokend.caller": "anonymous",
        "tokend.request_id": "r-1",
        "tokend.fingerprint": answer.fingerprint,
    }
    assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 60e9
    assert span.status.code == Status.STATUS_CODE_UNSET
    # The log of the call finds the trace.
    until(lambda: any(f'"trace_id": "{TRACE}"' in line for line in traced.stderr_lines))


def test_a_refusal_is_an_event_of_its_span_and_no_fault_of_the_server(traced_wire: Wire, receiver: Receiver):
    refused(traced_wire.stub.Decode, pb.DecodeRequest(ids=[97, 9999]), metadata=SAMPLED)
    [(_, span)] = receiver.take(1)
    attributes = plain(span.attributes)
    assert attributes["rpc.response.status_code"] == attributes["error.type"] == "INVALID_ARGUMENT"
    assert span.status.code == Status.STATUS_CODE_UNSET
    [event] = span.events
    assert (event.name, plain(event.attributes)["tokend.reason"]) == ("refused", "UNKNOWN_TOKEN_ID")


def test_a_stream_is_one_span_with_all_that_it_moved(traced_wire: Wire, receiver: Receiver):
    stream = traced_wire.stream("StreamEncode", metadata=SAMPLED)
    stream.ask(pb.StreamEncodeRequest(texts=["ab"], options=encode_options()))
    stream.ask(pb.StreamEncodeRequest(texts=["abc"], options=encode_options(offsets=99)))
    stream.ask(pb.StreamEncodeRequest(texts=["c"], options=encode_options()))
    stream.rest()
    [(_, span)] = receiver.take(1)
    attributes = plain(span.attributes)
    assert span.name == f"{SERVICE}/StreamEncode"
    assert (attributes["tokend.n_tokens"], attributes["tokend.n_refusals"]) == (3, 1)
    assert attributes["rpc.response.status_code"] == "OK"
    assert attributes["tokend.engine"] == "reference"


def test_no_stream_makes_a_span_without_bound(traced_wire: Wire, receiver: Receiver):
    stream = traced_wire.stream("StreamEncode", metadata=SAMPLED)
    for _ in range(100):
        stream.ask(pb.StreamEncodeRequest(texts=["abc"], options=encode_options(offsets=99)))
    stream.rest()
    [(_, span)] = receiver.take(1)
    assert plain(span.attributes)["tokend.n_refusals"] == 100
    assert len(span.events) == 32


def test_a_stream_that_its_caller_leaves_has_a_span_too(traced_wire: Wire, receiver: Receiver):
    stream = traced_wire.stream("StreamDecode", metadata=SAMPLED)
    stream.ask(one_sequence(b"hello"))
    stream.cancel()
    [(_, span)] = receiver.take(1)
    assert plain(span.attributes)["rpc.response.status_code"] == "CANCELLED"


def test_a_call_that_its_caller_does_not_sample_is_not_sent(traced_wire: Wire, receiver: Receiver):
    traced_wire.stub.Encode(pb.EncodeRequest(text="a"), metadata=NOT_SAMPLED)
    traced_wire.stub.Encode(pb.EncodeRequest(text="a"), metadata=SAMPLED)
    [(_, span)] = receiver.take(1)
    assert span.trace_id.hex() == TRACE


def test_without_a_caller_s_trace_a_span_begins_one(traced_wire: Wire, receiver: Receiver):
    for metadata in ([], [("traceparent", "no trace at all")]):
        traced_wire.stub.Encode(pb.EncodeRequest(text="a"), metadata=metadata)
        [(_, span)] = receiver.take(1)
        assert (len(span.trace_id), span.parent_span_id) == (16, b"")


def test_no_text_of_a_user_is_in_a_span(traced_wire: Wire, receiver: Receiver):
    mark = "Zq7secret"
    traced_wire.stub.Encode(pb.EncodeRequest(text=mark), metadata=[("x-other", mark)])
    refused(traced_wire.stub.Encode, pb.EncodeRequest(text=mark, options=encode_options(offsets=99)))
    refused(
        traced_wire.stub.Encode,
        pb.EncodeRequest(text="a", options=encode_options(allowed_special_tokens=[mark])),
    )
    for _, span in receiver.take(3):
        assert mark.encode() not in span.SerializeToString()


def test_the_environment_s_name_sampler_and_workers_count(start, receiver: Receiver):
    server = start(
        "--workers", "2", OTEL_SERVICE_NAME="tok-b", OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
        OTEL_TRACES_SAMPLER="parentbased_always_off",
    )  # fmt: skip
    with Wire(server.grpc) as wire:
        wire.stub.Encode(pb.EncodeRequest(text="a"))
        wire.stub.Encode(pb.EncodeRequest(text="a"), metadata=SAMPLED)
    [(resource, span)] = receiver.take(1)
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("tok-b", "test")
    assert span.trace_id.hex() == TRACE


def test_spans_are_sent_before_a_server_ends(start, receiver: Receiver):
    server = start(OTEL_BSP_SCHEDULE_DELAY="3600000")
    with Wire(server.grpc) as wire:
        wire.stub.Encode(pb.EncodeRequest(text="a"))
    assert server.stop() == 0
    receiver.take(1)


def test_a_receiver_that_is_down_holds_up_neither_calls_nor_the_end(start):
    server = start(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    with Wire(server.grpc) as wire:
        for _ in range(20):
            wire.stub.Encode(pb.EncodeRequest(text="a"), timeout=5)
    assert server.stop(within_s=15) == 0


def test_a_protocol_that_cannot_be_spoken_is_refused_at_the_start(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    code, said = fails_to_start("--traces", "otlp")
    assert code == 2
    assert said == (
        "tokend: traces: OTEL_EXPORTER_OTLP_PROTOCOL is http/protobuf; tokend sends OTLP over grpc only: unset it, or say grpc\n"
    )


@pytest.fixture
def tracer() -> Iterator[trace.Tracer]:
    provider = TracerProvider()
    yield provider.get_tracer("the program")
    provider.shutdown()


def test_the_client_joins_its_program_s_trace(
    traced: RunningServer, receiver: Receiver, tracer: trace.Tracer
):
    with tokend.Client(traced.grpc) as client, tracer.start_as_current_span("prompt") as span:
        client.encode("a")
        assert "".join(client.decode_stream([104, 105])) == "hi"
    context = span.get_span_context()
    for _, child in receiver.take(2):
        assert int.from_bytes(child.trace_id, "big") == context.trace_id
        assert int.from_bytes(child.parent_span_id, "big") == context.span_id


async def test_the_async_client_joins_its_program_s_trace(
    traced: RunningServer, receiver: Receiver, tracer: trace.Tracer
):
    async with tokend.AsyncClient(traced.grpc) as client:
        with tracer.start_as_current_span("prompt") as span:
            await client.encode("a")
    [(_, child)] = receiver.take(1)
    assert int.from_bytes(child.trace_id, "big") == span.get_span_context().trace_id


def test_a_client_without_a_span_sends_no_trace(traced: RunningServer, receiver: Receiver):
    with tokend.Client(traced.grpc) as client:
        client.encode("a")
    [(_, span)] = receiver.take(1)
    assert span.parent_span_id == b""
