"""StreamDecode on the wire: its messages, its sequences, its ends."""

import random

import grpc
import pytest

from tests.integration.wire import Stream, Wire, failure_of, little_endian, one_sequence, refused
from tests.tokenizers_for_tests import byte_fallback_bpe, word_level_with_rewriting_decoder
from tokend.v1 import error_reason_pb2 as reasons
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2 as types

BOS, END, UNKNOWN = 262, 263, 9999
SMILE = "🙂".encode()


@pytest.fixture
def stream(wire: Wire):
    stream = wire.stream("StreamDecode")
    yield stream
    stream.cancel()


def message(*inputs: types.SequenceInput) -> pb.StreamDecodeRequest:
    return pb.StreamDecodeRequest(sequences=inputs)


def only(answer: pb.StreamDecodeResponse) -> types.SequenceOutput:
    [output] = answer.sequences
    return output


def joined(answers: list[pb.StreamDecodeResponse], sequence_id: int = 0) -> str:
    outputs = [output for answer in answers for output in answer.sequences]
    return "".join(output.text for output in outputs if output.sequence_id == sequence_id)


def test_a_one_conversation_client_names_nothing(stream: Stream):
    answer = stream.ask(pb.StreamDecodeRequest(sequences=[{"ids": [104, 105]}]))
    assert only(answer) == types.SequenceOutput(text="hi", tokens=2, total_tokens=2)


def test_a_character_comes_whole_and_the_answers_say_what_is_held(stream: Stream):
    outputs = [only(stream.ask(one_sequence([byte]))) for byte in SMILE]
    assert [output.text for output in outputs] == ["", "", "", "🙂"]
    assert [output.pending_bytes for output in outputs] == [1, 2, 3, 0]


def test_packed_ids_are_taken_too(stream: Stream):
    assert only(stream.ask(one_sequence(packed_ids=little_endian(SMILE)))).text == "🙂"


def test_half_close_flushes_open_sequences_in_their_order_of_opening(stream: Stream):
    stream.ask(message(*(types.SequenceInput(sequence_id=n, ids=SMILE[:2]) for n in (9, 3))))
    stream.ask(message(types.SequenceInput(sequence_id=4, ids=[104], end=True)))
    [last] = stream.rest()
    ended = {"ended": True, "end_reason": types.END_REASON_END, "total_tokens": 2}
    assert list(last.sequences) == [
        types.SequenceOutput(sequence_id=n, text="\ufffd", **ended) for n in (9, 3)
    ]
    assert stream.call.code() is grpc.StatusCode.OK


def test_half_close_says_nothing_where_nothing_is_open(stream: Stream):
    stream.ask(one_sequence([104], end=True))
    assert stream.rest() == []


def test_a_stream_without_messages_ends_well(stream: Stream):
    assert stream.rest() == []


def test_the_fingerprint_stands_on_the_first_answer_only(stream: Stream, wire: Wire):
    served = wire.stub.GetTokenizer(pb.GetTokenizerRequest()).fingerprint
    assert [stream.ask(one_sequence([104])).fingerprint for _ in range(3)] == [served, "", ""]


def test_a_message_without_sequences_gets_an_empty_answer(stream: Stream):
    stream.ask(one_sequence([104]))
    assert stream.ask(message()) == pb.StreamDecodeResponse()


def test_inputs_are_answered_in_order_also_where_one_sequence_stands_twice(stream: Stream):
    answer = stream.ask(
        message(
            types.SequenceInput(sequence_id=1, ids=SMILE[:2]),
            types.SequenceInput(sequence_id=2, ids=[104]),
            types.SequenceInput(sequence_id=1, ids=SMILE[2:], end=True),
            types.SequenceInput(sequence_id=1, ids=[105]),
        )
    )
    assert [(each.sequence_id, each.text, each.total_tokens) for each in answer.sequences] == [
        (1, "", 2),
        (2, "h", 1),
        (1, "🙂", 4),
        (1, "i", 1),
    ]


def test_end_flushes_and_frees_the_id(stream: Stream):
    ended = only(stream.ask(one_sequence(SMILE[:3], end=True)))
    assert (ended.text, ended.ended, ended.end_reason) == ("\ufffd", True, types.END_REASON_END)
    again = only(stream.ask(one_sequence([104], options=types.DecodeOptions())))
    assert (again.text, again.total_tokens, again.ended) == ("h", 1, False)


def test_options_hold_for_the_whole_sequence_and_for_no_other(stream: Stream):
    keep = types.DecodeOptions(skip_special_tokens=False)
    stream.ask(message(types.SequenceInput(sequence_id=1, options=keep), types.SequenceInput(sequence_id=2)))
    answer = stream.ask(message(*(types.SequenceInput(sequence_id=n, ids=[END]) for n in (1, 2))))
    assert [output.text for output in answer.sequences] == ["<|end|>", ""]


def test_the_prompt_sets_the_state_and_its_text_is_never_sent(stream: Stream):
    output = only(stream.ask(one_sequence(SMILE[2:], prompt_ids=[104, *SMILE[:2]])))
    assert (output.text, output.tokens, output.total_tokens) == ("🙂", 2, 2)


