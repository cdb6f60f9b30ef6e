"""What is in work is bounded: unary calls beyond it are refused at once, batches of streams wait, answers stay right."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tests.integration.wire import Wire, encode_options, failure_of, in_flight, little_endian, refused, until
from tests.servers import RunningServer
from tests.tokenizers_for_tests import byte_level_bpe
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2 as types

PACKED = encode_options(id_format=types.ID_FORMAT_PACKED)
# Above all bounds here by itself, and long enough in work to be found there.
LONG = "hello the world " * 200_000
# Not so small that it is answered where it comes in.
SHORT = "hello the world " * 200


@pytest.fixture
def busy(server_for) -> RunningServer:
    """A server that takes 64 KiB or 8 texts of each kind at a time."""
    return server_for(byte_level_bpe(), "--max-work-bytes", "128KiB", "--max-work-texts", "16")


@pytest.fixture
def busy_wire(wire_to, busy: RunningServer) -> Wire:
    return wire_to(busy)


def n_in_work(server: RunningServer, kind: str, what: str = "texts") -> float:
    return server.metric(f"tokend_work_{what}", kind=kind)


def test_a_text_above_the_bound_is_served_and_others_are_refused_meanwhile(busy_wire: Wire, busy, front):
    long = busy_wire.stub.Encode.future(pb.EncodeRequest(text=LONG, options=PACKED), timeout=60)
    until(lambda: n_in_work(busy, "unary") == 1)
    assert n_in_work(busy, "unary", "bytes") > len(LONG)
    failure = refused(busy_wire.stub.Encode, pb.EncodeRequest(text=SHORT))
    # What is small needs no room.
    assert list(busy_wire.stub.Encode(pb.EncodeRequest(text="a")).encoding.ids)
    assert not long.done(), "it was not in work meanwhile"
    assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "SERVER_OVERLOADED")
    assert "max_work_bytes" in failure.message
    assert 0 < failure.retry_after_ms < 1_000
    # docs/adr/0012: the native front cannot send gRPC's own key.
    pushback = failure.trailing.get("grpc-retry-pushback-ms")
    assert pushback == (str(failure.retry_after_ms) if front == "grpcio" else None)
    assert len(long.result().encoding.packed_ids) > 0
    until(lambda: n_in_work(busy, "unary") == n_in_work(busy, "unary", "bytes") == 0)
    assert len(busy_wire.stub.Encode(pb.EncodeRequest(text=SHORT)).encoding.ids) > 0


def test_refused_calls_are_counted_and_leave_nothing_open(busy_wire: Wire, busy: RunningServer):
    def refusals() -> float:
        return busy.metric("tokend_refusals_total", method="CountTokens", reason="SERVER_OVERLOADED")

    before = refusals()
    long = busy_wire.stub.Encode.future(pb.EncodeRequest(text=LONG, options=PACKED), timeout=60)
    until(lambda: n_in_work(busy, "unary") == 1)
    calls = [
        busy_wire.stub.CountTokens.future(pb.CountTokensRequest(texts=[SHORT]), timeout=20) for _ in range(50)
    ]
    codes = [call.code() for call in calls]
    assert not long.done(), "it was not in work meanwhile"
    assert set(codes) == {grpc.StatusCode.UNAVAILABLE}
    assert refusals() - before == 50
    long.result()
    until(lambda: in_flight(busy) == {})


def test_the_texts_of_a_batch_count(busy_wire: Wire):
    # Alone a batch may have as many as the limit of a batch.
    assert len(busy_wire.stub.BatchEncode(pb.BatchEncodeRequest(texts=["a"] * 100)).encodings) == 100


def test_a_batch_of_many_texts_is_refused_beside_others(busy_wire: Wire, busy: RunningServer):
    long = busy_wire.stub.Encode.future(pb.EncodeRequest(text=LONG[:48_000], options=PACKED), timeout=60)
    calls = [
        busy_wire.stub.BatchEncode.future(pb.BatchEncodeRequest(texts=[SHORT] * 9), timeout=20)
        for _ in range(200)
    ]
    # Whether one is alone is a matter of the moment; whatever is answered is answered in full.
    for call in calls:
        if call.code() is grpc.StatusCode.OK:
            assert len(call.result().encodings) == 9
        else:
            assert failure_of(call).reason == "SERVER_OVERLOADED"
    long.result()
    until(lambda: n_in_work(busy, "unary") == 0)


def test_batches_of_streams_wait_for_room_and_none_fails(busy_wire: Wire, busy: RunningServer):
    """Eight streams with far more than the bound: each gets its answers, in order, as if it were alone."""
    texts = [f"{n} hello the world " * 1_000 for n in range(6)]
    expected = [
        busy_wire.stub.BatchEncode(pb.BatchEncodeRequest(texts=[text] * 2, options=PACKED)).packed_ids
        for text in texts
    ]

    def run(_: int) -> list[tuple[int, bytes]]:
        stream = busy_wire.stream("StreamEncode", timeout=60)
        for n, text in enumerate(texts):
            stream.send(pb.StreamEncodeRequest(batch_id=n, texts=[text] * 2, options=PACKED))
        return [(answer.batch_id, answer.result.packed_ids) for answer in stream.rest()]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(run, range(8)))
    assert answers == [list(enumerate(expected))] * 8
    until(lambda: n_in_work(busy, "stream") == n_in_work(busy, "stream", "bytes") == 0)


def test_streams_and_unary_calls_have_room_of_their_own(busy_wire: Wire, busy: RunningServer):
    stream = busy_wire.stream("StreamEncode", timeout=60)
    stream.send(pb.StreamEncodeRequest(batch_id=1, texts=[LONG], options=PACKED))
    until(lambda: n_in_work(busy, "stream") == 1)
    assert list(busy_wire.stub.Encode(pb.EncodeRequest(text="a")).encoding.ids)
    assert n_in_work(busy, "stream") == 1, "it was not in work meanwhile"
    assert [answer.batch_id for answer in stream.rest()] == [1]


def test_a_stream_that_leaves_while_its_batch_waits_leaves_nothing(busy_wire: Wire, busy: RunningServer):
    holder = busy_wire.stream("StreamEncode", timeout=60)
    holder.send(pb.StreamEncodeRequest(batch_id=1, texts=[LONG], options=PACKED))
    until(lambda: n_in_work(busy, "stream") == 1)
    waiting = busy_wire.stream("StreamEncode", timeout=60)
    waiting.send(pb.StreamEncodeRequest(batch_id=2, texts=["a"], options=PACKED))
    until(lambda: busy.metric("grpc_server_msg_received_total", grpc_method="StreamEncode") >= 2)
    waiting.cancel()
    assert [answer.batch_id for answer in holder.rest()] == [1]
    until(lambda: n_in_work(busy, "stream") == 0 and in_flight(busy) == {})


def test_ids_and_messages_of_streams_are_counted(wire: Wire, byte_server: RunningServer):
    assert wire.stub.Decode(pb.DecodeRequest(packed_ids=little_endian([104, 105]))).text == "hi"
    stream = wire.stream("StreamDecode")
    assert (
        stream.ask(pb.StreamDecodeRequest(sequences=[types.SequenceInput(ids=[104])])).sequences[0].text
        == "h"
    )
    stream.rest()
    until(lambda: n_in_work(byte_server, "unary") == n_in_work(byte_server, "stream") == 0)
