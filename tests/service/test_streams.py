"""StreamDecode's state machine: the fine print of design, one rule a test."""

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenizers_for_tests import (
    bpe_model,
    byte_fallback_bpe,
    byte_level_bpe,
    tokenizer_json,
    word_level_with_rewriting_decoder,
)
from tokend_server.errors import InternalFault, LimitExceeded, Reason
from tokend_server.service.decode import DecodeOptions, DecodeService, UnknownIds
from tokend_server.service.limits import Limits
from tokend_server.service.streams import DecodeStream, EndReason, SequenceStart

END_ID = 263
UNKNOWN = 5000
KEEP = DecodeOptions(skip_special_tokens=False)


def limits(**changed: int) -> Limits:
    return Limits(
        **{
            "max_text_bytes": 1 << 20,
            "max_batch_texts": 16,
            "max_batch_bytes": 1 << 20,
            "max_ids": 1000,
            "max_sequences_per_stream": 3,
            "max_streams": 2,
            "max_message_bytes": 1 << 20,
            "max_stop_strings": 3,
            "max_stop_bytes": 20,
            **changed,
        }
    )


@pytest.fixture
def stream(frozen):
    return DecodeStream(DecodeService(frozen(byte_level_bpe()), limits()))


@pytest.fixture
def byte_run_stream(frozen):
    return DecodeStream(DecodeService(frozen(byte_fallback_bpe()), limits()))


def text_of(outputs):
    return "".join(output.text for output in outputs)


def test_a_character_comes_whole_and_says_what_it_holds(stream):
    outputs = [stream.take(0, [byte]) for byte in "🙂".encode()]
    assert [output.text for output in outputs] == ["", "", "", "🙂"]
    assert [output.pending_bytes for output in outputs] == [1, 2, 3, 0]
    assert [output.total_tokens for output in outputs] == [1, 2, 3, 4]


def test_packed_and_listed_ids_are_the_same(stream):
    packed = b"".join(byte.to_bytes(4, "little") for byte in b"hello")
    assert stream.take(1, [], packed).text == stream.take(2, list(b"hello")).text == "hello"


def test_both_kinds_of_ids_end_the_sequence(stream):
    output = stream.take(1, [104], b"\x01\0\0\0")
    assert output.error.reason is Reason.INVALID_OPTION
    assert output.end_reason is EndReason.ERROR


def test_half_close_flushes_each_open_sequence_once(stream):
    stream.take(7, [0xF0, 0x9F])
    stream.take(8, [104])
    stream.take(9, [104], end=True)
    last = stream.finish()
    assert [(output.sequence_id, output.text, output.end_reason) for output in last] == [
        (7, "\ufffd", EndReason.END),
        (8, "", EndReason.END),
    ]
    assert stream.finish() == []


def test_end_flushes_and_frees_the_id(stream):
    output = stream.take(1, [0xC3], end=True)
    assert (output.text, output.end_reason, output.tokens) == ("\ufffd", EndReason.END, 1)
    assert stream.take(1, [0xA9]).text == "\ufffd"
    assert stream.n_open == 1


def test_a_bad_id_ends_its_own_sequence_and_sends_what_came_before_it(stream):
    stream.take(1, [104])
    stream.take(2, [104])
    output = stream.take(1, [105, 0xE4, UNKNOWN, 105])
    assert output.text == "i\ufffd"
    assert (output.tokens, output.total_tokens) == (2, 3)
    assert output.end_reason is EndReason.ERROR
    assert output.error.reason is Reason.UNKNOWN_TOKEN_ID
    assert output.error.metadata == {"id": str(UNKNOWN), "index": "2", "max_id": "264"}
    assert stream.take(2, [105]).text == "i"


def test_after_an_error_ids_are_answered_without_text_until_end_frees_the_id(stream):
    stream.take(1, [UNKNOWN])
    for _ in range(2):
        output = stream.take(1, [104])
        assert (output.text, output.tokens, output.end_reason) == ("", 0, EndReason.ERROR)
        assert not output.ended_now
    assert stream.take(1, [], end=True).end_reason is EndReason.ERROR
    assert stream.take(1, [104]).text == "h"


