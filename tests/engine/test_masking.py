"""Models on which no text reaches certain strings."""

import json

import pytest
from tokenizers import Tokenizer

from tests.tokenizers_for_tests import (
    BYTE_TO_LETTER,
    bpe_model,
    byte_fallback_bpe,
    byte_level_bpe,
    tokenizer_json,
    unigram,
    word_level,
    word_piece,
)
from tokend_server.engine.masking import masked_model, reachable_strings

MARKED = tokenizer_json(
    bpe_model(
        {"<": 0, "s": 1, ">": 2, "<s": 3, "<s>": 4, "!": 5, "<s>s": 6},
        [("<", "s"), ("<s", ">"), ("<s>", "s")],
    )
)


@pytest.mark.parametrize(
    ("text", "strings", "reachable"),
    [
        (unigram(), ["<s>", "<pad>", "<nobody>"], {"<s>", "<pad>"}),
        (word_piece(), ["[CLS]", "[NO]"], {"[CLS]"}),
        (word_level(), ["a"], {"a"}),
        (byte_fallback_bpe(), ["<s>", "<unk>"], set()),
        (byte_level_bpe(), ["<|end|>"], set()),
        (byte_level_bpe(extra_vocab=["<|end|>"]), ["<|end|>"], set()),
        (byte_level_bpe(extra_vocab=["<|end|>"], ignore_merges=True), ["<|end|>"], {"<|end|>"}),
        (MARKED, ["<s>", "!", "<s"], {"<s>", "!", "<s"}),
    ],
)
def test_a_string_is_reachable_where_the_model_can_make_it(text, strings, reachable):
    assert reachable_strings(json.loads(text)["model"], strings) == reachable


def test_merges_written_as_strings_and_with_a_prefix_are_read():
    model = bpe_model({"a": 0, "##b": 1, "ab": 2}, [("a", "##b")], continuing_subword_prefix="##")
    assert reachable_strings(model, ["ab"]) == {"ab"}
    assert reachable_strings({**model, "merges": ["a ##b"]}, ["ab"]) == {"ab"}


@pytest.mark.parametrize("string", ["<s>", "<s"])
def test_a_masked_bpe_keeps_every_other_id(string):
    plain, masked = Tokenizer.from_str(MARKED), Tokenizer(masked_model(MARKED.encode(), [string]))
    hidden = plain.token_to_id(string)
    assert hidden in plain.encode("s" + string).ids
    assert hidden not in masked.encode("s" + string + "s").ids
    assert masked.encode("!s><").ids == plain.encode("!s><").ids == [5, 1, 2, 0]
    assert masked.get_vocab_size() == plain.get_vocab_size()
    assert {k: v for k, v in plain.get_vocab().items() if v != hidden}.items() <= masked.get_vocab().items()


def test_a_masked_unigram_spells_the_string_out():
    spec = json.loads(unigram())
    masked = Tokenizer(masked_model(unigram().encode(), ["<s>"]))
    letters = [masked.token_to_id(letter) for letter in "<s>"]
    assert masked.encode("<s>").ids == letters
    assert spec["model"]["vocab"][1][0] == "<s>"


def test_a_byte_level_word_is_cut_by_its_merges_once_masked():
    text = byte_level_bpe(extra_vocab=[BYTE_TO_LETTER[0x78] * 3], ignore_merges=True, added=[], post=False)
    plain = Tokenizer.from_str(text)
    assert plain.encode("xxx").ids == [262]
    plain.model = masked_model(text.encode(), ["xxx"])
    assert plain.encode("xxx").ids == [120, 120, 120]
