"""Exact bytes: what each token stands for, and what the tokens of a text were cut from."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizers_for_tests import BF, BFM, BL, WP, bpe_without_unk, metaspace_words, suffix_bpe, unigram
from tests.trained_tokenizers import english_russian, sprout
from tests.zoo import catalogue as zoo

PARTS = st.text(max_size=6) | st.sampled_from(
    (
        *(
            " ",
            "  ",
            "\n",
            "\t",
            "\u00a0",
            "é",
            "e\u0301",
            "Ġ",
            "▁",
            "▁▁",
            "Ö",
            "<0x61>",
            "<|end|>",
            "<|endoftext|>",
            "<tool>",
        ),
        *(
            "<｜User｜>",
            "<think>",
            "<bos>",
            "<table>",
            "the",
            " the",
            "1234567",
            "don't",
            "北京",
            "नमस्ते",
            "🙂\u200d",
            "\ufffd",
            "\0",
        ),
    )
)
TEXTS = st.lists(PARTS, max_size=6).map("".join)


def composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def with_spaces(text: str) -> str:
    """A word mark of the text's own has the token of a space."""
    return text.replace("▁", " ")


FILES = {
    # What the text is cut from; None: the text itself, the file being lossless.
    "BL": (BL, None),
    "sprout": (sprout, None),
    "gpt2": (lambda: zoo.require("gpt2"), None),
    "o200k": (lambda: zoo.require("o200k"), None),
    "llama3": (lambda: zoo.require("llama3"), None),
    "deepseek-v3": (lambda: zoo.require("deepseek-v3"), None),
    "qwen3": (lambda: zoo.require("qwen3"), composed),
    "gemma3": (lambda: zoo.require("gemma3"), with_spaces),
    "moonshine": (lambda: zoo.require("moonshine"), lambda text: text and " " + with_spaces(text)),
    "BF": (BF, lambda text: text and " " + with_spaces(text)),
    "BFM": (BFM, lambda text: with_spaces(text) if text[:1] in {"", " ", "▁"} else " " + with_spaces(text)),
}


@settings(max_examples=50)
@given(text=TEXTS)
@pytest.mark.parametrize("name", FILES)
def test_the_bytes_of_the_tokens_joined_are_what_the_text_was_cut_from(client_of, name, text):
    file, changed = FILES[name]
    client = client_of(file())
    assert client.tokenizer_info().round_trip.exact is (changed is None)
    ids = client.encode(text, special_tokens="text", add_special_tokens=False).ids
    joined = b"".join(token.token_bytes for token in client.lookup(ids))
    if changed is None:
        assert client.decode(ids).text == text
        assert client.decode(ids, include_bytes=True).raw_bytes == joined == text.encode()
    # Python may know a newer Unicode than the library, so what it composes is not compared.
    elif changed is not composed or composed(text) == text:
        assert joined == changed(text).encode()


@pytest.mark.parametrize("name", ["BL", "sprout", "gpt2"])
def test_the_bytes_of_every_token_are_those_that_decode_gives_for_it_alone(client_of, name):
    client = client_of(FILES[name][0]())
    ids = range(client.tokenizer_info().max_id + 1)
    looked_up = [token.token_bytes for token in client.lookup(ids)]
    batches = (ids[start : start + 4096] for start in range(0, len(ids), 4096))
    options = {"include_bytes": True, "skip_special_tokens": False}
    alone = [
        decoded.raw_bytes
        for batch in batches
        for decoded in client.decode_batch([[token_id] for token_id in batch], **options)
    ]
    assert looked_up == alone


VERDICTS = {
    "sprout": (sprout, ""),
    "o200k": (lambda: zoo.require("o200k"), ""),
    "qwen3": (lambda: zoo.require("qwen3"), "NFC"),
    "gemma3": (lambda: zoo.require("gemma3"), "'▁' in a text comes back as ' '"),
    "moonshine": (lambda: zoo.require("moonshine"), "'▁' in a text comes back as ' '"),
    "unigram": (lambda: unigram(byte_fallback=True), "a space in front"),
    "bert-uncased": (lambda: zoo.require("bert-uncased"), "BertNormalizer"),
    "english-russian": (english_russian, "NFKC"),
    "WP": (WP, "unk token"),
    "no unk": (bpe_without_unk, "unk token"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_server_says_whether_a_text_comes_back_and_which_part_is_in_the_way(client_of, name):
    file, phrase = VERDICTS[name]
    verdict = client_of(file()).tokenizer_info().round_trip
    assert verdict.exact is (phrase == "")
    assert phrase in verdict.reason


def test_the_bytes_of_tokens_that_are_no_bytes_of_their_own(client_of):
    def bytes_of(file, *tokens):
        return [token.token_bytes for token in client_of(file).lookup(tokens=tokens)]

    assert bytes_of(BF(), "▁hi", "▁", "<0xC3>", "<s>") == [b" hi", b" ", b"\xc3", b"<s>"]
    assert bytes_of(WP(), "hello", "##e", "[CLS]") == [b"hello", b"e", b"[CLS]"]
    assert bytes_of(metaspace_words(), "▁a", "c", "<s>") == [b" a", b"c", b"<s>"]
    assert bytes_of(suffix_bpe(), "low</w>", "ne") == [b"low ", b"ne"]
    assert bytes_of(unigram(byte_fallback=True), "▁hello", "<0xFF>") == [b" hello", b"\xff"]