def test_an_error_in_the_message_that_says_end_frees_the_id_at_once(stream):
    assert stream.take(1, [UNKNOWN], end=True).end_reason is EndReason.ERROR
    assert stream.take(1, [104]).text == "h"


@pytest.mark.parametrize(("policy", "text"), [(UnknownIds.SKIP, "你"), (UnknownIds.REPLACE, "\ufffd" * 4)])
def test_unknown_ids_by_policy(stream, policy, text):
    start = SequenceStart(options=DecodeOptions(unknown_ids=policy))
    # A replaced id is an ordinary token, so it cuts the character around it in two; a skipped one is not there.
    output = stream.take(1, [0xE4, UNKNOWN, 0xBD, 0xA0], start=start, end=True)
    assert (output.text, output.unknown_id_count) == (text, 1)
    assert output.tokens == 4


@pytest.mark.parametrize(
    "start",
    [SequenceStart(options=DecodeOptions()), SequenceStart(prompt_ids=[104]), SequenceStart(stop=["x"])],
    ids=["options", "prompt_ids", "stop"],
)
def test_what_belongs_on_the_first_message_is_refused_later(stream, start):
    stream.take(1, [0xC3])
    output = stream.take(1, [104], start=start)
    assert output.error.reason is Reason.INVALID_OPTION
    assert output.error.metadata["field"] == start.field_in_use()
    assert output.text == "\ufffd", "what was held is flushed at every kind of end"


def test_one_sequence_twice_in_a_message_is_taken_in_order(stream):
    stream.start_message()
    assert text_of([stream.take(1, [104]), stream.take(1, [105])]) == "hi"


def test_prompt_text_is_never_sent_and_a_character_it_opened_is(stream):
    prompt = SequenceStart(prompt_ids=[*b"Secret ", 0xF0, 0x9F])
    outputs = [
        stream.take(1, [0x8C], start=prompt),
        stream.take(1, [0xB6]),
        stream.take(1, list(b"ok"), end=True),
    ]
    assert text_of(outputs) == "🌶ok"
    assert outputs[-1].total_tokens == 4, "the prompt does not count"


def test_an_unknown_prompt_id_is_named_as_such(stream):
    output = stream.take(1, [104], start=SequenceStart(prompt_ids=[104, UNKNOWN]))
    assert output.error.metadata["field"] == "prompt_ids"
    assert output.error.metadata["index"] == "1"


def test_a_stop_string_is_found_across_messages_and_no_part_of_it_is_sent(stream):
    outputs = [stream.take(1, list(b"one ST"), start=SequenceStart(stop=["STOP"]))]
    assert outputs[0].text == "one "
    assert outputs[0].pending_bytes == 2
    outputs.append(stream.take(1, list(b"OP two")))
    assert text_of(outputs) == "one "
    assert (outputs[1].end_reason, outputs[1].stop, outputs[1].tokens) == (EndReason.STOP, "STOP", 2)
    assert outputs[1].total_tokens == 8
    after = stream.take(1, [104])
    assert (after.text, after.tokens, after.end_reason, after.stop) == ("", 0, EndReason.STOP, "STOP")


def test_held_text_that_is_no_stop_string_after_all_is_sent(stream):
    stream.take(1, list(b"ST"), start=SequenceStart(stop=["STOP"]))
    assert stream.take(1, list(b"ART")).text == "START"
    stream.take(1, list(b"STO"))
    assert stream.take(1, [], end=True).text == "STO"


def test_unknown_ids_beside_a_stop_string_are_counted_where_they_stand(stream):
    start = SequenceStart(stop=["b"], options=DecodeOptions(unknown_ids=UnknownIds.SKIP))
    output = stream.take(1, [97, UNKNOWN, 98, UNKNOWN], start=start)
    assert (output.text, output.tokens, output.unknown_id_count) == ("a", 3, 1)
    failing = stream.take(2, [97, 97, UNKNOWN], start=SequenceStart(stop=["b"]))
    assert failing.error.metadata["index"] == "2"
    assert (failing.text, failing.tokens) == ("aa", 2)


@pytest.mark.parametrize("stop", [[""], ["a"] * 4, ["ab" * 11]], ids=["empty", "too many", "too long"])
def test_stop_strings_out_of_range(stream, stop):
    output = stream.take(1, [97], start=SequenceStart(stop=stop))
    assert output.error.reason is Reason.INVALID_OPTION
    assert "abab" not in output.error.message


