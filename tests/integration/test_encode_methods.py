"""Encode, BatchEncode, StreamEncode and CountTokens on the wire: every field does what its comment says."""

from functools import partial

import pytest

from tests.integration.wire import Stream, encode_options, little_endian, refused
from tests.tokenizers_for_tests import byte_level_bpe, word_level, word_piece
from tokend.v1 import error_reason_pb2 as reasons
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2 as types

BOS, END, TOOL = 262, 263, 264
MIXED = "é🙂 the"
"""Two bytes, four bytes in three tokens (the first two are merged), one token of four bytes."""
MIXED_IDS = [0xC3, 0xA9, 259, 0x99, 0x82, 258]
KEPT_END = [*b"<|end|>"]


@pytest.fixture
def encode(wire):
    def encode(text, pair=None, **options):
        request = pb.EncodeRequest(text=text, pair=pair, options=types.EncodeOptions(**options))
        return wire.stub.Encode(request).encoding

    return encode


@pytest.fixture
def encode_batch(wire):
    def encode_batch(*texts, pairs=(), **options):
        request = pb.BatchEncodeRequest(texts=texts, pairs=pairs, options=types.EncodeOptions(**options))
        return wire.stub.BatchEncode(request)

    return encode_batch


def test_unset_options_are_the_reference_s_defaults(wire):
    encoding = wire.stub.Encode(pb.EncodeRequest(text="the")).encoding
    assert encoding == types.Encoding(ids=[BOS, 257], token_count=2, total_token_count=2)


@pytest.mark.parametrize(("add", "ids"), [(True, [BOS, 257]), (False, [257])])
def test_add_special_tokens_decides_what_the_post_processor_adds(encode, add, ids):
    assert list(encode("the", add_special_tokens=add).ids) == ids


def test_empty_text_gives_what_is_added_to_it(encode):
    assert list(encode("").ids) == [BOS]
    assert encode("", add_special_tokens=False) == types.Encoding()


def test_a_pair_is_joined_by_the_post_processor_and_has_type_ids(encode):
    encoding = encode("a", "b")
    assert (list(encoding.ids), list(encoding.type_ids)) == ([BOS, 97, 98], [0, 0, 1])


def test_an_empty_pair_is_a_pair(encode):
    assert list(encode("a", "").type_ids) == [0, 0]
    assert list(encode("a").type_ids) == []


def test_a_post_processor_with_other_types_sends_them_for_a_pair_only(wire_to, server_for):
    stub = wire_to(server_for(word_piece())).stub
    pair = stub.Encode(pb.EncodeRequest(text="hello", pair="world")).encoding
    assert (list(pair.ids), list(pair.type_ids)) == ([2, 5, 3, 6, 3], [0, 0, 0, 1, 1])
    assert not stub.Encode(pb.EncodeRequest(text="hello")).encoding.type_ids


def test_packed_ids_are_little_endian_and_stand_in_place_of_the_list(encode):
    encoding = encode("the th", id_format=types.ID_FORMAT_PACKED)
    assert encoding.packed_ids == little_endian([BOS, 257, 32, 256])
    assert (list(encoding.ids), encoding.token_count) == ([], 4)


@pytest.mark.parametrize(
    ("unit", "spans"),
    [
        (types.OFFSET_UNIT_CODE_POINTS, [(0, 1), (0, 1), (1, 2), (1, 2), (1, 2), (2, 6)]),
        (types.OFFSET_UNIT_UTF8_BYTES, [(0, 2), (0, 2), (2, 6), (2, 6), (2, 6), (6, 10)]),
        (types.OFFSET_UNIT_UTF16_UNITS, [(0, 1), (0, 1), (1, 3), (1, 3), (1, 3), (3, 7)]),
        (types.OFFSET_UNIT_NONE, []),
    ],
)
def test_offsets_count_in_the_asked_unit(encode, unit, spans):
    encoding = encode(MIXED, add_special_tokens=False, offsets=unit)
    assert list(encoding.ids) == MIXED_IDS
    assert list(zip(encoding.starts, encoding.ends, strict=True)) == spans


