"""Exact bytes: what each token stands for, and what the tokens of a text were cut from."""

import unicodedata
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.zoo import catalogue as zoo

import tokend
from tests.tokenizers_for_tests import BF, BFM, BL, WP, bpe_without_unk, metaspace_words, suffix_bpe, unigram
from tests.trained_tokenizers import english_russian, sprout

PARTS = st.text(max_size=6) | st.sampled_from(
    [" ", "  ", "\n", "\t", "\u00a0", "é", "e\u0301", "Ġ", "▁", "▁▁", "Ö", "<0x61>", "<|end|>", "<|endoftext|>", "<tool>"]
    + ["<｜User｜>", "<think>", "<bos>", "<table>", "the", " the", "1234567", "don't", "北京", "नमस्ते", "🙂\u200d", "\ufffd", "\0"]
)
TEXTS = st.lists(PARTS, max_size=6).map("".join)


@cache
def verdict(client: tokend.Client) -> tokend.RoundTrip:
    return client.tokenizer_info().round_trip


# Real files: how the bytes of the tokens follow from the text.

REAL = {
    "gpt2": (True, lambda text: text),
    "o200k": (True, lambda text: text),
    "llama3": (True, lambda text: text),
    "deepseek-v3": (True, lambda text: text),
    "qwen3": (False, lambda text: unicodedata.normalize("NFC", text)),
    "gemma3": (False, lambda text: text.replace("▁", " ")),
    "moonshine": (False, lambda text: text and " " + text.replace("▁", " ")),
}


@settings(max_examples=60)
@given(text=TEXTS)
@pytest.mark.parametrize("name", REAL)
def test_the_bytes_of_the_tokens_of_a_real_file_are_what_the_text_was_cut_from(connect, name, text):
    exact, cut_from = REAL[name]
    client = connect(zoo.require(name))
    assert client.tokenizer_info().round_trip.exact is exact
    ids = client.encode(text, special_tokens="text", add_special_tokens=False).ids
    # Python's tables may be of a newer Unicode than the library's, so that characters of the last years differ.
    if unicodedata.normalize("NFC", text) == text or exact:
        assert b"".join(token.token_bytes for token in client.lookup(ids)) == cut_from(text).encode()
    if exact:
        assert client.decode(ids).text == text
        assert client.decode(ids, include_bytes=True).raw_bytes == text.encode()


@pytest.mark.parametrize("name", ["bytes", "byte runs without marks", "bytes, another model", "trained: sprout"])
def test_the_bytes_of_every_token_are_those_that_decode_gives_for_it_alone(connect, name):
    client = connect(EXACT[name])
    ids = range(client.tokenizer_info().max_id + 1)
    tokens = client.lookup(ids)
    alone = client.decode_batch([[token_id] for token_id in ids], include_bytes=True, skip_special_tokens=False)
    assert [token.token_bytes for token in tokens] == [each.raw_bytes for each in alone]


def test_the_bytes_of_tokens_that_are_no_bytes_of_their_own(connect):
    def bytes_of(file, *tokens):
        return [token.token_bytes for token in connect(file).lookup(tokens=tokens)]

    assert bytes_of(BF(), "▁hi", "▁", "<0xC3>", "<s>") == [b" hi", b" ", b"\xc3", b"<s>"]
    assert bytes_of(WP(), "hello", "##e", "[CLS]") == [b"hello", b"e", b"[CLS]"]
    assert bytes_of(metaspace_words(), "▁a", "c", "<s>") == [b" a", b"c", b"<s>"]
    assert bytes_of(suffix_bpe(), "low</w>", "ne") == [b"low ", b"ne"]
    assert bytes_of(unigram(byte_fallback=True), "▁hello", "<0xFF>") == [b" hello", b"\xff"]
