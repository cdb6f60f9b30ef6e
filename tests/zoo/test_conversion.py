"""Conversion of other formats to tokenizer.json, on files small enough to read."""

import json
import struct

import pytest

from tests.tokenizers_for_tests import BYTE_TO_LETTER, load
from tests.zoo.conversion import BYTE, CONTROL, NORMAL, UNKNOWN, gpt2, sentencepiece


def test_gpt2_files_become_a_byte_level_bpe_with_the_given_ids():
    vocab = {letter: n for n, letter in enumerate(BYTE_TO_LETTER.values())} | {
        "th": 256,
        "the": 257,
        "<|endoftext|>": 258,
    }
    files = {"encoder.json": json.dumps(vocab).encode(), "vocab.bpe": b"#version: 0.2\nt h\nth e\n"}
    tokenizer = load(gpt2(files))
    assert tokenizer.encode("the<|endoftext|>tha").ids == [257, 258, 256, 97]


def _field(number, value):
    if isinstance(value, int):
        return bytes([*_varint(number << 3), *_varint(value)])
    if isinstance(value, float):
        return bytes(_varint(number << 3 | 5)) + struct.pack("<f", value)
    return bytes([*_varint(number << 3 | 2), *_varint(len(value))]) + value


def _varint(value):
    while value >= 0x80:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value


def _model(pieces, *, model_type=1, byte_fallback=0):
    data = b"".join(
        _field(1, _field(1, piece.encode()) + _field(2, score) + (_field(3, kind) if kind != NORMAL else b""))
        for piece, score, kind in pieces
    )
    return (
        data
        + _field(2, _field(3, model_type) + _field(35, byte_fallback))
        + _field(3, _field(2, b"") + _field(3, 1))
    )


PIECES = [
    ("<unk>", 0.0, UNKNOWN),
    ("<s>", 0.0, CONTROL),
    ("▁", -3.0, NORMAL),
    ("▁hi", -1.0, NORMAL),
    ("h", -4.0, NORMAL),
]


def test_sentencepiece_pieces_keep_their_ids_and_control_pieces_are_special():
    tokenizer = load(sentencepiece({"sp.model": _model(PIECES)}))
    encoding = tokenizer.encode("  hi   h ")
    assert encoding.tokens == ["▁hi", "▁", "h"]
    assert encoding.ids == [3, 2, 4]
    assert {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special} == {
        "<unk>",
        "<s>",
    }


def test_sentencepiece_byte_fallback_is_taken_over():
    pieces = [*PIECES, *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256))]
    tokenizer = load(sentencepiece({"sp.model": _model(pieces, byte_fallback=1)}))
    assert tokenizer.encode("é").tokens == ["▁", "<0xC3>", "<0xA9>"]


def test_a_sentencepiece_model_that_is_not_unigram_is_refused():
    with pytest.raises(ValueError, match="not Unigram"):
        sentencepiece({"sp.model": _model(PIECES, model_type=2)})
