"""What /metrics says after calls over the wire: exactly what was sent, and no series that a caller made."""

import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.wire import Wire, encode_options, in_flight, one_sequence, refused, until
from tests.servers import RunningServer
from tests.tokenizers_for_tests import byte_level_bpe
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2 as types

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(server: RunningServer) -> Samples:
    families = text_string_to_metric_families(server.get("/metrics"))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith(("tokend_", "grpc_"))
    }


class Moved:
    """The difference that a block makes; read after it."""

    def __init__(self, server: RunningServer) -> None:
        self._server, self._before = server, samples(server)

    def by(self, name: str, **labels: str) -> float:
        if name.startswith(("tokend_request_tokens", "tokend_tokens_")):
            labels = {"caller": "anonymous", **labels}
        key = (name, frozenset(labels.items()))
        # A call is counted a moment after its answer was sent.
        until(lambda: not any("tokend_in_flight_calls" in gauge for gauge in in_flight(self._server)))
        return samples(self._server)[key] - self._before[key]


@pytest.fixture
def moved(byte_server: RunningServer) -> Moved:
    until(lambda: in_flight(byte_server) == {})
    return Moved(byte_server)


def tokens_in_histogram(moved: Moved, method: str) -> tuple[float, float]:
    return (
        moved.by("tokend_request_tokens_count", method=method),
        moved.by("tokend_request_tokens_sum", method=method),
    )


def test_a_unary_call_is_one_request_of_its_tokens(wire: Wire, moved: Moved):
    wire.stub.Encode(pb.EncodeRequest(text="é🙂 the", options=encode_options()))
    assert tokens_in_histogram(moved, "Encode") == (1, 6)
    assert moved.by("tokend_tokens_total", method="Encode") == 6
    assert moved.by("tokend_texts_total", method="Encode") == 1
    assert moved.by("tokend_text_bytes_total", method="Encode") == 10
    assert moved.by("tokend_characters_total", method="Encode") == 6
    assert moved.by("tokend_request_tokens_bucket", method="Encode", le="4.0") == 0
    assert moved.by("tokend_request_tokens_bucket", method="Encode", le="8.0") == 1


def test_a_batch_is_one_request_of_all_its_tokens(wire: Wire, moved: Moved):
    wire.stub.BatchEncode(pb.BatchEncodeRequest(texts=["a", "bc"], pairs=["d", ""]))
    assert tokens_in_histogram(moved, "BatchEncode") == (1, 6)
    assert moved.by("tokend_texts_total", method="BatchEncode") == 4


def test_counted_tokens_are_tokens_and_what_stopped_is_not_counted(wire: Wire, moved: Moved):
    request = pb.CountTokensRequest(texts=["abc", "d", "e"], options=encode_options(), stop_after=3)
    wire.stub.CountTokens(request)
    assert tokens_in_histogram(moved, "CountTokens") == (1, 4)
    assert moved.by("tokend_texts_total", method="CountTokens") == 2


def test_decoding_counts_ids_taken_and_text_made(wire: Wire, moved: Moved):
    wire.stub.Decode(pb.DecodeRequest(ids=[262, *"é".encode()]))
    sequences = [types.IdList(ids=[104]), types.IdList(ids=[257, 9999])]
    options = types.DecodeOptions(unknown_ids=types.UNKNOWN_IDS_SKIP)
    wire.stub.BatchDecode(pb.BatchDecodeRequest(sequences=sequences, options=options))
    assert tokens_in_histogram(moved, "Decode") == (1, 3)
    assert moved.by("tokend_text_bytes_total", method="Decode") == 2
    assert moved.by("tokend_characters_total", method="Decode") == 1
    assert tokens_in_histogram(moved, "BatchDecode") == (1, 3)
    assert moved.by("tokend_texts_total", method="BatchDecode") == 2
    assert moved.by("tokend_unknown_ids_total", method="BatchDecode") == 1


def test_each_batch_of_a_stream_is_a_request(wire: Wire, moved: Moved):
    stream = wire.stream("StreamEncode")
    stream.ask(pb.StreamEncodeRequest(texts=["ab"], options=encode_options()))
    # It counts while the stream is open.
    assert tokens_in_histogram(moved, "StreamEncode") == (1, 2)
    stream.ask(pb.StreamEncodeRequest(texts=["abc", "<|end|>"], options=encode_options()))
    stream.ask(pb.StreamEncodeRequest(texts=["abc"], options=encode_options(offsets=99)))
    stream.rest()
    assert tokens_in_histogram(moved, "StreamEncode") == (2, 2 + 3 + 7)
    assert moved.by("tokend_special_text_total", method="StreamEncode") == 1
    assert moved.by("tokend_refusals_total", method="StreamEncode", reason="INVALID_OPTION") == 1
    assert moved.by("tokend_message_seconds_count", method="StreamEncode") == 3


