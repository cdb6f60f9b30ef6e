"""The small and the trained tokenizers have the ids that the tests (and the bug-report cases) count on."""

import json
import time

import pytest

from tests import tokenizers_for_tests as small
from tests.trained_tokenizers import ENGLISH_RUSSIAN_SIZE, corpus, english_russian, sprout


def test_byte_level_ids_are_the_byte_values_and_then_as_listed():
    tokenizer = small.load(small.BL())
    assert tokenizer.encode("é🙂", add_special_tokens=False).ids == [195, 169, 259, 153, 130]
    assert tokenizer.encode("th the aaaa<|end|><tool>").ids == [262, 256, 258, 32, 261, 263, 264]
    assert tokenizer.decode([262, 104, 264, 105, 263]) == "h<tool>i"


def test_odd_letter_is_an_added_token_that_the_byte_decoder_breaks():
    assert small.load(small.BLO()).decode([263]) == "il\ufffdveyou"


@pytest.mark.parametrize("build", [small.BF, small.BFM])
def test_byte_fallback_ids_are_as_listed(build):
    tokenizer = small.load(build())
    assert tokenizer.encode("hi hi").ids == [1, 287, 287]
    assert tokenizer.encode("hié").ids == [1, 287, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.decode([287, 231, 187, 176]) == "hi中"


def test_word_piece_ids_are_as_listed():
    tokenizer = small.load(small.WP())
    assert tokenizer.encode("Hello, CAFÉ").ids == [2, 5, 7, 16, 3]
    pair = tokenizer.encode("hello", "world")
    assert (pair.ids, pair.type_ids) == ([2, 5, 3, 6, 3], [0, 0, 0, 1, 1])


def test_the_rewriting_decoder_rewrites_across_tokens():
    assert small.load(small.word_level_with_rewriting_decoder()).decode([1, 2, 3]) == "Xc"


def test_the_unigram_vocabulary_gives_its_special_token_for_text_even_when_told_not_to():
    tokenizer = small.load(small.unigram())
    tokenizer.encode_special_tokens = True
    assert 1 in tokenizer.encode("<s>").ids


def test_suffix_words_are_one_token_each():
    tokenizer = small.load(small.suffix_bpe())
    encoding = tokenizer.encode("lower new low")
    assert encoding.tokens == ["lower</w>", "new</w>", "low</w>"]
    assert tokenizer.decode(encoding.ids) == "lower new low"


def test_ctc_joins_equal_neighbours():
    assert small.load(small.ctc()).decode([3, 3, 4, 5, 0, 5, 6, 2, 6], skip_special_tokens=False) == "hello o"


def test_without_unk_bpe_drops_letters_and_word_level_refuses_them():
    assert small.load(small.bpe_without_unk()).encode("a zz a").ids == [0, 0]
    with pytest.raises(Exception, match="UNK"):
        small.load(small.word_level(("a", "b"), unk_token=None)).encode("a z")


def test_english_russian_is_full_size_and_reads_the_given_sentence():
    start = time.monotonic()
    tokenizer = small.load(english_russian())
    assert time.monotonic() - start < 10
    assert tokenizer.get_vocab_size() == ENGLISH_RUSSIAN_SIZE
    assert [tokenizer.token_to_id(token) for token in ("<pad>", "<unk>", "<bos>", "<eos>")] == [0, 1, 2, 3]
    ids = tokenizer.encode("  Он сказал:   «Я не  знаю» - и ушёл…").ids
    assert tokenizer.decode(ids) == 'Он сказал: "Я не знаю" — и ушёл...'
    assert tokenizer.encode("漢").ids[-1] == 1


def test_sprout_has_bytes_then_merges_then_special_tokens():
    spec = json.loads(sprout())
    tokenizer = small.load(sprout())
    vocab = spec["model"]["vocab"]
    assert all(vocab[letter] == byte for byte, letter in small.BYTE_TO_LETTER.items())
    # Each merge made the next id: so the id alone tells the rank of its merge.
    assert [vocab[left + right] for left, right in spec["model"]["merges"]] == list(range(256, 8188))
    specials = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"]
    assert [tokenizer.token_to_id(token) for token in specials] == [8188, 8189, 8190, 8191]
    assert tokenizer.get_vocab_size() == 8192


def test_sprout_lets_every_digit_stand_alone_and_loses_no_byte():
    tokenizer = small.load(sprout())
    assert tokenizer.encode("2026").ids == [ord(digit) for digit in "2026"]
    for text in ["a\0b\r\n\t", "ёжик 🙂 e\u0301", "  three   spaces  ", *corpus()[::2000]]:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