def test_what_was_added_has_empty_offsets_and_a_pair_counts_from_its_own_beginning(encode):
    encoding = encode("é", "ab", offsets=types.OFFSET_UNIT_UTF8_BYTES)
    assert list(encoding.ids) == [BOS, 0xC3, 0xA9, 97, 98]
    assert (list(encoding.starts), list(encoding.ends)) == ([0, 0, 0, 0, 1], [0, 2, 2, 1, 2])


def test_tokens_are_spelled_as_in_the_vocabulary(encode):
    encoding = encode("the the", include_tokens=True)
    assert list(encoding.tokens) == ["<|bos|>", "the", "Ġthe"]
    assert not encoding.starts


def test_offsets_and_tokens_come_beside_packed_ids_for_one_text(encode):
    packed = types.ID_FORMAT_PACKED
    encoding = encode("ab", id_format=packed, include_tokens=True, offsets=types.OFFSET_UNIT_CODE_POINTS)
    assert encoding.packed_ids == little_endian([BOS, 97, 98])
    assert (list(encoding.tokens), list(encoding.ends)) == (["<|bos|>", "a", "b"], [0, 1, 2])


@pytest.mark.parametrize(
    ("side", "ids"),
    [
        (types.TRUNCATION_SIDE_UNSPECIFIED, [BOS, *b"abc"]),
        (types.TRUNCATION_SIDE_RIGHT, [BOS, *b"abc"]),
        (types.TRUNCATION_SIDE_LEFT, [BOS, *b"def"]),
    ],
)
def test_truncation_keeps_what_was_added_and_counts_what_was_there(encode, side, ids):
    encoding = encode("abcdef", truncation=types.Truncation(max_tokens=4, side=side))
    assert (list(encoding.ids), encoding.token_count, encoding.total_token_count) == (ids, 4, 7)


def test_truncation_of_a_pair_takes_from_the_longer_one_first(encode):
    encoding = encode("abcdef", "xy", truncation=types.Truncation(max_tokens=5))
    assert (list(encoding.ids), encoding.total_token_count) == ([BOS, *b"abxy"], 9)


def test_truncation_that_cuts_nothing_changes_nothing(encode):
    assert encode("abc", truncation=types.Truncation(max_tokens=4)) == encode("abc")


@pytest.mark.parametrize(
    ("policy", "allowed", "ids", "n_kept"),
    [
        (types.SPECIAL_TOKENS_PARSE, [], [97, END, 98], 0),
        (types.SPECIAL_TOKENS_TEXT, [], [97, *KEPT_END, 98], 1),
        (types.SPECIAL_TOKENS_UNSPECIFIED, [], [97, *KEPT_END, 98], 1),
        (types.SPECIAL_TOKENS_TEXT, ["<|end|>"], [97, END, 98], 0),
        (types.SPECIAL_TOKENS_TEXT, ["<|bos|>"], [97, *KEPT_END, 98], 1),
        (types.SPECIAL_TOKENS_REJECT, ["<|end|>"], [97, END, 98], 0),
    ],
)
def test_special_token_policies(encode, policy, allowed, ids, n_kept):
    encoding = encode(
        "a<|end|>b", add_special_tokens=False, special_tokens=policy, allowed_special_tokens=allowed
    )
    assert (list(encoding.ids), encoding.special_text_count) == (ids, n_kept)


def test_an_added_token_that_is_no_control_token_is_parsed_under_text(encode):
    assert list(encode("a<tool>", add_special_tokens=False).ids) == [97, TOOL]


def test_the_operator_can_name_more_control_tokens_and_another_default(wire_to, server_for):
    flags = ("--control-tokens", "<tool>", "--default-special-tokens", "REJECT")
    server = server_for(byte_level_bpe(), *flags)
    failure = refused(wire_to(server).stub.Encode, pb.EncodeRequest(text="a<tool>"))
    assert (failure.reason, failure.metadata) == (
        "SPECIAL_TOKEN_REJECTED",
        {"token": "<tool>", "position": "1"},
    )


