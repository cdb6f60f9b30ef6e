"""Tokenizer files of other formats, rewritten as `tokenizer.json`."""

import base64
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

from tests.tokenizers_for_tests import added_token, bpe_model, metaspace, tokenizer_json


def gpt2(files: dict[str, bytes]) -> str:
    """GPT-2's `encoder.json` (string to id) and `vocab.bpe` (a head line, then one merge a line)."""
    vocab: dict[str, int] = json.loads(files["encoder.json"])
    lines = files["vocab.bpe"].decode("utf-8").split("\n")[1:]
    merges = [(left, right) for left, right in (line.split(" ") for line in lines if line)]
    end = "<|endoftext|>"
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return tokenizer_json(
        bpe_model(vocab, merges),
        pre_tokenizer=byte_level,
        post_processor=byte_level,
        decoder=byte_level,
        added=[added_token(vocab[end], end)],
    )


Field = tuple[int, Any]


def _fields(data: bytes) -> Iterator[Field]:
    """The fields of one protobuf message: number, and value as int (varint), 4 or 8 bytes, or bytes.

    Source: the protobuf wire format; types 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes.
    """
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        yield key >> 3, data[at : at + size]
        at += size


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""The types of a sentencepiece entry."""


def sentencepiece(files: dict[str, bytes]) -> str:
    """A sentencepiece Unigram model: pieces with scores, and the compiled character map of its normalizer.

    Source: sentencepiece's `ModelProto`: 1 pieces (1 piece, 2 score, 3 type), 2 trainer (3 model type, 35 byte
    fallback, 40 unk id), 3 normalizer (2 charsmap, 3 dummy prefix, 4 drop extra white space).
    """
    (model,) = files.values()
    vocab: list[list[Any]] = []
    types: list[int] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(model):
        if number == 1:
            piece = dict(_fields(value))
            vocab.append([piece[1].decode("utf-8"), struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0])
            types.append(piece.get(3, NORMAL))
        elif number == 2:
            trainer = dict(_fields(value))
        elif number == 3:
            normalizer = dict(_fields(value))
    if trainer.get(3, 1) != 1:
        raise ValueError(f"sentencepiece model type {trainer[3]} is not Unigram (1)")
    stages: list[dict[str, Any]] = []
    if normalizer.get(2):
        stages.append(
            {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(normalizer[2]).decode()}
        )
    if normalizer.get(4, 1):
        stages.append({"type": "Strip", "strip_left": True, "strip_right": True})
        stages.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    part = metaspace("always" if normalizer.get(3, 1) else "never")
    special = [n for n, kind in enumerate(types) if kind in {UNKNOWN, CONTROL}]
    added = [added_token(n, vocab[n][0]) for n in special]
    added += [
        added_token(n, vocab[n][0], special=False) for n, kind in enumerate(types) if kind == USER_DEFINED
    ]
    return tokenizer_json(
        {
            "type": "Unigram",
            "unk_id": types.index(UNKNOWN),
            "vocab": vocab,
            "byte_fallback": bool(trainer.get(35, 0)),
        },
        normalizer={"type": "Sequence", "normalizers": stages},
        pre_tokenizer=part,
        decoder=part,
        added=sorted(added, key=lambda entry: entry["id"]),
    )


CONVERSIONS: dict[str, Callable[[dict[str, bytes]], str]] = {"gpt2": gpt2, "sentencepiece": sentencepiece}
"""Each takes the files by their bare names and returns the text of a tokenizer.json."""
