"""Streams: when text is sent, what is held, cost and size; every decoder kind is in test_decoders."""

import json
import sys
import threading
import time
import tracemalloc
from array import array
from pathlib import Path

import pytest
from hypothesis import given

from tests.engine.streams_for_tests import (
    BF_DECODER,
    BL_DECODER,
    BYTES,
    by_push,
    byte_ids,
    decoder_for,
    one_each,
)
from tests.tokenizers_for_tests import (
    BF,
    BFM,
    BL,
    BLO,
    WP,
    ctc,
    load,
    metaspace,
    suffix_bpe,
    word_level,
    word_level_with_rewriting_decoder,
)
from tokend_server.engine.decoding import build_decoder
from tokend_server.engine.decoding.byte_tokens import ByteDecoder, ByteSequence
from tokend_server.engine.decoding.held import MAX_HELD_IDS
from tokend_server.engine.vocabulary import Vocabulary
from tokend_server.errors import LimitExceeded, Reason, TokenizerFileError


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class TestPromptness:
    def test_a_character_is_sent_with_its_last_byte(self):
        assert by_push(BL_DECODER, one_each("a🙂b".encode())) == ["a", "", "", "", "🙂", "b", ""]

    def test_two_equal_characters_of_three_bytes_one_after_the_other(self):
        ids = [287, *byte_ids("中中".encode()), 287]
        assert by_push(BF_DECODER, one_each(ids)) == ["hi", "", "", "中", "", "", "中", " hi", ""]

    def test_a_real_replacement_character_is_text_like_any_other(self):
        pushed = by_push(BL_DECODER, one_each("x\ufffdy".encode()))
        assert pushed == ["x", "", "", "\ufffd", "y", ""]

    def test_many_real_replacement_characters(self):
        pushed = by_push(BL_DECODER, one_each("\ufffd".encode() * 40))
        assert pushed[:-1] == ["", "", "\ufffd"] * 40

    def test_a_character_that_is_broken_off_by_text_is_one_u_fffd_at_once(self):
        assert by_push(BL_DECODER, one_each(b"\xe4\xbdabc")) == ["", "", "\ufffda", "b", "c", ""]
        assert by_push(BL_DECODER, [[195], [258], [169]]) == ["", "\ufffd the", "\ufffd", ""]

    def test_a_character_that_is_open_at_the_end_is_one_u_fffd_then(self):
        assert by_push(BL_DECODER, one_each(b"ok\xf0\x9f")) == ["o", "k", "", "", "\ufffd"]
        assert by_push(BL_DECODER, [[111], [228, 189], [263]])[-1] == "\ufffd"

    @pytest.mark.parametrize("second", range(0xA0, 0xC0))
    def test_half_a_surrogate_is_two_u_fffd_and_nothing_is_held(self, second):
        sequence = BL_DECODER.open(skip_special_tokens=True)
        assert [sequence.push([0xED]), sequence.push([second])] == ["", "\ufffd\ufffd"]
        assert sequence.pending_bytes == 0
        assert BL_DECODER.decode([0xED, second], skip_special_tokens=True) == "\ufffd\ufffd"

    def test_ill_formed_bytes_of_every_class(self):
        ids = [*b"a\xed\xa0\x80b\xc0\x80c\xf4\x90\x80\x80d"]
        text = "a\ufffd\ufffd\ufffdb\ufffd\ufffdc\ufffd\ufffd\ufffd\ufffdd"
        assert BL_DECODER.decode(ids, skip_special_tokens=True) == text
        assert "".join(by_push(BL_DECODER, one_each(ids))) == text

    @given(BYTES)
    def test_what_is_pending_is_always_the_beginning_of_a_character(self, ids):
        sequence = BL_DECODER.open(skip_special_tokens=True)
        for token_id in ids:
            sequence.push([token_id])
            pending = sequence._pending
            assert sequence.pending_bytes == len(pending) <= 3
            tails = (
                [],
                [0x80],
                [0xA0],
                [0x9F],
                [0x80, 0x80],
                [0xA0, 0x80],
                [0x90, 0x80, 0x80],
                [0x80, 0x80, 0x80],
            )
            assert any(is_text(pending + bytes(tail)) for tail in tails)

    def test_skipped_tokens_between_the_bytes_of_a_character_do_not_break_it(self):
        assert by_push(BL_DECODER, [[195], [263], [169]]) == ["", "", "é", ""]
        assert by_push(BF_DECODER, [byte_ids(b"\xe4"), [2], byte_ids(b"\xbd\xa0")]) == ["", "", "你", ""]

    def test_shown_ones_do(self):
        assert by_push(BL_DECODER, [[195], [263], [169]], skip=False) == ["", "\ufffd<|end|>", "\ufffd", ""]

    def test_word_pieces_are_sent_one_by_one(self):
        decoder = decoder_for(WP())
        assert by_push(decoder, one_each([5, 7, 6, 8, 9])) == ["hello", ",", " world", ".", "!", ""]
        assert by_push(decoder, one_each([2, 11, 5])) == ["", "##e", " hello", ""]

    def test_spaces_between_words_stay_and_the_first_one_goes(self):
        for decoder in (BF_DECODER, decoder_for(BFM())):
            assert by_push(decoder, one_each([287, 287])) == ["hi", " hi", ""]
            assert by_push(decoder, one_each([1, 287, 2, 287])) == ["", "hi", "", " hi", ""]
            assert by_push(decoder, [[259]]) == ["", ""]

    def test_the_end_of_a_word_waits_for_the_next_token(self):
        decoder = decoder_for(suffix_bpe())
        low = decoder._forms.kept.index(("low", " ", ""))
        sequence = decoder.open(skip_special_tokens=True)
        assert [sequence.push([low]), sequence.pending_bytes] == ["low", 1]
        assert [sequence.push([low]), sequence.finish()] == [" low", ""]

    def test_an_added_token_goes_through_the_byte_map_as_in_the_library(self):
        decoder = decoder_for(BLO())
        assert decoder.decode([263], skip_special_tokens=True) == "il\ufffdveyou"
        assert decoder.raw_bytes([263], skip_special_tokens=True) == b"il\xd6veyou"

    def test_nothing_at_all(self):
        assert by_push(BL_DECODER, [[], [262, 263], []]) == ["", "", "", ""]
        for decoder in (BL_DECODER, BF_DECODER):
            assert decoder.decode([], skip_special_tokens=True) == ""
            assert decoder.raw_bytes([], skip_special_tokens=True) == b""

    def test_controls_pass(self):
        assert BL_DECODER.decode([*b"a\0b\r\nc"], skip_special_tokens=True) == "a\0b\r\nc"

    def test_only_special_tokens_are_skipped(self):
        ids = [262, 104, 264, 105, 263]
        assert BL_DECODER.decode(ids, skip_special_tokens=True) == "h<tool>i"
        assert BL_DECODER.decode(ids, skip_special_tokens=False) == "<|bos|>h<tool>i<|end|>"

    def test_ids_may_come_as_an_array(self):
        assert BL_DECODER.decode(array("I", [104, 105]), skip_special_tokens=True) == "hi"
        assert by_push(BF_DECODER, [array("I", [287, 287]), array("I")]) == ["hi hi", "", ""]

    def test_sequences_share_nothing(self):
        one, two = (BL_DECODER.open(skip_special_tokens=True) for _ in range(2))
        one.push([240, 159])
        assert two.push([153, 130, 104]) == "\ufffd\ufffdh"
        assert one.push([153, 130]) == "🙂"

    def test_finish_twice_sends_the_end_once(self):
        for decoder, ids, hold in ((BL_DECODER, [240], False), (BF_DECODER, byte_ids(b"\xf0"), True)):
            sequence = decoder.open(skip_special_tokens=True, hold_byte_runs=hold)
            sequence.push(ids)
            assert [sequence.finish(), sequence.finish(), sequence.pending_bytes] == ["\ufffd", "", 0]


