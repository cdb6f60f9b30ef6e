"""What no well-behaved client sends gets its documented answer, and the channel stays usable."""

import grpc
import pytest

from tests.integration.wire import (
    Wire,
    encode_options,
    failure_of,
    in_flight,
    one_sequence,
    refused,
    until,
)
from tests.tokenizers_for_tests import added_token, byte_level_bpe
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2 as types

INVALID = grpc.StatusCode.INVALID_ARGUMENT
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
UNARY = ("Encode", "BatchEncode", "CountTokens", "Decode", "BatchDecode", "GetTokenizer", "LookupTokens")
# The first field of the request of each of these is a string, or strings, or messages.
NOT_UTF8 = b"\x0a\x02\xc3\x28"


@pytest.fixture(autouse=True)
def usable_after(wire: Wire):
    """Every test here leaves the channel usable."""
    yield
    assert list(wire.stub.Encode(pb.EncodeRequest(text="the")).encoding.ids) == [262, 257]


@pytest.mark.parametrize("method", UNARY)
def test_garbage_is_malformed(wire: Wire, method):
    failure = refused(wire.raw, method, b"\x0a\xff\xff\xff\xff")
    assert (failure.code, failure.reason) == (INVALID, "MALFORMED_MESSAGE")


@pytest.mark.parametrize(
    ("method", "data"),
    [
        ("Encode", NOT_UTF8),
        ("Encode", b"\x12\x02\xc3\x28"),
        ("BatchEncode", NOT_UTF8),
        ("CountTokens", NOT_UTF8),
        ("LookupTokens", b"\x12\x01\xff"),
        ("DownloadTokenizer", NOT_UTF8),
        # A lone surrogate as some languages write it.
        ("Encode", b"\x0a\x03\xed\xa0\x80"),
    ],
)
def test_a_string_that_is_not_utf8_is_malformed(wire: Wire, method, data):
    if method == "DownloadTokenizer":
        call = wire.channel.unary_stream(f"/tokend.v1.TokenizerService/{method}")
        failure = refused(lambda timeout: list(call(data, timeout=timeout)))
    else:
        failure = refused(wire.raw, method, data)
    assert (failure.code, failure.reason) == (INVALID, "MALFORMED_MESSAGE")


@pytest.mark.parametrize("method", ["StreamEncode", "StreamDecode"])
def test_a_malformed_message_ends_a_stream(wire: Wire, method):
    stream = wire.raw_stream(method)
    stream.send(b"\xff\xff")
    with pytest.raises(grpc.RpcError):
        next(stream.call)
    assert failure_of(stream.call).reason == "MALFORMED_MESSAGE"
    stream.cancel()


@pytest.mark.parametrize("method", UNARY)
def test_an_empty_message_is_a_request_with_nothing_set(wire: Wire, method):
    answer = getattr(pb, method + "Response").FromString(wire.raw(method, b""))
    assert answer.fingerprint
    if method == "Encode":
        assert list(answer.encoding.ids) == [262]
    if method == "Decode":
        assert answer.text == ""


def test_empty_messages_on_streams_are_answered(wire: Wire):
    encode, decode = wire.raw_stream("StreamEncode"), wire.raw_stream("StreamDecode")
    assert pb.StreamEncodeResponse.FromString(encode.ask(b"")).WhichOneof("outcome") == "result"
    assert not pb.StreamDecodeResponse.FromString(decode.ask(b"")).sequences
    assert encode.rest() == decode.rest() == []


def test_unknown_fields_are_passed_over(wire: Wire):
    data = pb.EncodeRequest(text="the").SerializeToString() + b"\xfa\x3e\x05hello"
    assert list(pb.EncodeResponse.FromString(wire.raw("Encode", data)).encoding.ids) == [262, 257]


def test_an_id_beyond_32_bits_is_cut_by_protobuf_before_anybody_can_tell(wire: Wire):
    # 2**32 + 97 as a varint: documented, and not preventable.
    answer = wire.raw("Decode", b"\x0a\x05\xe1\x80\x80\x80\x10")
    assert pb.DecodeResponse.FromString(answer).text == "a"


