"""Streams that continue a prompt: its text is never sent, what it left open is."""

from hypothesis import given
from hypothesis import strategies as st

from tests.engine.streams_for_tests import (
    BF_DECODER,
    BL_DECODER,
    GEMMA_DECODER,
    by_push,
    byte_ids,
    decoder_for,
    one_each,
)
from tests.tokenizers_for_tests import WP, ctc, suffix_bpe, word_level_with_rewriting_decoder


class TestPrompts:
    """Of a prompt nothing is sent; what it left open is completed, or was its own."""

    SECRET = (*b"Secret prompt ", 240, 159)

    def test_a_character_that_the_prompt_began_is_sent_whole(self):
        assert by_push(BL_DECODER, one_each("🌶".encode()[2:] + b"ok"), prompt=self.SECRET) == [
            "",
            "🌶",
            "o",
            "k",
            "",
        ]

    def test_if_the_first_ids_do_not_go_on_with_it_its_u_fffd_was_the_prompt_s(self):
        assert by_push(BL_DECODER, [[111, 107]], prompt=self.SECRET) == ["ok", ""]
        assert by_push(BL_DECODER, [[262], [], [111]], prompt=self.SECRET) == ["", "", "o", ""]
        assert by_push(BL_DECODER, [], prompt=self.SECRET) == [""]
        assert by_push(BL_DECODER, [[0xA0]], prompt=[0xED]) == ["\ufffd", ""]

    def test_if_they_go_on_and_then_break_off_one_u_fffd_stands_for_the_new_bytes(self):
        assert by_push(BL_DECODER, [[140], [111]], prompt=self.SECRET) == ["", "\ufffdo", ""]
        assert by_push(BL_DECODER, [[140]], prompt=self.SECRET) == ["", "\ufffd"]

    def test_the_first_token_was_in_the_prompt(self):
        assert by_push(BF_DECODER, [[287]], prompt=[287]) == [" hi", ""]
        assert by_push(BF_DECODER, [[287]], prompt=[1]) == ["hi", ""]
        assert by_push(decoder_for(WP()), [[5], [11]], prompt=[5]) == [" hello", "e", ""]

    def test_the_space_after_the_prompt_s_last_word_is_text_of_the_continuation(self):
        decoder = decoder_for(suffix_bpe())
        low = decoder._forms.kept.index(("low", " ", ""))
        assert by_push(decoder, [[low]], prompt=[low]) == [" low", ""]

    def test_a_ctc_token_equal_to_the_prompt_s_last_one_gives_nothing(self):
        assert by_push(decoder_for(ctc()), [[5], [6]], prompt=[5]) == ["", "o", ""]

    def test_an_open_run_promptly(self):
        assert by_push(BF_DECODER, [byte_ids(b"\xa0"), [287]], prompt=byte_ids(b"a\xe4\xbd")) == [
            "你",
            " hi",
            "",
        ]
        assert by_push(BF_DECODER, [[287]], prompt=byte_ids(b"\xe4\xbd")) == [" hi", ""]

    def test_an_open_run_held(self):
        prompt = byte_ids(b"a\xe4\xbd")
        assert by_push(BF_DECODER, [byte_ids(b"\xa0b"), [287]], prompt=prompt, hold=True) == [
            "",
            "你b hi",
            "",
        ]
        # The prompt's bytes make the run invalid, and only the new ones give U+FFFD.
        assert by_push(BF_DECODER, [byte_ids(b"bc"), [287]], prompt=prompt, hold=True) == [
            "\ufffd\ufffd",
            " hi",
            "",
        ]
        assert by_push(BF_DECODER, [[287]], prompt=prompt, hold=True) == [" hi", ""]
        assert by_push(BF_DECODER, [byte_ids(b"b")], prompt=byte_ids(b"\xff"), hold=True) == ["\ufffd", ""]
        assert by_push(BF_DECODER, [[2], []], prompt=prompt, hold=True) == ["", "", ""]

    def test_held_ids_leave_the_prompt_s_text_out(self):
        decoder = decoder_for(word_level_with_rewriting_decoder())
        assert by_push(decoder, [[3], [1]], prompt=[1, 2]) == ["", "", "ca"]

    @given(
        st.lists(st.integers(0, 264)),
        st.lists(st.integers(0, 264)),
        st.booleans(),
        st.sampled_from(["bytes", "runs"]),
    )
    def test_the_continuation_is_what_decode_has_more_than_for_the_prompt(self, prompt, ids, skip, kind):
        decoder = BL_DECODER if kind == "bytes" else GEMMA_DECODER
        before = decoder.decode(prompt, skip_special_tokens=skip)
        whole = decoder.decode(prompt + ids, skip_special_tokens=skip)
        text = "".join(by_push(decoder, one_each(ids), skip=skip, hold=True, prompt=prompt))
        if whole.startswith(before):
            more = whole[len(before) :]
            # A character begun by the prompt and gone on with, but not completed, shows as one U+FFFD more.
            assert text in {more, "\ufffd" + more}
        else:  # the prompt's last U+FFFD became a character
            assert whole.endswith(text)