def test_a_sequence_is_a_request_when_it_ends_and_its_totals_move_before(wire: Wire, moved: Moved):
    stream = wire.stream("StreamDecode")
    stream.ask(one_sequence(b"hello"))
    assert moved.by("tokend_tokens_total", method="StreamDecode") == 5
    assert moved.by("tokend_text_bytes_total", method="StreamDecode") == 5
    assert tokens_in_histogram(moved, "StreamDecode") == (0, 0)
    assert moved.by("tokend_live_sequences") == 1
    stream.ask(one_sequence("é".encode(), end=True))
    assert tokens_in_histogram(moved, "StreamDecode") == (1, 7)
    assert moved.by("tokend_texts_total", method="StreamDecode") == 1
    stream.ask(one_sequence(b"abcSTOP!", stop=["STOP"]))
    stream.ask(one_sequence(b"open", sequence_id=1))
    stream.ask(one_sequence([104, 9999], sequence_id=2))
    stream.rest()
    # 7, then 7 up to the stop string, then 4 at half-close; the failed one counts as refused.
    until(lambda: moved.by("tokend_texts_total", method="StreamDecode") == 3)
    assert tokens_in_histogram(moved, "StreamDecode") == (3, 18)
    assert moved.by("tokend_refusals_total", method="StreamDecode", reason="UNKNOWN_TOKEN_ID") == 1
    assert moved.by("tokend_live_sequences") == 0
    assert moved.by("tokend_message_seconds_count", method="StreamDecode") == 5


def test_what_was_open_on_a_stream_that_is_cancelled_has_not_ended_well(wire: Wire, moved: Moved):
    bidi = {
        "grpc_type": "bidi_stream",
        "grpc_service": "tokend.v1.TokenizerService",
        "grpc_method": "StreamDecode",
    }
    # A stream that is cancelled looks at first as if its client had said all; not each time.
    for _ in range(50):
        stream = wire.stream("StreamDecode")
        stream.ask(one_sequence(b"hello"))
        stream.cancel()
    until(lambda: moved.by("grpc_server_handled_total", grpc_code="Canceled", **bidi) == 50)
    assert tokens_in_histogram(moved, "StreamDecode") == (0, 0)
    assert moved.by("tokend_texts_total", method="StreamDecode") == 0
    assert moved.by("tokend_tokens_total", method="StreamDecode") == 50 * 5
    assert moved.by("grpc_server_msg_sent_total", **bidi) == 50
    assert moved.by("tokend_live_sequences") == 0


def test_replacement_characters_are_counted_while_a_stream_runs(wire: Wire, moved: Moved):
    stream = wire.stream("StreamDecode")
    stream.ask(one_sequence(b"\xff\xfe ok"))
    assert moved.by("tokend_replacement_characters_total", method="StreamDecode") == 2
    stream.ask(one_sequence(b"\xe2\x82"))
    assert moved.by("tokend_replacement_characters_total", method="StreamDecode") == 2
    # What is held at half-close is cut off for good.
    stream.rest()
    until(lambda: moved.by("tokend_replacement_characters_total", method="StreamDecode") == 3)
    wire.stub.Decode(pb.DecodeRequest(ids=list(b"caf\xe9")))
    assert moved.by("tokend_replacement_characters_total", method="Decode") == 1
    wire.stub.Decode(pb.DecodeRequest(ids=list("café".encode())))
    assert moved.by("tokend_replacement_characters_total", method="Decode") == 1


def test_what_a_unary_call_waited_and_worked_is_what_it_took(wire: Wire, moved: Moved):
    unary = {"grpc_type": "unary", "grpc_service": "tokend.v1.TokenizerService", "grpc_method": "Encode"}
    for _ in range(20):
        wire.stub.Encode(pb.EncodeRequest(text="short"))
    refused(wire.stub.Encode, pb.EncodeRequest(options=encode_options(offsets=99)))
    assert moved.by("tokend_work_seconds_count", method="Encode") == 21
    assert moved.by("tokend_queue_seconds_count", method="Encode") == 21
    parts_s = [moved.by(f"tokend_{part}_seconds_sum", method="Encode") for part in ("queue", "work")]
    assert sum(parts_s) == pytest.approx(moved.by("grpc_server_handling_seconds_sum", **unary))
    assert min(parts_s) > 0


def test_the_limits_that_fill_up_are_told_beside_what_fills_them(server_for):
    server: RunningServer = server_for(byte_level_bpe(), "--max-streams", "7", "--unary-threads", "3")
    assert server.metric("tokend_max_streams") == 7
    assert server.metric("tokend_unary_threads") == 3


def test_a_refused_call_counts_as_refused_and_in_no_number_of_tokens(wire: Wire, moved: Moved):
    refused(wire.stub.Decode, pb.DecodeRequest(ids=[97, 9999]))
    assert moved.by("tokend_refusals_total", method="Decode", reason="UNKNOWN_TOKEN_ID") == 1
    assert tokens_in_histogram(moved, "Decode") == (0, 0)
    assert moved.by("tokend_tokens_total", method="Decode") == 0


