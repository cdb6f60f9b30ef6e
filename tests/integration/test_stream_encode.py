"""A StreamEncode has several batches in work: the same answers, in order, whatever happens to one of them."""

import grpc
import pytest

from tests.integration.wire import Wire, encode_options, failure_of, in_flight, until
from tests.servers import RunningServer
from tests.tokenizers_for_tests import byte_level_bpe
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2 as types

PACKED = encode_options(id_format=types.ID_FORMAT_PACKED)
LONG = "hello the world " * 100_000


def batch(batch_id: int, *texts: str, **fields: object) -> pb.StreamEncodeRequest:
    return pb.StreamEncodeRequest(batch_id=batch_id, texts=texts, options=PACKED, **fields)


def test_short_batches_behind_a_long_one_are_in_work_beside_it(wire: Wire, byte_server: RunningServer):
    stream = wire.stream("StreamEncode", timeout=60)
    stream.send(batch(0, "a"))
    stream.send(batch(1, LONG))
    stream.send(batch(2, "b"))
    until(lambda: byte_server.metric("tokend_message_seconds_count", method="StreamEncode") >= 2)
    answers = stream.rest()
    assert [answer.batch_id for answer in answers] == [0, 1, 2]
    assert answers[2].result.packed_ids == b"b\0\0\0"
    until(lambda: in_flight(byte_server) == {})


def test_many_batches_keep_their_order_and_are_those_of_single_calls(wire: Wire):
    texts = [f"text {n} " * (1 + n * 37 % 400) for n in range(200)]
    stream = wire.stream("StreamEncode", timeout=60)
    for n, text in enumerate(texts):
        stream.send(batch(n, text, text[:n]))
    answers = stream.rest()
    assert [answer.batch_id for answer in answers] == list(range(200))
    for n in range(0, 200, 17):
        alone = wire.stub.BatchEncode(pb.BatchEncodeRequest(texts=[texts[n], texts[n][:n]], options=PACKED))
        assert answers[n].result == alone


def test_a_bad_batch_among_good_ones_has_its_error_in_its_place(wire: Wire):
    stream = wire.stream("StreamEncode")
    for n in range(20):
        stream.send(batch(n, "a", pairs=["x", "y"] if n % 5 == 3 else []))
    answers = stream.rest()
    assert [answer.batch_id for answer in answers] == list(range(20))
    assert [answer.HasField("error") for answer in answers] == [n % 5 == 3 for n in range(20)]


@pytest.mark.parametrize("n_before", [0, 1, 2, 7])
def test_a_malformed_message_ends_the_stream_after_the_answers_before_it(wire: Wire, n_before: int):
    stream = wire.raw_stream("StreamEncode")
    for n in range(n_before):
        stream.send(batch(n, "hello " * 5_000).SerializeToString())
    stream.send(b"\x12\x02\xff\xfe")
    for n in range(n_before):
        assert pb.StreamEncodeResponse.FromString(next(stream.call)).batch_id == n
    with pytest.raises(grpc.RpcError) as ended:
        next(stream.call)
    stream.half_close()
    assert failure_of(ended.value).reason == "MALFORMED_MESSAGE"


def test_a_client_that_leaves_with_batches_in_work_leaves_nothing(wire: Wire, byte_server: RunningServer):
    for _ in range(5):
        stream = wire.stream("StreamEncode")
        for n in range(6):
            stream.send(batch(n, LONG[:100_000]))
        next(stream.call)
        stream.cancel()
    until(lambda: in_flight(byte_server) == {})
    until(lambda: byte_server.metric("tokend_work_texts", kind="stream") == 0)
    assert wire.stub.Encode(pb.EncodeRequest(text="a", options=PACKED)).encoding.packed_ids == b"a\0\0\0"


def test_a_drain_answers_what_is_in_work_and_takes_no_more(tokenizer_file, front: str):
    server = RunningServer(
        "--front", front, "--drain-grace-s", "10", tokenizer=tokenizer_file(byte_level_bpe())
    )
    with Wire(server.grpc) as wire:
        stream = wire.stream("StreamEncode", timeout=60)
        assert stream.ask(batch(0, "a")).batch_id == 0
        assert stream.ask(batch(1, "b")).batch_id == 1
        stream.send(batch(2, LONG))
        until(lambda: server.metric("tokend_work_texts", kind="stream") == 1)
        server.process.terminate()
        assert next(stream.call).batch_id == 2
        with pytest.raises(grpc.RpcError) as ended:
            next(stream.call)
        assert failure_of(ended.value).reason == "SHUTTING_DOWN"
        stream.half_close()
    assert server.stop() == 0
