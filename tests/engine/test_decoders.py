"""Classification of decoders, and that each kind gives what the library gives, whole and in any pieces."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizers_for_tests import BYTE_TO_LETTER, added_token, load, metaspace, word_level
from tokend_server.engine.byte_alphabet import byte_level_bytes, fallback_byte
from tokend_server.engine.decoders import decoder_stages, plan_decoder
from tokend_server.engine.decoding import build_decoder
from tokend_server.engine.vocabulary import Vocabulary
from tokend_server.errors import TokenizerFileError

WORDS = (
    *(
        "[UNK]",
        "<s>",
        "▁a",
        "▁",
        "▁▁▁",
        "a▁b",
        "a",
        "##b",
        "##",
        "'",
        "##'",
        " do not",
        "n't",
        "h'",
        " .",
        ".",
    ),
    *(
        "a</w>",
        "b</w>c",
        "</w>",
        "</w></w>",
        "<0x41>",
        "<0xE4>",
        "<0xBD>",
        "<0xA0>",
        "<0xe5>",
        "<0x+A>",
        "<0x20>",
    ),
    *("<0xED>", "<0xE2>", "<0x96>", "<0x81>", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "<0xFF>", "<0xG0>"),
    *(
        "",
        "|",
        "<pad>",
        "x",
        "xx",
        " ",
        "  a",
        " a ",
        "é",
        "ÿ",
        "Ġ",
        "Ġa",
        "Ã",
        "©",
        "ð",
        "Ł",
        "🙂",
        "\ufffd",
    ),
)
"""Words with everything that some stage looks at; 1 is special."""

ADDED = (
    added_token(1, "<s>"),
    added_token(len(WORDS), "<add>", special=False),
    added_token(len(WORDS) + 1, "a▁🙂"),
)


def literal(pattern: str, content: str) -> dict:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def regex(pattern: str, content: str) -> dict:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def strip(content: str, start: int) -> dict:
    return {"type": "Strip", "content": content, "start": start, "stop": 0}


def sequence(*stages: dict) -> dict:
    return {"type": "Sequence", "decoders": list(stages)}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
BYTE_FALLBACK = {"type": "ByteFallback"}
FUSE = {"type": "Fuse"}
WORD_PIECE = {"type": "WordPiece", "prefix": "##", "cleanup": True}
SUFFIX = {"type": "BPEDecoder", "suffix": "</w>"}
CTC = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}
MARK = literal("▁", " ")

STREAMED = {
    "none": (None, "first-token"),
    "byte level": (BYTE_LEVEL, "bytes"),
    "byte level in a sequence": (sequence(BYTE_LEVEL), "bytes"),
    "byte level behind Replace": (sequence(literal("▁", "Ġ"), BYTE_LEVEL), "bytes"),
    "byte level behind Strip": (sequence(strip("a", 1), BYTE_LEVEL), "bytes"),
    "byte level behind Metaspace": (sequence(metaspace(), BYTE_LEVEL), "bytes"),
    "byte level behind WordPiece": (sequence(WORD_PIECE, BYTE_LEVEL), "bytes"),
    "byte level before edits": (sequence(BYTE_LEVEL, literal("a", "bb"), strip("b", 3)), "bytes"),
    "byte fallback alone": (BYTE_FALLBACK, "byte-runs"),
    "Llama 2": (sequence(MARK, BYTE_FALLBACK, FUSE, strip(" ", 1)), "byte-runs"),
    "Gemma": (sequence(MARK, BYTE_FALLBACK, FUSE), "byte-runs"),
    "Replace behind byte fallback": (sequence(BYTE_FALLBACK, FUSE, MARK, strip(" ", 1)), "byte-runs"),
    "Replace behind unfused byte fallback": (sequence(BYTE_FALLBACK, literal("a", "")), "byte-runs"),
    "Strip twice and Replace between": (
        sequence(BYTE_FALLBACK, FUSE, strip(" ", 2), literal("a", " "), strip(" ", 2)),
        "byte-runs",
    ),
    "Replace that empties tokens": (sequence(regex("^[a.]$", ""), BYTE_FALLBACK, FUSE), "byte-runs"),
    "Replace that makes byte tokens": (sequence(literal("é", "<0xE4>"), BYTE_FALLBACK, FUSE), "byte-runs"),
    "Metaspace always": (metaspace("always"), "first-token"),
    "Metaspace first": (metaspace("first"), "first-token"),
    "Metaspace never": (metaspace("never"), "first-token"),
    "WordPiece with cleanup": (WORD_PIECE, "first-token"),
    "WordPiece without cleanup": ({**WORD_PIECE, "cleanup": False}, "first-token"),
    "WordPiece behind Replace and before Fuse": (
        sequence(MARK, WORD_PIECE, FUSE, strip("#", 1)),
        "first-token",
    ),
    "empty sequence": (sequence(), "text"),
    "Replace": (literal("a", "bb"), "text"),
    "Replace of a pattern": (regex("[a-z]+$", "<>"), "text"),
    "Strip of each token": (sequence(strip(" ", 1), literal("a", " ")), "text"),
    "Fuse": (FUSE, "text"),
    "Fuse and Strip, nested": (sequence(sequence(MARK, sequence(FUSE)), strip(" ", 2)), "text"),
    "suffix": (SUFFIX, "suffix"),
    "another suffix": ({"type": "BPEDecoder", "suffix": "a"}, "suffix"),
    "suffix behind Replace": (sequence(literal("é", "</w>"), SUFFIX), "suffix"),
    "suffix before Replace and Fuse": (sequence(SUFFIX, literal("a", "b "), FUSE, strip(" ", 1)), "suffix"),
    "CTC": (CTC, "ctc"),
    "CTC without cleanup": ({**CTC, "cleanup": False}, "ctc"),
    "CTC behind Replace": (sequence(literal("x", "a"), CTC), "ctc"),
    "CTC before Replace and Fuse": (sequence(CTC, literal("a", "b "), FUSE, strip(" ", 1)), "ctc"),
}

HELD = {
    "Fuse and a longer Replace": sequence(FUSE, literal("ab", "X")),
    "byte fallback and a longer Replace": sequence(BYTE_FALLBACK, FUSE, literal("ab", "X")),
    "Fuse and a pattern": sequence(FUSE, regex(" +", " ")),
    "Fuse and an empty Replace": sequence(FUSE, literal("", "-")),
    "Strip behind unfused byte fallback": sequence(BYTE_FALLBACK, strip(" ", 1)),
    "Metaspace before byte fallback": sequence(metaspace(), BYTE_FALLBACK, FUSE),
    "Metaspace behind Fuse": sequence(FUSE, metaspace()),
    "WordPiece behind byte fallback": sequence(BYTE_FALLBACK, WORD_PIECE),
    "Fuse before byte level": sequence(FUSE, BYTE_LEVEL),
    "byte level twice": sequence(BYTE_LEVEL, BYTE_LEVEL),
    "suffix and CTC": sequence(SUFFIX, CTC),
    "suffix and first token": sequence(SUFFIX, metaspace()),
    "suffix before byte level": sequence(SUFFIX, BYTE_LEVEL),
    "Replace of U+FFFD behind byte level": sequence(BYTE_LEVEL, literal("\ufffd", "?")),
    "Strip of U+FFFD behind byte level": sequence(BYTE_LEVEL, strip("\ufffd", 1)),
}

DECODERS = {name: decoder for name, (decoder, _) in STREAMED.items()} | HELD


def built(decoder):
    file = word_level(WORDS, decoder=decoder, added=ADDED)
    tokenizer = load(file)
    spec = json.loads(file)
    return tokenizer, build_decoder(tokenizer, spec, Vocabulary(tokenizer, spec))


BUILT = {name: built(decoder) for name, decoder in DECODERS.items()}

IDS = st.lists(st.integers(0, len(WORDS) + 1), max_size=30)
BYTE_IDS = st.lists(
    st.sampled_from([i for i, word in enumerate(WORDS) if len(word) <= 1 or word.startswith("<0x")])
)
PIECE_SIZES = st.lists(st.integers(0, 5), min_size=1, max_size=30)


def streamed(sequence, ids, sizes):
    text, start, turn = "", 0, 0
    while start < len(ids):
        size = sizes[turn % len(sizes)] or (turn % 2)
        text += sequence.push(ids[start : start + size])
        start += size
        turn += 1
    return text + sequence.finish()


@pytest.mark.parametrize("name", STREAMED)
def test_a_decoder_is_streamed_in_its_mode_and_passes_the_self_check(name):
    _, decoder = BUILT[name]
    assert (decoder.mode, "self-check" in decoder.reason) == (STREAMED[name][1], False)


@pytest.mark.parametrize("name", HELD)
def test_a_decoder_that_may_change_text_already_sent_is_held_and_says_why(name):
    _, decoder = BUILT[name]
    assert decoder.mode == "held"
    assert "held and decoded at the end" in decoder.reason
    assert "self-check" not in decoder.reason


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=40, deadline=None)
@given(ids=IDS | BYTE_IDS, skip=st.booleans(), sizes=PIECE_SIZES)
def test_decode_and_any_pieces_of_a_stream_are_the_library_s_decode(name, ids, skip, sizes):
    tokenizer, decoder = BUILT[name]
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert decoder.decode(ids, skip_special_tokens=skip) == whole
    assert streamed(decoder.open(skip_special_tokens=skip, hold_byte_runs=True), ids, sizes) == whole
    prompt = streamed(decoder.open(skip_special_tokens=skip), ids, sizes)
    if decoder.mode == "byte-runs" and "\ufffd" in whole:
        # Promptly, another count of U+FFFD stands for the invalid bytes; nothing else may differ in pieces.
        assert prompt == streamed(decoder.open(skip_special_tokens=skip), ids, [1])
    else:
        assert prompt == whole


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=20, deadline=None)
@given(ids=IDS | BYTE_IDS, skip=st.booleans())
def test_raw_bytes_are_what_the_text_is_the_lossy_reading_of(name, ids, skip):
    _, decoder = BUILT[name]
    text = decoder.decode(ids, skip_special_tokens=skip)
    raw = decoder.raw_bytes(ids, skip_special_tokens=skip)
    if decoder.mode != "byte-runs" or "\ufffd" not in text:
        assert raw.decode("utf-8", "replace") == text


@pytest.mark.parametrize("name", DECODERS)
def test_an_unknown_id_that_is_replaced_is_one_u_fffd(name):
    _, decoder = BUILT[name]
    ids = [2, decoder.replacement_id, 6, decoder.replacement_id, 6]
    for skip in (False, True):
        whole = decoder.decode(ids, skip_special_tokens=skip)
        if "U+FFFD" not in name:  # those decoders take it away themselves
            assert whole.count("\ufffd") == 2
        assert streamed(decoder.open(skip_special_tokens=skip), ids, [1]) == whole


def test_unknown_neighbours_do_not_fall_together_as_equal_ctc_letters_do():
    _, decoder = BUILT["CTC"]
    assert decoder.decode([6, 6, *[decoder.replacement_id] * 2], skip_special_tokens=True) == "a\ufffd\ufffd"


@pytest.mark.parametrize("name", DECODERS)
def test_ids_above_the_replacement_id_are_an_error_and_never_another_id(name):
    _, decoder = BUILT[name]
    for token_id in (decoder.replacement_id + 1, 2**32 - 1):
        with pytest.raises(IndexError):
            decoder.decode([2, token_id], skip_special_tokens=True)
        sequence = decoder.open(skip_special_tokens=True)
        with pytest.raises(IndexError):
            sequence.push([2, token_id])


def test_a_strip_at_the_end_is_refused_since_the_library_panics_on_it():
    bad = {"type": "Strip", "content": " ", "start": 0, "stop": 1}
    for decoder in (bad, sequence(FUSE, sequence(bad))):
        with pytest.raises(TokenizerFileError, match="stop > 0"):
            plan_decoder(decoder)


def test_a_stage_of_another_version_is_held():
    plan = plan_decoder({"type": "Reverse"})
    assert plan.kind == "held"
    assert "Reverse" in plan.reason


def test_nested_sequences_are_laid_flat():
    assert decoder_stages(sequence(sequence(FUSE, sequence()), MARK)) == (FUSE, MARK)
    assert decoder_stages(None) == decoder_stages(sequence()) == ()


def test_every_byte_has_a_letter_of_its_own():
    assert [byte_level_bytes(BYTE_TO_LETTER[byte]) for byte in range(256)] == [
        bytes((b,)) for b in range(256)
    ]


@given(st.text(st.characters(max_codepoint=0x180) | st.characters(codec="utf-8"), max_size=4))
def test_letters_are_read_as_the_library_reads_them(string):
    library = load(word_level(decoder=BYTE_LEVEL)).decoder
    assert byte_level_bytes(string).decode("utf-8", "replace") == library.decode([string])


@pytest.mark.parametrize(
    ("string", "byte"),
    [
        *[
            ("<0x00>", 0),
            ("<0xFF>", 255),
            ("<0xe4>", 0xE4),
            ("<0x+A>", 10),
            ("<0x++>", None),
            ("<0x-1>", None),
        ],
        *[
            ("<0x1_>", None),
            ("<0x 1>", None),
            ("<0x٣٣>", None),
            ("<0x1>", None),
            ("<0x001>", None),
            ("", None),
        ],
        *[("<0xG0>", None), ("[0x41]", None), ("<0x41", None), ("<0X41>", None)],
    ],
)
def test_byte_tokens_are_parsed_as_the_library_parses_them(string, byte):
    assert fallback_byte(string) == byte
    text = load(word_level(decoder=BYTE_FALLBACK)).decoder.decode([string])
    assert (text == string) == (byte is None)