@pytest.mark.parametrize(
    ("policy", "text"), [(types.UNKNOWN_IDS_SKIP, "hi"), (types.UNKNOWN_IDS_REPLACE, "h\ufffdi")]
)
def test_unknown_ids_are_counted_those_of_the_prompt_included(stream: Stream, policy, text):
    options = types.DecodeOptions(unknown_ids=policy)
    first = only(stream.ask(one_sequence([104, UNKNOWN, 105], prompt_ids=[UNKNOWN] * 2, options=options)))
    assert (first.text, first.tokens, first.unknown_id_count) == (text, 3, 3)
    assert only(stream.ask(one_sequence([UNKNOWN]))).unknown_id_count == 1


def test_an_unknown_id_ends_its_own_sequence_after_the_text_before_it(stream: Stream):
    stream.ask(message(types.SequenceInput(sequence_id=2, ids=[97])))
    bad, good = stream.ask(
        message(
            types.SequenceInput(sequence_id=1, ids=[104, UNKNOWN, 105]),
            types.SequenceInput(sequence_id=2, ids=[98]),
        )
    ).sequences
    assert (bad.text, bad.tokens, bad.ended, bad.end_reason) == ("h", 1, True, types.END_REASON_ERROR)
    assert (bad.error.code, bad.error.reason) == (3, reasons.ERROR_REASON_UNKNOWN_TOKEN_ID)
    assert dict(bad.error.metadata) == {"id": "9999", "index": "1", "max_id": "264"}
    assert (good.text, good.total_tokens) == ("b", 2)
    assert [len(answer.sequences) for answer in stream.rest()] == [1]


def test_an_ended_sequence_is_answered_without_text_until_the_client_says_end(stream: Stream):
    stream.ask(one_sequence([UNKNOWN]))
    for request in (one_sequence([104]), one_sequence([104], options=types.DecodeOptions(), end=True)):
        output = only(stream.ask(request))
        assert (output.ended, output.end_reason) == (True, types.END_REASON_ERROR)
        assert (output.text, output.tokens) == ("", 0)
    assert only(stream.ask(one_sequence([104]))).text == "h"


@pytest.mark.parametrize(
    ("late", "field"),
    [
        ({"options": types.DecodeOptions()}, "options"),
        ({"prompt_ids": [104]}, "prompt_ids"),
        ({"stop": ["x"]}, "stop"),
    ],
)
def test_what_belongs_on_the_first_message_ends_the_sequence_later(stream: Stream, late, field):
    stream.ask(one_sequence(SMILE[:2]))
    output = only(stream.ask(one_sequence([104], **late)))
    assert (output.text, output.tokens, output.end_reason) == ("\ufffd", 0, types.END_REASON_ERROR)
    assert (output.error.reason, output.error.metadata["field"]) == (
        reasons.ERROR_REASON_INVALID_OPTION,
        field,
    )


@pytest.mark.parametrize(
    "first",
    [
        {"ids": [104], "packed_ids": little_endian([104])},
        {"packed_ids": b"\0"},
        {"options": types.DecodeOptions(include_bytes=True)},
        {"options": types.DecodeOptions(unknown_ids=42)},
        {"options": types.DecodeOptions(byte_runs=42)},
        {"stop": [""]},
        {"stop": ["a", "b", "c"]},
        {"stop": ["123456789"]},
    ],
)
def test_a_value_that_cannot_be_served_ends_the_sequence_alone(limited: Wire, first):
    stream = limited.stream("StreamDecode")
    output = only(stream.ask(one_sequence(**first)))
    assert output.error.reason == reasons.ERROR_REASON_INVALID_OPTION
    assert only(stream.ask(one_sequence([104], sequence_id=1, end=True))).text == "h"
    stream.rest()


def test_another_fingerprint_ends_the_sequence_alone(stream: Stream):
    options = types.DecodeOptions(expected_fingerprint="0" * 64)
    output = only(stream.ask(one_sequence([104], options=options)))
    assert output.error.reason == reasons.ERROR_REASON_TOKENIZER_MISMATCH
    assert only(stream.ask(one_sequence([104], sequence_id=1))).text == "h"


def test_a_stop_string_is_found_across_messages_and_no_part_of_it_is_sent(stream: Stream):
    outputs = [only(stream.ask(one_sequence(b"a ST", stop=["STOP", "never"])))]
    outputs += [only(stream.ask(one_sequence(ids))) for ids in (b"O", b"P, and more")]
    assert [output.text for output in outputs] == ["a ", "", ""]
    assert [output.pending_bytes for output in outputs] == [2, 3, 0]
    assert [output.tokens for output in outputs] == [4, 1, 1]
    assert (outputs[-1].stop, outputs[-1].end_reason) == ("STOP", types.END_REASON_STOP)
    assert only(stream.ask(one_sequence(b"x"))).stop == "STOP"


def test_what_only_began_like_a_stop_string_is_sent(stream: Stream):
    stream.ask(one_sequence(b"ST", stop=["STOP"]))
    assert only(stream.ask(one_sequence(b"A"))).text == "STA"
    stream.ask(one_sequence(b"S"))
    assert joined(stream.rest()) == "S"