class TestHeld:
    FILE = word_level_with_rewriting_decoder()

    def test_all_text_comes_at_the_end(self):
        decoder = decoder_for(self.FILE)
        assert by_push(decoder, one_each([1, 2, 3])) == ["", "", "", "Xc"]

    def test_pending_counts_the_held_strings(self):
        sequence = decoder_for(self.FILE).open(skip_special_tokens=True)
        sequence.push([1, 2])
        assert sequence.pending_bytes == 2
        sequence.finish()
        assert sequence.pending_bytes == 0

    def test_more_ids_than_may_be_held_are_refused(self):
        sequence = decoder_for(self.FILE).open(skip_special_tokens=True)
        sequence.push(array("I", [1]) * MAX_HELD_IDS)
        with pytest.raises(LimitExceeded) as refused:
            sequence.push([1])
        assert refused.value.reason is Reason.TOO_MANY_IDS


class TestSelfCheck:
    def test_a_wrong_table_is_found(self):
        file = BL()
        tokenizer, spec = load(file), json.loads(file)
        vocabulary = Vocabulary(tokenizer, spec)
        from tokend_server.engine.decoding.self_check import find_difference

        decoder = build_decoder(tokenizer, spec, vocabulary, check=lambda *_: "")
        assert isinstance(decoder, ByteDecoder)
        assert find_difference(decoder, tokenizer, vocabulary) == ""
        decoder._raw.kept[200] = b"?"
        assert "200" in find_difference(decoder, tokenizer, vocabulary)
        decoder._raw.kept[200] = bytes((200,))
        decoder._mixed.skipped[200] = "?"
        assert "streamed" in find_difference(decoder, tokenizer, vocabulary)

    def test_a_decoder_that_fails_it_is_served_held_and_says_so(self):
        # The file says Metaspace, the library in hand has WordPiece: every stream would be wrong.
        tokenizer = load(WP())
        spec = json.loads(WP()) | {"decoder": {"type": "Fuse"}}
        decoder = build_decoder(tokenizer, spec, Vocabulary(tokenizer, spec))
        assert decoder.mode == "held"
        assert "self-check failed" in decoder.reason
        assert decoder.decode([5, 11], skip_special_tokens=True) == "helloe"
        assert by_push(decoder, one_each([5, 11])) == ["", "", "helloe"]

    @pytest.mark.parametrize("stages", [[], ["Fuse", "Metaspace"]])
    def test_a_panic_of_the_library_in_it_refuses_the_file(self, stages):
        # A decoder that panics on empty text, behind a file that promises another one (streamed, or held).
        strip = {"type": "Strip", "content": " ", "start": 0, "stop": 1}
        words = ("[UNK]", "")
        tokenizer = load(word_level(words, decoder=strip))
        spec = json.loads(word_level(words, decoder=sequence_of(stages)))
        with pytest.raises(TokenizerFileError, match="panics"):
            build_decoder(tokenizer, spec, Vocabulary(tokenizer, spec))

    def test_it_leaves_no_threads(self):
        before = threading.active_count(), n_threads()
        decoder_for(BL())
        assert (threading.active_count(), n_threads()) == before


