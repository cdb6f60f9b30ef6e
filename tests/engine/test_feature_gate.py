"""The feature gate: what is on the list may be verified, everything else stays on the reference."""

import json

import pytest

from tests.engine.fast_for_tests import Subject
from tests.tokenizers_for_tests import (
    BF,
    BFM,
    BL,
    WP,
    added_token,
    bpe_without_unk,
    byte_level_bpe,
    suffix_bpe,
    template,
    unigram,
    word_level,
    write,
)
from tests.trained_tokenizers import english_russian, sprout
from tests.zoo.catalogue import require
from tokend_server.data import default_tokenizer_path
from tokend_server.engine.feature_gate import unsupported_feature


def with_parts(text, **parts):
    return json.dumps({**json.loads(text), **parts})


def with_model(text, **fields):
    spec = json.loads(text)
    spec["model"] |= fields
    return json.dumps(spec)


def without_byte(text):
    spec = json.loads(text)
    # The letters are spelled in ids 0..255; this one is the NUL byte's.
    spec["model"]["vocab"].pop("Ā")
    spec["model"]["vocab"]["ĀĀ"] = 0
    return json.dumps(spec)


def judged(path, *control_tokens):
    subject = Subject.of(path, *control_tokens)
    return unsupported_feature(subject.artifact.spec, subject.reference)


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


@pytest.mark.parametrize(
    "file",
    [
        BL(),
        BF(),
        byte_level_bpe(normalizer={"type": "Sequence", "normalizers": []}),
        byte_level_bpe(
            normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
            added=[added_token(262, "<|bos|>")],
        ),
        byte_level_bpe(ignore_merges=True),
        with_model(
            BL(), unk_token="<|end|>", dropout=0.1, end_of_word_suffix="", continuing_subword_prefix=""
        ),
        with_parts(
            BL(),
            pre_tokenizer={
                "type": "Sequence",
                "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTES],
            },
        ),
        with_parts(BL(), post_processor=None),
        byte_level_bpe(
            added=[added_token(262, "<|bos|>", lstrip=True), added_token(263, "<x>", special=False)]
        ),
    ],
)
def test_what_was_tried_against_the_reference_is_allowed(tokenizer_file, file):
    assert judged(tokenizer_file(file)) is None


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (WP(), "the model is WordPiece"),
        (unigram(), "the model is Unigram"),
        (word_level(), "the model is WordLevel"),
        (suffix_bpe(), "the model has a end_of_word_suffix"),
        (
            bpe_without_unk(),
            "the model has no tokens for bytes: no ByteLevel pre-tokenizer and no byte fallback",
        ),
        (
            english_russian(),
            "the model has no tokens for bytes: no ByteLevel pre-tokenizer and no byte fallback",
        ),
        (without_byte(BL()), "1 of the 256 bytes have no token"),
        (with_model(BL(), spelling="odd"), "the model has spelling"),
        (BFM(), "the pre-tokenizer has Metaspace"),
        (byte_level_bpe(normalizer={"type": "NFKC"}), "the normalizer has NFKC"),
        (
            byte_level_bpe(
                normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "StripAccents"}]}
            ),
            "the normalizer has StripAccents",
        ),
        (
            with_parts(
                BL(),
                pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, BYTES]},
            ),
            "the pre-tokenizer has WhitespaceSplit",
        ),
        (
            with_parts(BL(), pre_tokenizer={**BYTES, "mode": "new"}),
            "the pre-tokenizer ByteLevel has mode",
        ),
        (
            with_parts(
                BL(),
                post_processor={"type": "BertProcessing", "sep": ["<|end|>", 263], "cls": ["<|bos|>", 262]},
            ),
            "the post-processor has BertProcessing",
        ),
        (
            with_parts(BL(), post_processor=template("A A", "A B", {})),
            "the post-processor's template has the text not exactly once",
        ),
        (
            with_parts(
                BL(),
                post_processor={
                    **template("A", "A B", {}),
                    "single": [{"Sequence": {"id": "A", "type_id": 1}}],
                },
            ),
            "the post-processor gives tokens of a single text types",
        ),
        (
            byte_level_bpe(added=[added_token(262, "<|bos|>", single_word=True)]),
            "the added token '<|bos|>' is single_word",
        ),
        (
            byte_level_bpe(
                normalizer={"type": "NFC"},
                added=[added_token(262, "<|bos|>"), added_token(263, "<é>", normalized=True)],
            ),
            "the added token '<é>' is looked for in normalized text",
        ),
        (
            byte_level_bpe(ignore_merges=True, extra_vocab=["<|end|>"], added=[added_token(262, "<|end|>")]),
            "the model itself makes control tokens of text",
        ),
    ],
)
def test_everything_else_is_named(tokenizer_file, file, reason):
    assert judged(tokenizer_file(file)) == reason


def test_a_control_token_that_is_an_ordinary_word_keeps_the_file_on_the_reference(tmp_path):
    path = write(tmp_path, BL())
    assert judged(path, "the") == "the model itself makes control tokens of text"


def test_the_embedded_tokenizer_and_sprout_are_allowed(tokenizer_file):
    assert judged(default_tokenizer_path()) is None
    assert judged(tokenizer_file(sprout())) is None


@pytest.mark.parametrize("name", ["gpt2", "o200k", "llama3", "deepseek-v3"])
def test_the_common_real_files_are_allowed(name):
    assert judged(require(name)) is None