@pytest.mark.parametrize("path", ["/tokend.v1.TokenizerService/NoSuchMethod", "/no.such.Service/Encode", "/"])
def test_an_unknown_method_is_unimplemented(wire: Wire, path):
    with pytest.raises(grpc.RpcError) as raised:
        wire.channel.unary_unary(path)(b"", timeout=10)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_unary_call_without_a_message_ends_and_is_counted_out(wire: Wire, byte_server):
    with pytest.raises(grpc.RpcError):
        wire.channel.stream_unary("/tokend.v1.TokenizerService/Encode")(iter(()), timeout=10)
    until(lambda: in_flight(byte_server) == {}, within_s=5)


def test_a_request_over_the_limit_is_refused_by_grpc_and_the_channel_lives(limited: Wire, limited_server):
    long = pb.EncodeRequest(text="a" * 70_000)
    failure = refused(limited.stub.Encode, long)
    assert failure.code is EXHAUSTED
    assert "65536" in failure.message
    assert limited.stub.Encode(pb.EncodeRequest(text="the")).encoding.token_count == 2
    until(lambda: in_flight(limited_server) == {}, within_s=5)


def test_a_message_over_the_limit_ends_its_stream_alone(limited: Wire, limited_server):
    stream, other = limited.stream("StreamDecode"), limited.stream("StreamDecode")
    stream.ask(one_sequence([0xF0]))
    other.ask(one_sequence([0xF0]))
    stream.send(one_sequence(packed_ids=b"\0" * 70_000))
    with pytest.raises(grpc.RpcError) as raised:
        next(stream.call)
    assert raised.value.code() is EXHAUSTED
    assert other.ask(one_sequence([0x9F, 0x99, 0x82])).sequences[0].text == "🙂"
    other.rest()
    stream.cancel()
    until(lambda: in_flight(limited_server) == {}, within_s=5)


def test_an_answer_over_the_limit_is_refused_in_our_own_words_before_it_is_sent(limited: Wire):
    options = encode_options(include_tokens=True, offsets=types.OFFSET_UNIT_CODE_POINTS)
    failure = refused(
        limited.stub.BatchEncode, pb.BatchEncodeRequest(texts=["é" * 2000] * 4, options=options)
    )
    assert (failure.code, failure.reason) == (INVALID, "REPLY_TOO_LARGE")
    assert limited.stub.Encode(pb.EncodeRequest(text="the")).encoding.token_count == 2


def test_texts_and_answers_over_grpc_s_own_4_mib_pass(wire: Wire):
    text = " the" * 1_100_000
    packed = encode_options(id_format=types.ID_FORMAT_PACKED)
    encoding = wire.stub.Encode(pb.EncodeRequest(text=text, options=packed)).encoding
    assert len(encoding.packed_ids) == 4 * encoding.token_count > 4 << 20
    assert wire.stub.Decode(pb.DecodeRequest(packed_ids=encoding.packed_ids)).text == text


@pytest.mark.parametrize(("metadata_bytes", "code"), [(9_000, grpc.StatusCode.OK), (20_000, EXHAUSTED)])
def test_large_metadata_has_the_same_status_on_every_call(wire: Wire, metadata_bytes, code):
    metadata = [("x-padding", "p" * metadata_bytes)]
    calls = [wire.stub.Encode.future(pb.EncodeRequest(), metadata=metadata, timeout=10) for _ in range(50)]
    assert {call.code() for call in calls} == {code}


def test_a_status_stays_small_however_long_the_tokens_of_the_file_are(wire_to, server_for):
    name = "<|" + "long" * 3000 + "|>"
    stub = wire_to(server_for(byte_level_bpe(added=[added_token(262, name)], post=False))).stub
    options = encode_options(special_tokens=types.SPECIAL_TOKENS_REJECT)
    failure = refused(stub.Encode, pb.EncodeRequest(text=name, options=options))
    assert failure.reason == "SPECIAL_TOKEN_REJECTED"
    assert failure.metadata["position"] == "0"
    assert name.startswith(failure.metadata["token"])