def test_of_stop_strings_that_end_together_the_longest_is_named(stream: Stream):
    output = only(stream.ask(one_sequence(b"xaby", stop=["b", "ab"])))
    assert (output.text, output.stop, output.tokens) == ("x", "ab", 3)


def test_byte_runs_are_sent_promptly_or_held_as_asked(wire_to, server_for):
    stream = wire_to(server_for(byte_fallback_bpe())).stream("StreamDecode")
    run = [3 + byte for byte in "é".encode()]
    held = types.DecodeOptions(byte_runs=types.BYTE_RUNS_HOLD)
    answer = stream.ask(
        message(
            types.SequenceInput(sequence_id=1, ids=run),
            types.SequenceInput(sequence_id=2, ids=run, options=held),
        )
    )
    assert [(each.text, each.pending_bytes) for each in answer.sequences] == [("é", 0), ("", 2)]
    # A stray byte makes the run invalid: sent text stays, held text becomes what Decode gives.
    answers = [
        answer,
        stream.ask(message(*(types.SequenceInput(sequence_id=n, ids=[3 + 0xFF]) for n in (1, 2)))),
    ]
    answers += stream.rest()
    assert joined(answers, 1) == "é\ufffd"
    assert joined(answers, 2) == "\ufffd\ufffd\ufffd"


def test_a_decoder_that_cannot_be_streamed_is_held_to_the_end(wire_to, server_for):
    wire = wire_to(server_for(word_level_with_rewriting_decoder()))
    streaming = wire.stub.GetTokenizer(pb.GetTokenizerRequest()).streaming
    assert streaming.mode == "held"
    assert streaming.reason
    stream = wire.stream("StreamDecode")
    first = only(stream.ask(one_sequence([1, 2])))
    assert (first.text, first.pending_bytes > 0) == ("", True)
    assert joined(stream.rest()) == wire.stub.Decode(pb.DecodeRequest(ids=[1, 2])).text == "X"


def test_any_cut_into_messages_gives_what_decode_gives(wire: Wire):
    chance = random.Random(1)
    ids = [chance.choice([*SMILE, BOS, END, 257, 258, 259, 104, 0xC3]) for _ in range(400)]
    whole = wire.stub.Decode(pb.DecodeRequest(ids=ids)).text
    for longest in (1, 3, 50):
        stream, at = wire.stream("StreamDecode"), 0
        answers = []
        while at < len(ids):
            size = chance.randint(0, longest)
            answers.append(stream.ask(one_sequence(ids[at : at + size])))
            at += size
        assert joined([*answers, *stream.rest()]) == whole


def test_the_sequence_one_too_many_is_refused_alone_and_its_place_is_free_after_an_end(limited: Wire):
    stream = limited.stream("StreamDecode")
    answer = stream.ask(message(*(types.SequenceInput(sequence_id=n, ids=[104]) for n in range(3))))
    assert [output.ended for output in answer.sequences] == [False, False, True]
    error = answer.sequences[2].error
    assert error.reason == reasons.ERROR_REASON_TOO_MANY_SEQUENCES
    assert dict(error.metadata) == {"size": "3", "limit": "2"}
    stream.ask(message(*(types.SequenceInput(sequence_id=n, end=True) for n in (0, 2))))
    assert only(stream.ask(one_sequence([104], sequence_id=2))).text == "h"
    stream.rest()


def test_too_many_ids_in_a_message_end_the_sequence_that_passes_the_limit(limited: Wire):
    stream = limited.stream("StreamDecode")
    answer = stream.ask(
        message(
            types.SequenceInput(sequence_id=1, ids=[104] * 600),
            types.SequenceInput(sequence_id=2, ids=[104] * 401),
        )
    )
    assert [output.tokens for output in answer.sequences] == [600, 0]
    assert answer.sequences[1].error.reason == reasons.ERROR_REASON_TOO_MANY_IDS
    assert answer.sequences[1].error.metadata["limit"] == "1000"
    stream.rest()


def test_a_message_that_is_none_ends_the_stream(wire: Wire):
    stream = wire.raw_stream("StreamDecode")
    stream.ask(one_sequence([104]).SerializeToString())
    stream.send(b"\xff\xff\xff")
    with pytest.raises(grpc.RpcError):
        next(stream.call)
    failure = failure_of(stream.call)
    assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_MESSAGE")
    stream.cancel()


def test_a_stream_over_the_limit_is_turned_away_with_a_delay(limited: Wire):
    streams = [limited.stream("StreamDecode") for _ in range(4)]
    for stream in streams:
        stream.ask(one_sequence([104]))
    failure = refused(lambda timeout: list(limited.stub.StreamDecode(iter(()), timeout=timeout)))
    assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "SERVER_OVERLOADED")
    assert failure.trailing["grpc-retry-pushback-ms"] == str(failure.retry_after_ms)
    assert failure.retry_after_ms > 0
    for stream in streams:
        stream.rest()
    assert list(limited.stub.StreamDecode(iter(()))) == []