def test_a_pinned_fingerprint_ends_only_its_sequence(stream):
    start = SequenceStart(options=DecodeOptions(expected_fingerprint="0" * 64))
    assert stream.take(1, [97], start=start).error.reason is Reason.TOKENIZER_MISMATCH
    assert stream.take(2, [97]).text == "a"


def test_too_many_sequences_refuse_the_new_one_and_remember_it(stream):
    for sequence_id in range(3):
        stream.take(sequence_id, [97])
    assert stream.take(3, [97]).error.reason is Reason.TOO_MANY_SEQUENCES
    stream.take(0, [], end=True)
    assert stream.take(3, [98]).text == "", "or it would open in the middle of its text"
    assert stream.take(4, [97]).text == "a"


def test_more_refused_sequences_than_can_be_remembered_end_the_stream(stream):
    for sequence_id in range(6):
        stream.take(sequence_id, [97])
    with pytest.raises(LimitExceeded) as refused:
        stream.take(6, [97])
    assert refused.value.reason is Reason.TOO_MANY_SEQUENCES


def test_nothing_of_ended_sequences_stays(stream):
    for sequence_id in range(1000):
        stream.take(sequence_id, [97, UNKNOWN])
        stream.take(sequence_id, [], end=True)
    assert not stream._sequences
    assert stream.n_open == 0


def test_too_many_ids_in_a_message_end_the_sequence_that_passes_the_limit(stream):
    stream.start_message()
    assert stream.take(1, [97] * 600).tokens == 600
    assert stream.take(2, [97] * 600).error.reason is Reason.TOO_MANY_IDS
    stream.start_message()
    assert stream.take(1, [97] * 600).tokens == 600


def test_a_draining_stream_opens_nothing_new_and_goes_on(stream):
    stream.take(1, [97])
    stream.drain()
    assert stream.take(2, [97]).error.reason is Reason.SHUTTING_DOWN
    assert stream.take(1, [98]).text == "b"


def test_special_tokens_between_the_bytes_of_a_character(stream):
    kept = [
        stream.take(1, [each], start=SequenceStart(options=KEEP) if each == 195 else None)
        for each in (195, END_ID, 169)
    ]
    assert text_of([*kept, *stream.finish()]) == "\ufffd<|end|>\ufffd"
    skipped = [stream.take(2, [each]) for each in (195, END_ID, 169)]
    assert text_of(skipped) == "é"


def test_an_invalid_byte_run_prompt_and_held(byte_run_stream):
    ids = [198, 156, 243, 287]  # the bytes C3 99 F0, then a word
    prompt = [byte_run_stream.take(1, [each]) for each in ids]
    assert text_of(prompt) == "Ù\ufffd hi"
    hold = SequenceStart(options=DecodeOptions(hold_byte_runs=True))
    held = [byte_run_stream.take(2, [each], start=hold if not n else None) for n, each in enumerate(ids)]
    assert text_of(held) == "\ufffd\ufffd\ufffd hi", "as Decode gives it"


def test_a_decoder_that_rewrites_across_tokens_is_held_to_the_end(frozen):
    stream = DecodeStream(DecodeService(frozen(word_level_with_rewriting_decoder()), limits()))
    outputs = [stream.take(0, [each]) for each in (1, 2, 3)]
    assert text_of(outputs) == ""
    assert outputs[-1].pending_bytes > 0
    assert text_of(stream.finish()) == "Xc"


class FailsAtTheEnd:
    """A decoder whose last step fails, as the library may on ids that were held for it."""

    pending_bytes = 0

    def push(self, ids):
        return "x" * len(ids)

    def finish(self):
        raise InternalFault


@pytest.mark.parametrize("half_close", [True, False])
def test_a_decoder_that_fails_at_the_end_ends_its_own_sequence_alone(stream, half_close):
    stream.take(1, [104])
    stream._sequences[1].decoder = FailsAtTheEnd()
    stream.take(2, [0xC3])
    failed = stream.finish()[0] if half_close else stream.take(1, [105], end=True)
    assert failed.end_reason is EndReason.ERROR
    assert failed.error.reason is Reason.INTERNAL
    if not half_close:
        assert failed.text == "x"
        assert text_of(stream.finish()) == "\ufffd"


