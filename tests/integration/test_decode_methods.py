"""Decode and BatchDecode on the wire: every field does what its comment says."""

from collections.abc import Sequence

import pytest

from tests.integration.wire import little_endian, refused
from tests.tokenizers_for_tests import byte_fallback_bpe, word_piece
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2 as types

BOS, END, TOOL, UNKNOWN = 262, 263, 264, 9999
HALF = [0xF0, 0x9F]
"""The first half of most emoji."""


@pytest.fixture
def decode(wire):
    def decode(*ids: int, packed_ids: bytes = b"", **options: object) -> pb.DecodeResponse:
        options_given = types.DecodeOptions(**options)
        return wire.stub.Decode(pb.DecodeRequest(ids=ids, packed_ids=packed_ids, options=options_given))

    return decode


def test_listed_and_packed_ids_are_the_same(decode):
    ids = [257, 258, *"🙂".encode()]
    assert decode(*ids).text == decode(packed_ids=little_endian(ids)).text == "the the🙂"


def test_no_ids_are_the_empty_text(wire, decode):
    assert decode().text == ""
    assert wire.stub.Decode(pb.DecodeRequest()).text == ""


@pytest.mark.parametrize(("skip", "text"), [({}, "a<tool>b"), ({"skip_special_tokens": True}, "a<tool>b")])
def test_special_tokens_are_left_out_by_default(decode, skip, text):
    assert decode(BOS, 97, TOOL, 98, END, **skip).text == text


def test_special_tokens_are_kept_on_request(decode):
    assert decode(BOS, 97, END, skip_special_tokens=False).text == "<|bos|>a<|end|>"


def test_bytes_that_are_no_text_become_replacement_characters_and_raw_bytes_tell_them(decode):
    answer = decode(97, *HALF, 98, include_bytes=True)
    assert (answer.text, answer.raw_bytes) == ("a\ufffdb", b"a\xf0\x9fb")


def test_raw_bytes_come_only_on_request(decode):
    assert decode(97).raw_bytes == b""


def test_raw_bytes_leave_skipped_tokens_out_too(decode):
    assert decode(BOS, 97, include_bytes=True).raw_bytes == b"a"
    assert decode(BOS, 97, include_bytes=True, skip_special_tokens=False).raw_bytes == b"<|bos|>a"


@pytest.mark.parametrize("policy", [types.UNKNOWN_IDS_UNSPECIFIED, types.UNKNOWN_IDS_ERROR])
def test_an_unknown_id_is_refused_by_default(wire, policy):
    request = pb.DecodeRequest(ids=[97, UNKNOWN], options=types.DecodeOptions(unknown_ids=policy))
    failure = refused(wire.stub.Decode, request)
    assert failure.reason == "UNKNOWN_TOKEN_ID"
    assert failure.metadata == {"id": "9999", "index": "1", "max_id": "264"}


def test_skipped_unknown_ids_are_as_if_they_had_not_been_sent_but_counted(decode):
    answer = decode(*HALF, UNKNOWN, 0x99, UNKNOWN, 0x82, unknown_ids=types.UNKNOWN_IDS_SKIP)
    assert (answer.text, answer.unknown_id_count) == ("🙂", 2)


def test_replaced_unknown_ids_are_one_replacement_character_each_and_counted(decode):
    answer = decode(104, UNKNOWN, UNKNOWN, 105, unknown_ids=types.UNKNOWN_IDS_REPLACE)
    assert (answer.text, answer.unknown_id_count) == ("h\ufffd\ufffdi", 2)


def test_the_greatest_id_of_the_wire_is_an_unknown_id(wire):
    assert refused(wire.stub.Decode, pb.DecodeRequest(ids=[2**32 - 1])).metadata["id"] == str(2**32 - 1)


def test_byte_runs_change_nothing_where_all_ids_are_known(wire_to, server_for):
    stub = wire_to(server_for(byte_fallback_bpe())).stub
    for byte_runs in (types.BYTE_RUNS_UNSPECIFIED, types.BYTE_RUNS_PROMPT, types.BYTE_RUNS_HOLD):
        options = types.DecodeOptions(byte_runs=byte_runs)
        # A whole character and a stray byte in one run: the reference replaces every byte of it.
        ids = [3 + byte for byte in "é".encode()] + [3 + 0xFF]
        assert stub.Decode(pb.DecodeRequest(ids=ids, options=options)).text == "\ufffd\ufffd\ufffd"


