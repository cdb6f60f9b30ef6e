"""Whether a text comes back: what is promised of a file is true of every text, and each part that may fail is named."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizers_for_tests import (
    BF,
    BFM,
    BL,
    BLO,
    BYTE_TO_LETTER,
    WP,
    added_token,
    bpe_model,
    bpe_without_unk,
    byte_level_bpe,
    ctc,
    metaspace_words,
    suffix_bpe,
    template,
    tokenizer_json,
    unigram,
    word_level,
)
from tests.trained_tokenizers import english_russian, sprout
from tokend_server.engine.reference import EncodeOptions
from tokend_server.engine.round_trip import RoundTrip
from tokend_server.errors import InvalidOption

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
TO_BYTES = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}


def changed(file: str, **parts) -> str:
    """The file with other parts; a part of the model by `model__NAME`."""
    spec = json.loads(file)
    for name, part in parts.items():
        if name.startswith("model__"):
            spec["model"][name.removeprefix("model__")] = part
        else:
            spec[name] = part
    return json.dumps(spec)


def split(pattern: str, behavior: str = "Removed", *, invert: bool = False) -> dict:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def in_turn(*pre_tokenizers: dict) -> dict:
    return {"type": "Sequence", "pretokenizers": [*pre_tokenizers]}


def bytes_with(content: str, token_id: int = 262, **flags: bool) -> str:
    return byte_level_bpe(added=[added_token(token_id, content, **flags)], post=False)


def bytes_without(*missing: int) -> str:
    spec = json.loads(byte_level_bpe(added=[], post=False))
    vocab = {token: token_id for token, token_id in spec["model"]["vocab"].items() if token_id not in missing}
    return changed(json.dumps(spec), model__vocab=vocab)


def byte_fallback(**options) -> str:
    """Byte tokens and a few letters, with nothing in front or behind that knows of spaces."""
    vocab = {
        "<unk>": 0,
        **{f"<0x{byte:02X}>": 1 + byte for byte in range(256)},
        "a": 257,
        "b": 258,
        "ab": 259,
    }
    model = bpe_model(vocab, [("a", "b")], unk_token="<unk>", byte_fallback=True, **options)
    return tokenizer_json(model, decoder=TO_BYTES)


def byte_unigram() -> str:
    letters = [[letter, -5.0] for letter in BYTE_TO_LETTER.values()]
    model = {"type": "Unigram", "unk_id": None, "vocab": [*letters, ["Ġthe", -3.0]], "byte_fallback": False}
    return tokenizer_json(model, pre_tokenizer=BYTE_LEVEL, decoder=BYTE_LEVEL)


def two_tokens_of_one_id() -> str:
    """The vocabulary has a hole, so that an added token gets the number of its entries, which is an id already."""
    vocab = {letter: byte for byte, letter in BYTE_TO_LETTER.items()} | {"xy": 257}
    model = bpe_model(vocab, [("x", "y")])
    added = [added_token(257, "<T>", special=False)]
    return tokenizer_json(model, pre_tokenizer=BYTE_LEVEL, decoder=BYTE_LEVEL, added=added)


TOTAL = r"\p{L}+|\p{N}+|\s+|[^\s\p{L}\p{N}]+"
PLAIN = byte_level_bpe(added=[], post=False)

EXACT = {
    "bytes": BL(),
    "bytes, not split": byte_level_bpe(use_regex=False),
    "bytes, whole words first": byte_level_bpe(ignore_merges=True, extra_vocab=["xyz", "Ġ<|"]),
    "bytes by a normalizer": changed(PLAIN, normalizer=BYTE_LEVEL, pre_tokenizer=None),
    "bytes, a pattern for all that is kept": changed(
        PLAIN, pre_tokenizer=in_turn(split(TOTAL, invert=True), BYTE_LEVEL)
    ),
    "bytes, cut in other ways": changed(
        PLAIN,
        pre_tokenizer=in_turn(
            split(r"\s", "MergedWithNext"), {"type": "Digits", "individual_digits": True}, BYTE_LEVEL
        ),
    ),
    "a special token that takes spaces stays text": bytes_with("<mask>", lstrip=True, rstrip=True),
    "a special token with letters of the alphabet stays text": bytes_with("Bác"),
    "an added word": bytes_with("tool", special=False, single_word=True),
    "an added word that is looked for later": bytes_with("<T>", special=False, normalized=True),
    "an added word off the alphabet": bytes_with("北 京", special=False),
    "no token for bytes that are in no text": bytes_without(0xC0, 0xC1, 0xF5, 0xFF),
    "byte runs without marks": byte_fallback(),
    "bytes, another model": byte_unigram(),
    "trained: sprout": sprout(),
}

# Each with a phrase of the reason, and a text that does not come back.
LOSSY = {
    "an added word with letters of the alphabet": (BLO(), "decode to another text: 'ilÖveyou'", "ilÖveyou"),
    "an added word that takes spaces": (
        bytes_with("<T>", special=False, lstrip=True),
        "white space beside",
        "a <T>",
    ),
    "an added word that spells a space": (bytes_with("Ġx", special=False), "decode to another text", "Ġx"),
    "a control token that is a byte's own": (bytes_with("a", 97), "1 bytes have no token", "a"),
    "a space in front": (byte_level_bpe(add_prefix_space=True), "puts a space in front", "hi"),
    "NFC": (byte_level_bpe(normalizer={"type": "NFC"}), "normalizer NFC composes", "e\u0301"),
    "NFKC": (byte_level_bpe(normalizer={"type": "NFKC"}), "normalizer NFKC composes", "ﬁ"),
    "lower case": (byte_level_bpe(normalizer={"type": "Lowercase"}), "lowers case", "A"),
    "a replacement": (
        byte_level_bpe(normalizer={"type": "Replace", "pattern": {"String": "x"}, "content": "y"}),
        "Replace changes text",
        "x",
    ),
    "a prefix": (byte_level_bpe(normalizer={"type": "Prepend", "prepend": "_"}), "puts '_' in front", "x"),
    "the alphabet twice": (changed(PLAIN, pre_tokenizer=in_turn(BYTE_LEVEL, BYTE_LEVEL)), "twice", " "),
    "a pattern that leaves digits out": (
        changed(PLAIN, pre_tokenizer=in_turn(split(r"\D+", invert=True), BYTE_LEVEL)),
        "drops what its pattern does not match",
        "a1",
    ),
    "a pattern that leaves lone signs out": (
        changed(
            PLAIN, pre_tokenizer=in_turn(split(r"[^\p{L}\p{N}\s]?\p{L}+|\p{N}|\s", invert=True), BYTE_LEVEL)
        ),
        "drops what its pattern does not match",
        "!",
    ),
    "a pattern that cuts out": (
        changed(PLAIN, pre_tokenizer=in_turn(split(","), BYTE_LEVEL)),
        "drops what it cuts at",
        "a,b",
    ),
    "white space": (
        changed(PLAIN, pre_tokenizer=in_turn({"type": "WhitespaceSplit"}, BYTE_LEVEL)),
        "drops white space",
        "a b",
    ),
    "no decoder": (changed(PLAIN, decoder=None), "no decoder", "a b"),
    "another decoder": (changed(PLAIN, decoder={"type": "Fuse"}), "does not read the byte alphabet", "é"),
    "letters read as bytes": (changed(PLAIN, pre_tokenizer=None), "becomes the unk token, is dropped", "\n"),
    "no token for a byte of text": (bytes_without(0xC3), "1 bytes have no token", "é"),
    "marks of the model": (
        changed(PLAIN, model__end_of_word_suffix="</w>"),
        "marks where words begin or end",
        "a",
    ),
    "one id for two tokens": (two_tokens_of_one_id(), "has the id of another token", "xy"),
    "a template that says it twice": (
        changed(PLAIN, post_processor=template("A A", "A B", {})),
        "does not hold the text once",
        "a",
    ),
    "byte runs": (BF(), "'▁' in a text comes back as ' '", "▁"),
    "byte runs, another normalizer": (BFM(), "a space in front", " hi"),
    "byte runs, a space off the start": (
        changed(
            byte_fallback(),
            decoder={
                "type": "Sequence",
                "decoders": [*TO_BYTES["decoders"], {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
            },
        ),
        "off the start",
        " a",
    ),
    "byte runs, a byte spelled out": (
        byte_fallback(ignore_merges=True),
        "spells the token of a byte",
        "<0x61>",
    ),
    "byte runs, a byte spelled as an added word": (
        changed(byte_fallback(), added_tokens=[added_token(98, "<0x61>", special=False)]),
        "decode to another text: '<0x61>'",
        "<0x61>",
    ),
    "word pieces": (WP(), "BertNormalizer cleans", "A"),
    "whole words": (word_level(), "becomes the unk token", "zz"),
    "unigram": (unigram(), "becomes the unk token", "hellö"),
    "unigram with bytes": (unigram(byte_fallback=True), "spells the token of a byte", "<0x61>"),
    "word marks": (metaspace_words(), "no difference between a text with a space in front", " a"),
    "word ends": (suffix_bpe(), "marks where words begin or end", "low  low"),
    "speech": (ctc(), "one of equal neighbours", "hello"),
    "no unk": (bpe_without_unk(), "is dropped", "ab"),
    "trained: English and Russian": (english_russian(), "NFKC", "½"),
}


AS_TEXT = EncodeOptions(add_special_tokens=False)


def decoded(tokenizer, text, *, skip=False) -> str | None:
    """The text that comes back; None where it is refused."""
    try:
        [encoded] = tokenizer.encoder.encode([text], None, AS_TEXT)
    except InvalidOption:
        return None
    return tokenizer.decoder.decode(encoded.ids, skip_special_tokens=skip)


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
            "Ġx",
            "▁",
            "Ö",
            "<T>",
            " <T> ",
            "<mask>",
            "tool",
            "Bác",
        ),
        *(
            "ilÖveyou",
            "<0x61>",
            "<|bos|>",
            "<|end|>",
            "<tool>",
            "北 京",
            "xy",
            "zz",
            "the",
            " the",
            "aaaa",
            "\ufffd",
            "\0",
        ),
    )
)
TEXTS = st.lists(PARTS, max_size=6).map("".join)


@settings(max_examples=60)
@given(text=TEXTS)
@pytest.mark.parametrize("name", EXACT)
def test_where_it_is_called_exact_every_text_comes_back(frozen, name, text):
    tokenizer = frozen(EXACT[name])
    assert tokenizer.round_trip == RoundTrip(exact=True, reason="")
    assert decoded(tokenizer, text) == decoded(tokenizer, text, skip=True) == text
    [encoded] = tokenizer.encoder.encode([text], None, AS_TEXT)
    assert b"".join(map(tokenizer.vocabulary.token_bytes, encoded.ids)) == text.encode()


@pytest.mark.parametrize("name", LOSSY)
def test_where_it_is_not_the_part_is_named_and_a_text_shows_it(frozen, name):
    file, phrase, text = LOSSY[name]
    tokenizer = frozen(file)
    assert not tokenizer.round_trip.exact
    assert phrase in tokenizer.round_trip.reason
    assert decoded(tokenizer, text) != text


def test_many_added_tokens_are_counted_and_few_are_named(frozen):
    contents = [f"Ö{n}" for n in range(5)]
    added = [added_token(262 + n, content, special=False) for n, content in enumerate(contents)]
    reason = frozen(byte_level_bpe(added=added, post=False)).round_trip.reason
    assert reason == "added tokens that decode to another text: 'Ö0', 'Ö1', 'Ö2' and 2 more"