@given(
    ids=st.lists(st.integers(0, 264), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=8),
    skip=st.booleans(),
    family=st.sampled_from([byte_level_bpe, byte_fallback_bpe, word_level_with_rewriting_decoder]),
)
def test_any_chunking_gives_what_decode_gives(frozen, ids, cuts, skip, family):
    tokenizer = frozen(family())
    ids = [each for each in ids if tokenizer.vocabulary.is_known(each)]
    service = DecodeService(tokenizer, limits())
    options = DecodeOptions(skip_special_tokens=skip, hold_byte_runs=True)
    stream = DecodeStream(service)
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    outputs = [
        stream.take(0, ids[a:b], start=SequenceStart(options=options) if not n else None)
        for n, (a, b) in enumerate(pairwise(bounds))
    ]
    outputs += stream.finish()
    assert text_of(outputs) == service.decode(ids, b"", options).text


def test_ten_thousand_live_sequences_take_less_than_2_kb_each(frozen):
    n_sequences = 10_000
    service = DecodeService(
        frozen(byte_level_bpe()), limits(max_ids=n_sequences, max_sequences_per_stream=n_sequences)
    )
    stream = DecodeStream(service)
    tracemalloc.start()
    try:
        # An open character, and for half of them a stop string, are all that an idle sequence keeps.
        for n in range(n_sequences):
            stream.take(n, [0xF0, 0x9F], start=SequenceStart(stop=["</s>", "\n\n"]) if n % 2 else None)
            stream.start_message()
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert stream.n_open == n_sequences
    assert held_bytes / n_sequences < 2_000
    assert [stream.take(n, [0x99, 0x82]).text for n in (0, 1, n_sequences - 1)] == ["🙂"] * 3


class TestStep:
    """The quick way of one id: what it answers is what `take` answers, and what is not its own it leaves alone."""

    @given(st.lists(st.integers(0, 262), max_size=30))
    def test_it_is_take(self, frozen, ids):
        service = DecodeService(frozen(byte_level_bpe()), limits())
        one, other = DecodeStream(service), DecodeStream(service)
        for stream in (one, other):
            stream.take(7, [])
        for token_id in ids:
            taken = one.take(7, [token_id])
            assert other.step(7, token_id) == (taken.text, taken.total_tokens, taken.pending_bytes)
        assert [each.text for each in one.finish()] == [each.text for each in other.finish()]

    def test_what_is_out_of_the_ordinary_is_left_to_take(self, frozen):
        stream = DecodeStream(DecodeService(frozen(byte_level_bpe()), limits(max_ids=2)))
        assert stream.step(1, 104) is None, "not open"
        stream.take(1, [104])
        stream.take(2, [104], start=SequenceStart(stop=["x"]))
        stream.start_message()
        assert stream.step(2, 104) is None, "watches for a stop string"
        assert stream.step(1, UNKNOWN) is None
        assert stream.step(1, 104) == ("h", 2, 0)
        assert stream.step(1, 104) == ("h", 3, 0)
        assert stream.step(1, 104) is None, "too many ids in one message"
        assert stream.take(1, [104]).error.reason is Reason.TOO_MANY_IDS
        stream.start_message()
        assert stream.step(1, 104) is None, "ended"
        assert stream.take(1, [], end=True).total_tokens == 3

    def test_a_decoder_that_holds_everything_may_refuse_so_take_asks_it(self, frozen):
        stream = DecodeStream(DecodeService(frozen(word_level_with_rewriting_decoder()), limits()))
        stream.take(1, [1])
        assert stream.step(1, 1) is None
        assert stream.take(1, [1]).total_tokens == 2

    def test_a_hole_in_the_vocabulary_is_unknown(self, frozen):
        tokenizer = frozen(tokenizer_json(bpe_model({"a": 0, "b": 2}, []), decoder={"type": "Fuse"}))
        stream = DecodeStream(DecodeService(tokenizer, limits()))
        stream.take(1, [0])
        assert stream.step(1, 2) == ("b", 2, 0)
        assert stream.step(1, 1) is None
