"""Each deviation of docs/fidelity.md, once: what the library gives, and what the service gives in its place.

The rules behind them have tests of their own beside the code; this is the page of docs/fidelity.md that runs.
"""

import json
import re
from pathlib import Path

import pytest

from tests.tokenizers_for_tests import (
    BF,
    BL,
    BLO,
    WP,
    added_token,
    bpe_model,
    bpe_without_unk,
    byte_level_bpe,
    load,
    template,
    tokenizer_json,
    unigram,
    word_level,
    word_level_with_rewriting_decoder,
)
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend_server.config import Settings
from tokend_server.engine.decoding.byte_runs import MAX_HELD_RUN_BYTES
from tokend_server.engine.offsets import OffsetUnit
from tokend_server.engine.reference import EncodeOptions
from tokend_server.engine.special_tokens import SpecialTokenPolicy
from tokend_server.engine.truncation import Truncation
from tokend_server.errors import InvalidOption, TokenizerFileError, UnknownTokenId
from tokend_server.service.decode import DecodeOptions, DecodeService, UnknownIds
from tokend_server.service.limits import Limits

ROOT = Path(__file__).parents[2]
STRAY = [198, 156, 243, 287]
"""In BF: the bytes C3 99 (Ù) and a stray F0, then a word."""


def limits() -> Limits:
    return Limits(**{name: getattr(Settings(), name) for name in Limits.__slots__})


def encode(tokenizer, text, pair=None, **options):
    return tokenizer.encoder.encode([text], None if pair is None else [pair], EncodeOptions(**options))[0]


def decode(tokenizer, ids, **options):
    return DecodeService(tokenizer, limits()).decode(ids, b"", DecodeOptions(**options))


def streamed(tokenizer, ids, *, prompt_ids=(), hold=False):
    sequence = tokenizer.decoder.open(skip_special_tokens=True, hold_byte_runs=hold, prompt_ids=prompt_ids)
    return [*(sequence.push([token_id]) for token_id in ids), sequence.finish()]


# Encoding


def test_control_tokens_in_a_text_stay_text_by_default(frozen):
    assert load(BL()).encode("a<|end|>").ids == [262, 97, 263]
    kept = encode(frozen(BL()), "a<|end|>")
    assert (kept.ids, kept.special_text_count) == ([262, 97, *b"<|end|>"], 1)
    assert encode(frozen(BL()), "a<|end|>", policy=SpecialTokenPolicy.PARSE).ids == [262, 97, 263]


def test_tokens_between_bars_stay_text_though_the_file_does_not_call_them_special(frozen):
    file = byte_level_bpe(added=[added_token(262, "<｜User｜>", special=False)], post=False)
    library = load(file)
    library.encode_special_tokens = True
    assert library.encode("<｜User｜>").ids == [262], "the library's own switch does not reach it"
    assert encode(frozen(file), "<｜User｜>").ids == [*"<｜User｜>".encode()]


def test_a_control_token_that_the_model_itself_holds_stays_text(frozen):
    library = load(unigram())
    library.encode_special_tokens = True
    assert 1 in library.encode("hello<s>").ids, "the library's own switch does not reach it"
    kept = encode(frozen(unigram()), "hello<s>")
    assert 1 not in kept.ids
    assert kept.special_text_count == 1


def test_the_unk_token_may_come_out_of_a_text(frozen):
    kept = encode(frozen(unigram()), "hellö<unk>")
    assert 0 in kept.ids


def test_truncation_and_padding_of_the_file_are_ignored(frozen):
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    file = WP(truncation=truncation, padding=padding)
    assert load(file).encode("hello world , .").ids == [2, 5, 6, 3, 0, 0, 0, 0]
    assert encode(frozen(file), "hello world , .").ids == [2, 5, 6, 7, 8, 3]
    assert json.loads(frozen(file).ignored_truncation) == truncation
    assert json.loads(frozen(file).ignored_padding) == padding
    assert len(frozen(file).warnings) == 2