@pytest.mark.parametrize("method", ["Encode", "BatchEncode", "CountTokens"])
def test_the_fingerprint_is_in_the_reply_and_can_be_pinned(wire, byte_server, method):
    served = wire.stub.GetTokenizer(pb.GetTokenizerRequest()).fingerprint
    assert served.startswith(byte_server.facts["tokenizer"])
    make = {"Encode": partial(pb.EncodeRequest, text="a")}.get(
        method, partial(getattr(pb, method + "Request"), texts=["a"])
    )
    call = getattr(wire.stub, method)
    assert call(make(options=encode_options(expected_fingerprint=served))).fingerprint == served
    failure = refused(call, make(options=encode_options(expected_fingerprint="0" * 64)))
    assert failure.reason == "TOKENIZER_MISMATCH"


def test_a_batch_gives_each_text_what_encode_gives_alone(encode, encode_batch):
    texts = ["the", "", MIXED, "a<|end|>b"]
    options = {"offsets": types.OFFSET_UNIT_UTF16_UNITS, "include_tokens": True}
    answer = encode_batch(*texts, **options)
    assert list(answer.encodings) == [encode(text, **options) for text in texts]
    assert not answer.packed_ids


def test_a_batch_of_pairs_gives_each_what_encode_gives_alone(encode, encode_batch):
    answer = encode_batch("a", "bc", pairs=["x", ""])
    assert list(answer.encodings) == [encode("a", "x"), encode("bc", "")]


def test_an_empty_batch_gives_an_empty_answer(encode_batch):
    assert not encode_batch().encodings
    packed = encode_batch(id_format=types.ID_FORMAT_PACKED)
    assert (packed.packed_ids, list(packed.token_counts)) == (b"", [])


def test_a_packed_batch_joins_the_ids_and_says_where_to_cut(encode_batch):
    answer = encode_batch("the", "", "ab", add_special_tokens=False, id_format=types.ID_FORMAT_PACKED)
    assert answer.packed_ids == little_endian([257, 97, 98])
    assert list(answer.token_counts) == [1, 0, 2]
    lists = (answer.encodings, answer.total_token_counts, answer.special_text_counts)
    assert [list(each) for each in lists] == [[], [], []]


def test_a_packed_batch_tells_totals_under_truncation_and_kept_tokens_where_there_are_some(encode_batch):
    answer = encode_batch(
        "abcd", "<|end|>", id_format=types.ID_FORMAT_PACKED, truncation=types.Truncation(max_tokens=3)
    )
    assert (list(answer.token_counts), list(answer.total_token_counts)) == ([3, 3], [5, 8])
    assert list(answer.special_text_counts) == [0, 1]


@pytest.mark.parametrize(
    ("options", "field"),
    [({"offsets": types.OFFSET_UNIT_CODE_POINTS}, "offsets"), ({"include_tokens": True}, "include_tokens")],
)
def test_a_packed_batch_refuses_what_it_could_not_carry(wire, options, field):
    request = pb.BatchEncodeRequest(
        texts=["a"], options=encode_options(id_format=types.ID_FORMAT_PACKED, **options)
    )
    failure = refused(wire.stub.BatchEncode, request)
    assert (failure.reason, failure.metadata["field"]) == ("INVALID_OPTION", field)


