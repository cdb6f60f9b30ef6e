"""Byte-fallback files: promptly or held, what an invalid run gives, and the cap."""

from hypothesis import given

from tests.engine.streams_for_tests import (
    BF_DECODER,
    BYTES,
    GEMMA_DECODER,
    by_push,
    byte_ids,
    decoder_for,
    one_each,
)
from tests.tokenizers_for_tests import BF, load, metaspace_words
from tokend_server.engine.decoding.byte_runs import MAX_HELD_RUN_BYTES


class TestByteRuns:
    def test_promptly_a_stray_byte_leaves_what_was_sent_and_loses_nothing_after_it(self):
        ids = [*byte_ids(b"\xc3\x99\xf0"), 287]
        assert by_push(BF_DECODER, one_each(ids)) == ["", "Ù", "", "\ufffd hi", ""]

    def test_held_the_same_run_is_one_u_fffd_a_byte_as_in_decode(self):
        ids = [*byte_ids(b"\xc3\x99\xf0"), 287]
        pushed = by_push(BF_DECODER, one_each(ids), hold=True)
        assert pushed == ["", "", "", "\ufffd\ufffd\ufffd hi", ""]
        assert "".join(pushed) == BF_DECODER.decode(ids, skip_special_tokens=True)

    def test_a_shown_special_token_ends_a_run(self):
        ids = [*byte_ids(b"\xc3\xa9\x99"), 2]
        assert "".join(by_push(BF_DECODER, one_each(ids), skip=False)) == "é\ufffd</s>"
        assert "".join(by_push(BF_DECODER, one_each(ids), skip=False, hold=True)) == "\ufffd" * 3 + "</s>"

    def test_a_valid_run_is_held_until_it_ends(self):
        sequence = BF_DECODER.open(skip_special_tokens=True, hold_byte_runs=True)
        assert sequence.push(byte_ids("你好".encode())) == ""
        assert sequence.pending_bytes == 6
        assert sequence.push([287]) == "你好 hi"
        assert sequence.pending_bytes == 0

    def test_once_a_run_is_invalid_each_byte_is_sent_at_once_and_nothing_is_held(self):
        sequence = BF_DECODER.open(skip_special_tokens=True, hold_byte_runs=True)
        assert sequence.push(byte_ids("你".encode())) == ""
        assert sequence.push(byte_ids(b"\xff")) == "\ufffd" * 4
        assert sequence.push(byte_ids(b"a")) == "\ufffd"
        assert sequence.pending_bytes == 0
        assert sequence.push([287, *byte_ids(b"a"), 287]) == " hia hi"

    def test_half_a_surrogate_makes_a_run_invalid_at_once(self):
        assert by_push(BF_DECODER, one_each(byte_ids(b"\xed\xa0")), hold=True) == ["", "\ufffd\ufffd", ""]

    def test_a_run_longer_than_the_cap_is_sent_in_pieces(self):
        sequence = BF_DECODER.open(skip_special_tokens=True, hold_byte_runs=True)
        text = "a" + "é" * MAX_HELD_RUN_BYTES
        sent = ""
        for token_id in byte_ids(text.encode()):
            sent += sequence.push([token_id])
            assert sequence.pending_bytes <= MAX_HELD_RUN_BYTES
        assert len(sent.encode()) >= MAX_HELD_RUN_BYTES
        assert sent + sequence.finish() == text

    def test_decode_of_a_longer_invalid_run_is_still_exact(self):
        file = BF()
        ids = byte_ids(b"a" * (MAX_HELD_RUN_BYTES + 10) + b"\xff")
        assert BF_DECODER.decode(ids, skip_special_tokens=True) == load(file).decode(ids)

    def test_raw_bytes_of_an_invalid_run_are_the_tokens_own(self):
        ids = byte_ids(b"\xe4\xbd\xa0\xe5")
        assert BF_DECODER.decode(ids, skip_special_tokens=True) == "\ufffd" * 4
        assert BF_DECODER.raw_bytes(ids, skip_special_tokens=True) == b"\xe4\xbd\xa0\xe5"
        assert BF_DECODER.raw_bytes([287, *ids], skip_special_tokens=True) == b"hi\xe4\xbd\xa0\xe5"

    @given(BYTES)
    def test_promptly_the_text_is_the_lossy_reading_of_the_bytes(self, values):
        ids = byte_ids(bytes(values))
        assert "".join(by_push(GEMMA_DECODER, one_each(ids))) == bytes(values).decode("utf-8", "replace")

    def test_a_replaced_unknown_id_ends_a_run(self):
        ids = [*byte_ids(b"\xe4"), BF_DECODER.replacement_id, *byte_ids(b"\xbd\xa0")]
        assert BF_DECODER.decode(ids, skip_special_tokens=True) == "\ufffd" * 4
        assert by_push(BF_DECODER, one_each(ids)) == ["", "\ufffd\ufffd", "\ufffd", "\ufffd", ""]

    def test_it_counts_as_the_first_token(self):
        decoder = decoder_for(metaspace_words())
        assert decoder.decode([decoder.replacement_id, 2], skip_special_tokens=True) == "\ufffd a"