def test_dropout_of_the_file_is_ignored(frozen):
    file = tokenizer_json(bpe_model({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.5))
    library = load(file)
    assert len({tuple(library.encode("ab" * 20).ids) for _ in range(20)}) > 1
    assert encode(frozen(file), "ab" * 20).ids == [2] * 20
    assert any("dropout" in warning for warning in frozen(file).warnings)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_truncation_with_no_room_for_the_added_tokens_is_refused(frozen, max_tokens):
    library = load(WP())
    library.enable_truncation(max_tokens)
    assert library.encode("hello world").ids == [2, 5, 6, 3], "the library does not truncate, without a word"
    with pytest.raises(InvalidOption, match="at least 2"):
        encode(frozen(WP()), "hello world", truncation=Truncation(max_tokens=max_tokens))


def test_a_template_that_repeats_the_text_cannot_be_truncated(frozen):
    file = json.dumps({**json.loads(BL()), "post_processor": template("A A", "A B", {})})
    library = load(file)
    library.enable_truncation(3)
    assert library.encode("hi").ids == [*b"hihi"], "four ids where three were asked for"
    assert encode(frozen(file), "hi").ids == [*b"hihi"]
    with pytest.raises(InvalidOption, match="repeats the text"):
        encode(frozen(file), "hi", truncation=Truncation(max_tokens=3))


def test_text_without_an_unk_token_is_refused_where_the_library_raises(frozen):
    file = word_level(unk_token=None)
    with pytest.raises(Exception, match="Missing"):
        load(file).encode("a zz")
    with pytest.raises(InvalidOption, match="no unk token"):
        encode(frozen(file), "a zz")


def test_text_that_the_library_drops_is_dropped_with_a_warning_at_the_start(frozen):
    file = bpe_without_unk()
    assert encode(frozen(file), "a zz a").ids == load(file).encode("a zz a").ids == [0, 0]
    assert any("dropped silently" in warning for warning in frozen(file).warnings)


def test_offsets_under_a_composing_normalizer_are_the_librarys(frozen):
    file = byte_level_bpe(normalizer={"type": "NFC"}, post=False)
    text = "e\u0301x"
    encoded = encode(frozen(file), text, offsets=OffsetUnit.CODE_POINTS)
    spans = list(zip(encoded.starts, encoded.ends, strict=True))
    # The accent belongs to no token: the good spans would be (0, 2), (0, 2), (2, 3).
    assert spans == load(file).encode(text).offsets == [(0, 1), (0, 1), (2, 3)]


# Decoding


def test_an_unknown_id_is_an_error_where_the_library_drops_it(frozen):
    assert load(BL()).decode([104, 5000, 105]) == "hi"
    with pytest.raises(UnknownTokenId) as refused:
        decode(frozen(BL()), [104, 5000, 105])
    assert refused.value.metadata == {"id": "5000", "index": "1", "max_id": "264"}
    skipped = decode(frozen(BL()), [104, 5000, 105], unknown_ids=UnknownIds.SKIP)
    assert (skipped.text, skipped.unknown_id_count) == ("hi", 1)
    replaced = decode(frozen(BL()), [104, 5000, 105], unknown_ids=UnknownIds.REPLACE)
    assert (replaced.text, replaced.unknown_id_count) == ("h\ufffdi", 1)


def test_a_hole_in_the_ids_is_unknown_too(frozen):
    file = tokenizer_json({"type": "WordLevel", "vocab": {"a": 0, "b": 2}, "unk_token": "a"})
    assert load(file).decode([0, 1, 2]) == "a b"
    with pytest.raises(UnknownTokenId):
        decode(frozen(file), [0, 1, 2])


def test_ids_are_32_bits_and_wider_ones_wrap_before_the_server_sees_them():
    # Field 1, packed: the varint of 2**32 + 104.
    wide = b"\x0a\x05\xe8\x80\x80\x80\x10"
    assert list(pb.DecodeRequest.FromString(wide).ids) == [104]


def test_a_prompt_stream_keeps_what_it_sent_of_an_invalid_byte_run(frozen):
    whole = load(BF()).decode(STRAY)
    assert whole == "\ufffd\ufffd\ufffd hi"
    assert streamed(frozen(BF()), STRAY) == ["", "Ù", "", "\ufffd hi", ""]
    assert "".join(streamed(frozen(BF()), STRAY, hold=True)) == whole
    assert decode(frozen(BF()), STRAY).text == whole


def test_a_held_run_longer_than_the_cap_is_judged_in_pieces(frozen):
    ids = [*[3 + byte for byte in b"a" * MAX_HELD_RUN_BYTES], 3 + 0xFF, 287]
    library = load(BF()).decode(ids)
    assert library == "\ufffd" * (MAX_HELD_RUN_BYTES + 1) + " hi"
    assert decode(frozen(BF()), ids).text == library
    assert "".join(streamed(frozen(BF()), ids, hold=True)) == "a" * MAX_HELD_RUN_BYTES + "\ufffd hi"


def test_raw_bytes_of_an_invalid_run_are_the_tokens_own(frozen):
    decoded = decode(frozen(BF()), STRAY, include_bytes=True)
    assert decoded.text == "\ufffd\ufffd\ufffd hi"
    assert decoded.raw_bytes == b"\xc3\x99\xf0 hi"


def test_an_added_token_with_letters_of_the_byte_alphabet_decodes_as_in_the_library(frozen):
    assert decode(frozen(BLO()), [263]).text == load(BLO()).decode([263]) == "il\ufffdveyou"
    assert frozen(BLO()).vocabulary.token_bytes(263) == "ilÖveyou".encode()


def test_prompt_text_is_not_sent_and_what_it_left_open_is_completed(frozen):
    prompt = [*b"Secret ", 0xF0, 0x9F]
    assert streamed(frozen(BL()), [0x8C, 0xB6, 111], prompt_ids=prompt) == ["", "🌶", "o", ""]
    assert streamed(frozen(BL()), [111], prompt_ids=prompt) == ["o", ""], (
        "the prompt's U+FFFD is the prompt's"
    )


def test_a_decoder_that_rewrites_text_already_sent_is_held_to_the_end(frozen):
    file = word_level_with_rewriting_decoder()
    assert streamed(frozen(file), [1, 2, 3]) == ["", "", "", "Xc"]
    assert load(file).decode([1, 2, 3]) == "Xc"
    assert frozen(file).decoder.mode == "held"


# Files


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (byte_level_bpe(added=[added_token(999, "<|end|>")], post=False), "id 999 in the file and id 262"),
        (
            word_level(decoder={"type": "Strip", "content": " ", "start": 0, "stop": 1}),
            "on which the library panics",
        ),
        (json.dumps({**json.loads(BL()), "version": "2.0"}), 'only "1.0" is known'),
    ],
    ids=["another id in memory", "a decoder that panics", "another version"],
)
def test_a_file_that_would_be_served_wrongly_is_refused(frozen, file, reason):
    with pytest.raises(TokenizerFileError, match=re.escape(reason)):
        frozen(file)


# The page


def test_every_test_that_the_page_names_exists():
    page = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"\btest_[a-z0-9_]+(?!\w|\.py|/)", page))
    assert named
    assert {name for name in named if f"def {name}(" not in tests} == set()


def test_every_deviation_here_is_on_the_page():
    page = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    here = re.findall(r"^def (test_\w+)\(", Path(__file__).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [name for name in here[:-2] if name not in page] == []