@pytest.mark.parametrize("pairs", [["x"], ["x", "y", "z"]])
def test_pairs_must_be_as_many_as_texts(wire, pairs):
    failure = refused(wire.stub.BatchEncode, pb.BatchEncodeRequest(texts=["a", "b"], pairs=pairs))
    assert (failure.reason, failure.metadata["field"]) == ("INVALID_OPTION", "pairs")
    assert failure.metadata["value"] == str(len(pairs))


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_truncation_below_what_is_added_is_refused(wire_to, server_for, max_tokens):
    options = types.EncodeOptions(truncation=types.Truncation(max_tokens=max_tokens))
    stub = wire_to(server_for(word_piece())).stub
    failure = refused(stub.Encode, pb.EncodeRequest(text="hello", options=options))
    assert failure.reason == "INVALID_OPTION"
    assert failure.metadata == {"field": "truncation.max_tokens", "value": str(max_tokens)}


@pytest.mark.parametrize(
    "options",
    [
        {"special_tokens": 99},
        {"id_format": 99},
        {"offsets": 99},
        {"truncation": types.Truncation(max_tokens=9, side=99)},
        {"allowed_special_tokens": ["no token of this file"]},
    ],
)
def test_values_that_no_server_of_this_version_knows_are_refused(wire, options):
    [name] = options
    for method, request in (
        (wire.stub.Encode, pb.EncodeRequest(text="a", options=encode_options(**options))),
        (wire.stub.BatchEncode, pb.BatchEncodeRequest(texts=["a"], options=encode_options(**options))),
    ):
        failure = refused(method, request)
        assert failure.reason == "INVALID_OPTION"
        assert failure.metadata["field"].split(".")[0] == name


def test_options_of_one_call_say_nothing_about_the_next(encode):
    plain = encode("a<|end|>b")
    encode("a<|end|>b", special_tokens=types.SPECIAL_TOKENS_PARSE, truncation=types.Truncation(max_tokens=1))
    assert encode("a<|end|>b") == plain


def test_counts_are_those_of_the_encodings(wire, encode_batch):
    texts = ["the", "", MIXED, "a<|end|>b"]
    answer = wire.stub.CountTokens(pb.CountTokensRequest(texts=texts))
    counts = [encoding.token_count for encoding in encode_batch(*texts).encodings]
    assert (list(answer.counts), answer.total, answer.stopped) == (counts, sum(counts), False)


def test_counts_obey_the_options(wire):
    options = encode_options(
        special_tokens=types.SPECIAL_TOKENS_PARSE, truncation=types.Truncation(max_tokens=2)
    )
    answer = wire.stub.CountTokens(pb.CountTokensRequest(texts=["<|end|>", "abcdef"], options=options))
    assert list(answer.counts) == [1, 2]


@pytest.mark.parametrize(
    ("stop_after", "counts", "stopped"),
    [(0, [2, 2, 2], False), (6, [2, 2, 2], False), (5, [2, 2, 2], True), (2, [2, 2], True), (1, [2], True)],
)
def test_a_count_ends_with_the_text_that_passes_stop_after(wire, stop_after, counts, stopped):
    request = pb.CountTokensRequest(texts=["ab", "cd", "ef"], options=encode_options(), stop_after=stop_after)
    answer = wire.stub.CountTokens(request)
    assert (list(answer.counts), answer.total, answer.stopped) == (counts, sum(counts), stopped)


def test_a_count_of_nothing_is_nothing(wire):
    answer = wire.stub.CountTokens(pb.CountTokensRequest(stop_after=1))
    assert (list(answer.counts), answer.total, answer.stopped) == ([], 0, False)


@pytest.mark.parametrize("options", [{"offsets": types.OFFSET_UNIT_UTF8_BYTES}, {"include_tokens": True}])
def test_a_count_refuses_what_it_does_not_send(wire, options):
    failure = refused(
        wire.stub.CountTokens, pb.CountTokensRequest(texts=["a"], options=encode_options(**options))
    )
    assert failure.reason == "INVALID_OPTION"


def test_a_text_that_the_vocabulary_cannot_express_is_refused_by_its_place(wire_to, server_for):
    stub = wire_to(server_for(word_level(unk_token=None))).stub
    failure = refused(stub.BatchEncode, pb.BatchEncodeRequest(texts=["a b", "a stranger"]))
    assert (failure.reason, failure.metadata) == ("INVALID_OPTION", {"field": "text", "value": "1"})


