"""The vocabulary: strings, holes, unknown ids, and the true bytes of tokens."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenizers_for_tests import (
    BF,
    BL,
    BLO,
    WP,
    added_token,
    bpe_model,
    byte_letters,
    ctc,
    load,
    metaspace_words,
    suffix_bpe,
    tokenizer_json,
    unigram,
    word_level,
)
from tokend_server.engine.vocabulary import MAX_TOKEN_ID, Vocabulary
from tokend_server.errors import TokenizerFileError


def vocabulary_of(text: str) -> Vocabulary:
    return Vocabulary(load(text), json.loads(text))


def with_hole() -> str:
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 2, "c": 5}, "unk_token": "a"}
    return tokenizer_json(model)


def test_strings_are_by_id_and_added_tokens_count():
    vocabulary = vocabulary_of(BL())
    assert vocabulary.max_id == 264
    assert vocabulary.size == 265
    assert vocabulary.strings[ord("h")] == "h"
    assert vocabulary.strings[262] == "<|bos|>"
    assert vocabulary.added[264].content == "<tool>"
    assert vocabulary.special_strings == {"<|bos|>", "<|end|>"}


def test_holes_are_below_the_greatest_id_and_count_for_nothing():
    vocabulary = vocabulary_of(with_hole())
    assert vocabulary.strings == ["a", None, "b", None, None, "c"]
    assert vocabulary.holes == {1, 3, 4}
    assert vocabulary.size == 3
    assert vocabulary.max_id == 5


@pytest.mark.parametrize(
    ("ids", "index"),
    [([], None), ([0], None), ([1], 0), ([6], 0), ([0, 2, 5], None), ([0, 2, 4, 6], 2), ([0, 2**32 - 1], 1)],
)
def test_first_unknown_finds_holes_and_ids_above_the_greatest(ids, index):
    assert vocabulary_of(with_hole()).first_unknown(ids) == index


def test_first_unknown_without_holes():
    vocabulary = vocabulary_of(BL())
    assert vocabulary.first_unknown(range(265)) is None
    assert vocabulary.first_unknown([3, 265, 4]) == 1


def test_is_known():
    vocabulary = vocabulary_of(with_hole())
    assert [token_id for token_id in range(-1, 8) if vocabulary.is_known(token_id)] == [0, 2, 5]


def test_id_of_finds_model_and_added_tokens():
    vocabulary = vocabulary_of(BL())
    assert vocabulary.id_of("the") == 257
    assert vocabulary.id_of("<tool>") == 264
    assert vocabulary.id_of("no such token") is None
    assert vocabulary.id_of("") is None


def test_special_is_a_test_on_the_string_and_not_on_the_id():
    added = [
        added_token(2, "SPQ", normalized=True),
        added_token(3, "twin"),
        added_token(4, "plain", special=False),
    ]
    model = bpe_model({"a": 0, "twin": 1}, [])
    vocabulary = vocabulary_of(tokenizer_json(model, normalizer={"type": "Lowercase"}, added=added))
    # "twin" in the file is at 3, but the library gives the added token the id that the model has for the string.
    assert vocabulary.strings[2] == "spq"
    assert not vocabulary.is_special(2)
    assert vocabulary.is_special(vocabulary.id_of("twin"))
    assert not vocabulary.is_special(4)
    assert not vocabulary.is_special(999)


def test_an_id_too_great_for_a_table_is_refused_with_the_id():
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": MAX_TOKEN_ID + 1}, "unk_token": "a"}
    with pytest.raises(TokenizerFileError, match=str(MAX_TOKEN_ID + 1)):
        vocabulary_of(tokenizer_json(model))


def test_an_empty_vocabulary_is_refused():
    with pytest.raises(TokenizerFileError, match="empty"):
        vocabulary_of(tokenizer_json(bpe_model({}, [])))


class TestTokenBytes:
    def test_byte_level_strings_are_bytes(self):
        vocabulary = vocabulary_of(BL())
        assert [vocabulary.token_bytes(byte) for byte in range(256)] == [
            bytes((byte,)) for byte in range(256)
        ]
        assert vocabulary.token_bytes(258) == b" the"
        assert vocabulary.token_bytes(259) == b"\xf0\x9f"
        assert vocabulary.token_bytes(262) == b"<|bos|>"

    def test_a_byte_level_string_off_the_alphabet_stays_as_it_is(self):
        vocabulary = vocabulary_of(BL(extra_vocab=["a b", "🙂"]))
        assert vocabulary.token_bytes(262) == b"a b"
        assert vocabulary.token_bytes(263) == "🙂".encode()

    def test_an_added_token_of_a_byte_level_file_is_its_content(self):
        assert vocabulary_of(BLO()).token_bytes(263) == "ilÖveyou".encode()

    def test_the_same_with_a_byte_level_normalizer_which_changes_the_string(self):
        added = [added_token(262, "<|bos|>"), added_token(263, "Bác", special=False)]
        vocabulary = vocabulary_of(BL(added=added, normalizer={"type": "ByteLevel"}))
        assert vocabulary.strings[263] == byte_letters("Bác".encode())
        assert vocabulary.token_bytes(263) == "Bác".encode()

    def test_byte_fallback_tokens_are_one_byte_and_word_marks_are_spaces(self):
        vocabulary = vocabulary_of(BF())
        assert b"".join(vocabulary.token_bytes(3 + byte) for byte in range(256)) == bytes(range(256))
        assert vocabulary.token_bytes(259) == b" "
        assert vocabulary.token_bytes(287) == b" hi"
        assert vocabulary.token_bytes(1) == b"<s>"

    def test_a_word_mark_in_an_added_token_is_what_the_decoder_makes_of_it(self):
        added = [added_token(n, content) for n, content in enumerate(("<unk>", "<s>", "</s>"))]
        added.append(added_token(288, "▁▁", special=False))
        assert vocabulary_of(BF(added=added)).token_bytes(288) == b"  "

    def test_byte_tokens_of_a_file_without_byte_fallback_are_text(self):
        assert vocabulary_of(word_level(("[UNK]", "<0x41>"))).token_bytes(1) == b"<0x41>"

    def test_metaspace_also_in_what_would_be_the_first_token(self):
        vocabulary = vocabulary_of(metaspace_words())
        assert vocabulary.token_bytes(2) == b" a"
        assert vocabulary.token_bytes(6) == b"   "
        assert vocabulary.token_bytes(7) == b"a b"

    def test_word_pieces_lose_their_prefix_and_get_no_space(self):
        vocabulary = vocabulary_of(WP())
        assert vocabulary.token_bytes(11) == b"e"
        assert vocabulary.token_bytes(5) == b"hello"
        assert vocabulary.token_bytes(2) == b"[CLS]"

    def test_a_word_end_suffix_is_a_space(self):
        vocabulary = vocabulary_of(suffix_bpe())
        assert vocabulary.token_bytes(vocabulary.id_of("low</w>")) == b"low "
        assert vocabulary.token_bytes(vocabulary.id_of("low")) == b"low"

    def test_ctc_letters(self):
        vocabulary = vocabulary_of(ctc())
        assert vocabulary.token_bytes(vocabulary.id_of("|")) == b" "
        assert vocabulary.token_bytes(vocabulary.id_of("h")) == b"h"

    def test_without_a_decoder_the_string_is_the_text(self):
        assert vocabulary_of(word_level()).token_bytes(1) == b"a"

    def test_unknown_ids_have_no_bytes(self):
        vocabulary = vocabulary_of(with_hole())
        assert vocabulary.token_bytes(1) == vocabulary.token_bytes(6) == vocabulary.token_bytes(-1) == b""

    @given(st.text())
    def test_joined_they_are_the_text_of_a_byte_level_file(self, text):
        file = BL()
        vocabulary, tokenizer = vocabulary_of(file), load(file)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert b"".join(map(vocabulary.token_bytes, ids)) == text.encode()

    @given(st.text(st.characters(codec="utf-8", exclude_characters="▁")))
    def test_joined_they_are_the_text_of_a_byte_fallback_file_behind_its_dummy_space(self, text):
        file = BF()
        vocabulary, tokenizer = vocabulary_of(file), load(file)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        joined = b"".join(map(vocabulary.token_bytes, ids))
        assert joined == (f" {text}" if text else "").encode()

    def test_unigram_with_byte_fallback(self):
        file = unigram(byte_fallback=True)
        vocabulary, tokenizer = vocabulary_of(file), load(file)
        ids = tokenizer.encode("hello wörld", add_special_tokens=False).ids
        assert b"".join(map(vocabulary.token_bytes, ids)) == " hello wörld".encode()