def test_the_grpc_server_series_count_calls_and_messages(wire: Wire, moved: Moved):
    unary = {
        "grpc_type": "unary",
        "grpc_service": "tokend.v1.TokenizerService",
        "grpc_method": "Encode",
    }
    bidi = {**unary, "grpc_type": "bidi_stream", "grpc_method": "StreamDecode"}
    wire.stub.Encode(pb.EncodeRequest(text="a"))
    refused(wire.stub.Encode, pb.EncodeRequest(options=encode_options(offsets=99)))
    stream = wire.stream("StreamDecode")
    stream.ask(one_sequence([104]))
    stream.ask(one_sequence([104]))
    stream.rest()
    assert moved.by("grpc_server_started_total", **unary) == 2
    assert moved.by("grpc_server_handled_total", **unary, grpc_code="OK") == 1
    assert moved.by("grpc_server_handled_total", **unary, grpc_code="InvalidArgument") == 1
    assert moved.by("grpc_server_msg_received_total", **unary) == 2
    assert moved.by("grpc_server_msg_sent_total", **unary) == 1
    assert moved.by("grpc_server_handling_seconds_count", **unary) == 2
    until(lambda: moved.by("grpc_server_handled_total", **bidi, grpc_code="OK") == 1)
    assert moved.by("grpc_server_msg_received_total", **bidi) == 2
    # The last one answers the half-close.
    assert moved.by("grpc_server_msg_sent_total", **bidi) == 3


def test_no_caller_can_make_a_series(wire: Wire, byte_server: RunningServer, moved: Moved):
    before = samples(byte_server).keys()
    for n in range(300):
        with pytest.raises(grpc.RpcError):
            wire.channel.unary_unary(f"/made.up.Service{n}/Method{n}")(
                b"", timeout=10, metadata=[(f"x-made-up-{n}", "value"), ("user-agent", f"agent {n}")]
            )
        wire.stub.Encode(
            pb.EncodeRequest(text=f"text {n}"),
            metadata=[("tokend-request-id", f"id-{n}"), ("x-bin", b"\xff\0")],
        )
    assert samples(byte_server).keys() == before
    other = {"grpc_type": "unary", "grpc_service": "other", "grpc_method": "other"}
    assert moved.by("grpc_server_handled_total", **other, grpc_code="Unimplemented") == 300


def test_latency_is_told_in_seconds_with_buckets_fit_for_microseconds_and_minutes(wire: Wire, moved: Moved):
    for _ in range(300):
        wire.stub.Encode(pb.EncodeRequest(text="short"))
    unary = {"grpc_type": "unary", "grpc_service": "tokend.v1.TokenizerService", "grpc_method": "Encode"}
    name = "grpc_server_handling_seconds"
    bounds = sorted(
        float(dict(labels)["le"])
        for sample, labels in samples(moved._server)
        if sample == f"{name}_bucket" and unary.items() <= dict(labels).items()
    )
    assert len([bound for bound in bounds if bound < 0.005]) >= 4
    assert bounds[-2] >= 10
    assert moved.by(f"{name}_count", **unary) == 300
    assert 0 < moved.by(f"{name}_sum", **unary) < 300
    # Short calls spread over several buckets; were the unit milliseconds, none would be in these.
    counts = [moved.by(f"{name}_bucket", **unary, le=str(bound)) for bound in bounds if bound < 1]
    assert counts[-1] > 290


def test_the_time_that_calls_wait_for_a_thread_is_told_and_is_part_of_the_latency(wire_to, server_for):
    server: RunningServer = server_for(byte_level_bpe(), "--unary-threads", "1")
    wire: Wire = wire_to(server)
    request = pb.EncodeRequest(
        text="hello the world " * 20_000, options=encode_options(id_format=types.ID_FORMAT_PACKED)
    )
    moved, started_s = Moved(server), time.monotonic()
    with ThreadPoolExecutor(10) as threads:
        list(threads.map(lambda _: wire.raw("Encode", request.SerializeToString()), range(10)))
    took_s = time.monotonic() - started_s
    unary = {"grpc_type": "unary", "grpc_service": "tokend.v1.TokenizerService", "grpc_method": "Encode"}
    # The n-th of ten calls lasts n tenths of the whole: 5.5 times the whole in sum, of which 4.5 are waiting.
    assert moved.by("grpc_server_handling_seconds_sum", **unary) > 2 * took_s
    assert moved.by("tokend_queue_seconds_sum", method="Encode") > 1.5 * took_s
    assert moved.by("tokend_queue_seconds_count", method="Encode") == 10


def test_the_tokenizer_is_told_as_labels(wire: Wire, byte_server: RunningServer):
    info = wire.stub.GetTokenizer(pb.GetTokenizerRequest())
    [labels] = [dict(labels) for name, labels in samples(byte_server) if name == "tokend_tokenizer_info"]
    assert (labels["fingerprint"], labels["name"]) == (info.fingerprint, info.name)
    assert byte_server.metric("tokend_build_info", version=info.server_version) == 1


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_the_ops_port_says_that_all_is_well(byte_server: RunningServer, path):
    assert byte_server.get(path) in {"ok\n", "ready\n"}