@pytest.fixture
def stream(wire):
    stream = wire.stream("StreamEncode")
    yield stream
    stream.cancel()


def batch(batch_id: int, *texts: str, **options: object) -> pb.StreamEncodeRequest:
    return pb.StreamEncodeRequest(batch_id=batch_id, texts=texts, options=encode_options(**options))


def test_a_stream_answers_each_batch_as_batch_encode_would(stream: Stream, wire):
    options = types.EncodeOptions(id_format=types.ID_FORMAT_PACKED)
    request = pb.StreamEncodeRequest(batch_id=2**64 - 1, texts=["the", MIXED], options=options)
    answer = stream.ask(request)
    assert answer.batch_id == 2**64 - 1
    assert answer.result == wire.stub.BatchEncode(pb.BatchEncodeRequest(texts=request.texts, options=options))


def test_a_stream_takes_pairs(stream: Stream):
    answer = stream.ask(pb.StreamEncodeRequest(texts=["a"], pairs=["b"]))
    assert list(answer.result.encodings[0].ids) == [BOS, 97, 98]


def test_batches_that_were_sent_ahead_are_answered_in_order(stream: Stream):
    for n in range(200):
        # Long ones before short ones: were they worked on side by side, the short would overtake.
        stream.send(batch(1000 - n, "a" * (2000 - 10 * n)))
    assert [answer.batch_id for answer in stream.rest()] == [1000 - n for n in range(200)]


def test_options_of_one_batch_do_not_reach_the_next(stream: Stream):
    stream.ask(batch(1, "abc", truncation=types.Truncation(max_tokens=1)))
    assert list(stream.ask(batch(2, "abc")).result.encodings[0].ids) == [*b"abc"]


@pytest.mark.parametrize(
    ("bad", "reason", "metadata"),
    [
        (
            batch(7, "a", "x<|end|>", special_tokens=types.SPECIAL_TOKENS_REJECT),
            "SPECIAL_TOKEN_REJECTED",
            {"token": "<|end|>", "position": "1", "index": "1"},
        ),
        (
            batch(7, "a", expected_fingerprint="f" * 64),
            "TOKENIZER_MISMATCH",
            {"expected": "f" * 64},
        ),
        (batch(7, "a", offsets=77), "INVALID_OPTION", {"field": "offsets", "value": "77"}),
        (
            pb.StreamEncodeRequest(batch_id=7, texts=["a"], pairs=["b", "c"]),
            "INVALID_OPTION",
            {"field": "pairs", "value": "2"},
        ),
        (batch(7, *["a"] * 5), "BATCH_TOO_LARGE", {"size": "5", "limit": "4"}),
        (batch(7, "a", "b" * 8001), "TEXT_TOO_LARGE", {"size": "8001", "limit": "8000", "index": "1"}),
        (batch(7, "é" * 4000, include_tokens=True, offsets=2), "REPLY_TOO_LARGE", {"limit": "65536"}),
    ],
)
def test_a_bad_batch_has_its_own_error_and_the_stream_goes_on(limited, bad, reason, metadata):
    stream = limited.stream("StreamEncode")
    answer = stream.ask(bad)
    assert (answer.batch_id, answer.WhichOneof("outcome")) == (7, "error")
    assert answer.error.code == (9 if reason == "TOKENIZER_MISMATCH" else 3)
    assert reasons.ErrorReason.Name(answer.error.reason) == f"ERROR_REASON_{reason}"
    assert metadata.items() <= dict(answer.error.metadata).items()
    assert list(stream.ask(batch(8, "ok")).result.encodings[0].ids) == [*b"ok"]
    assert stream.rest() == []


def test_half_close_ends_a_stream_well(stream: Stream):
    stream.send(batch(1, "a"))
    stream.send(batch(2))
    assert [answer.batch_id for answer in stream.rest()] == [1, 2]
    assert stream.call.code().name == "OK"