def sequence_of(stages):
    parts = {"Fuse": {"type": "Fuse"}, "Metaspace": metaspace()}
    return {"type": "Sequence", "decoders": [parts[stage] for stage in stages]}


def n_threads() -> int:
    """Threads of this process, those of native libraries too."""
    if not sys.platform.startswith("linux"):
        return 0
    return len(list(Path("/proc/self/task").iterdir()))


CHEAP = {
    "0xFF": (BL_DECODER, [255], False),
    "skipped": (BL_DECODER, [262], False),
    "open characters": (BL_DECODER, [240, 159], False),
    "valid run": (BF_DECODER, byte_ids(b"a"), True),
    "invalid run": (BF_DECODER, byte_ids(b"\xff"), True),
    "prompt run": (BF_DECODER, byte_ids(b"\xff"), False),
    "skipped at the start": (BF_DECODER, [2], True),
    "words": (decoder_for(word_level()), [1], False),
}


@pytest.mark.parametrize("kind", CHEAP)
def test_cost_a_token_is_flat(kind):
    decoder, ids, hold = CHEAP[kind]

    def seconds_each(n_pushes):
        sequence = decoder.open(skip_special_tokens=True, hold_byte_runs=hold)
        start = time.perf_counter()
        for _ in range(n_pushes):
            sequence.push(ids)
        sequence.finish()
        return (time.perf_counter() - start) / n_pushes

    short = min(seconds_each(1_000) for _ in range(5))
    long = min(seconds_each(50_000) for _ in range(2))
    assert long < 8 * short  # growth with length would be 50 times


@pytest.mark.parametrize("file", [BL(), BF(), WP(), suffix_bpe(), ctc(), word_level_with_rewriting_decoder()])
def test_an_idle_sequence_is_small(file):
    decoder = decoder_for(file)
    for hold in (False, True):
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        sequences = [decoder.open(skip_special_tokens=True, hold_byte_runs=hold) for _ in range(100)]
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (after - before) / len(sequences) < 500
        assert not hasattr(sequences[0], "__dict__")


def test_the_plain_way_is_taken_once_the_start_is_over():
    sequence = BF_DECODER.open(skip_special_tokens=True)
    assert isinstance(sequence, ByteSequence)
    assert sequence._opening is not None
    sequence.push([287])
    assert sequence._opening is None


def test_an_id_out_of_range_leaves_other_sequences_alone():
    good, bad = (BF_DECODER.open(skip_special_tokens=True) for _ in range(2))
    with pytest.raises(IndexError):
        bad.push([2**32 - 1])
    assert good.push([287]) == "hi"