def test_a_word_piece_file_joins_its_pieces(wire_to, server_for):
    stub = wire_to(server_for(word_piece())).stub
    ids = stub.Encode(pb.EncodeRequest(text="hello, world!")).encoding.ids
    assert stub.Decode(pb.DecodeRequest(ids=ids)).text == "hello, world!"


@pytest.mark.parametrize(
    "request_",
    [
        pb.DecodeRequest(ids=[97], packed_ids=little_endian([97])),
        pb.DecodeRequest(packed_ids=b"\0\0\0"),
    ],
)
def test_ids_in_two_forms_or_in_half_are_refused(wire, request_):
    failure = refused(wire.stub.Decode, request_)
    assert (failure.reason, failure.metadata["field"]) == ("INVALID_OPTION", "packed_ids")


@pytest.mark.parametrize("options", [{"unknown_ids": 42}, {"byte_runs": 42}])
def test_unknown_enum_values_are_refused(wire, options):
    [name] = options
    failure = refused(wire.stub.Decode, pb.DecodeRequest(options=types.DecodeOptions(**options)))
    assert (failure.reason, failure.metadata) == ("INVALID_OPTION", {"field": name, "value": "42"})


@pytest.mark.parametrize("method", ["Decode", "BatchDecode"])
def test_the_fingerprint_is_in_the_reply_and_can_be_pinned(wire, method):
    served = wire.stub.GetTokenizer(pb.GetTokenizerRequest()).fingerprint
    call, make = getattr(wire.stub, method), getattr(pb, method + "Request")
    assert call(make(options=types.DecodeOptions(expected_fingerprint=served))).fingerprint == served
    failure = refused(call, make(options=types.DecodeOptions(expected_fingerprint="0" * 64)))
    assert failure.reason == "TOKENIZER_MISMATCH"


def lists(*sequences: Sequence[int] | bytes) -> list[types.IdList]:
    return [
        types.IdList(packed_ids=each) if isinstance(each, bytes) else types.IdList(ids=each)
        for each in sequences
    ]


def test_a_batch_gives_each_list_what_decode_gives_alone_in_either_form(wire):
    sequences = lists([257], [], little_endian([BOS, 97, *HALF]), [98, UNKNOWN])
    options = types.DecodeOptions(include_bytes=True, unknown_ids=types.UNKNOWN_IDS_REPLACE)
    answer = wire.stub.BatchDecode(pb.BatchDecodeRequest(sequences=sequences, options=options))
    alone = [
        wire.stub.Decode(pb.DecodeRequest(ids=each.ids, packed_ids=each.packed_ids, options=options))
        for each in sequences
    ]
    for each in alone:
        each.fingerprint = ""
    assert list(answer.results) == alone
    assert [each.unknown_id_count for each in answer.results] == [0, 0, 0, 1]


def test_an_empty_batch_gives_nothing(wire):
    assert not wire.stub.BatchDecode(pb.BatchDecodeRequest()).results


@pytest.mark.parametrize(
    ("sequences", "reason", "metadata"),
    [
        (
            lists([97], [98, 99, UNKNOWN]),
            "UNKNOWN_TOKEN_ID",
            {"id": "9999", "index": "1", "position": "2", "max_id": "264"},
        ),
        (lists([97], b"\0"), "INVALID_OPTION", {"field": "packed_ids", "value": "1", "index": "1"}),
        (lists([97] * 600, [97] * 401), "TOO_MANY_IDS", {"size": "1001", "limit": "1000", "index": "1"}),
        (lists(*[[97]] * 5), "BATCH_TOO_LARGE", {"size": "5", "limit": "4"}),
    ],
)
def test_a_bad_list_fails_the_batch_and_is_named(limited, sequences, reason, metadata):
    failure = refused(limited.stub.BatchDecode, pb.BatchDecodeRequest(sequences=sequences))
    assert (failure.reason, failure.metadata) == (reason, metadata)
