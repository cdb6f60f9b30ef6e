"""Reading a tokenizer file: what is refused, what is ignored, what is said about it."""

import gzip
import hashlib
import json
import os

import pytest

from tests.tokenizers_for_tests import (
    added_token,
    bpe_model,
    bpe_without_unk,
    byte_fallback_bpe,
    byte_level_bpe,
    template,
    tokenizer_json,
    unigram,
    word_level,
    word_piece,
    write,
)
from tokend_server.engine import tokenizer_file
from tokend_server.engine.artifact import REFERENCE_VERSION, read_artifact, unknown_token_of
from tokend_server.engine.frozen import FrozenTokenizer
from tokend_server.errors import TokenizerFileError


def changed(text, **parts):
    return json.dumps({**json.loads(text), **parts})


def refusal(path):
    with pytest.raises(TokenizerFileError) as refused:
        read_artifact(path)
    line = str(refused.value)
    assert "\n" not in line
    assert line.startswith(f"{path}: ")
    assert line.endswith(f"(tokenizers {REFERENCE_VERSION})")
    return line


def test_a_sound_file_is_read_and_fingerprinted(tmp_path):
    path = write(tmp_path, byte_level_bpe())
    artifact = read_artifact(path)
    assert artifact.data == path.read_bytes()
    assert artifact.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    assert artifact.spec["model"]["type"] == "BPE"
    assert [(token.id, token.content, token.special) for token in artifact.added_tokens] == [
        (262, "<|bos|>", True),
        (263, "<|end|>", True),
        (264, "<tool>", False),
    ]
    assert artifact.tokenizer.encode("hi").ids == [262, 104, 105]
    assert artifact.warnings == ()
    assert (artifact.ignored_truncation, artifact.ignored_padding) == ("", "")


def test_the_name_is_the_stem_or_the_folder_of_a_tokenizer_json(tmp_path, monkeypatch):
    folder = tmp_path / "gpt-9"
    folder.mkdir()
    assert read_artifact(write(folder, byte_level_bpe(), "sprout.json")).name == "sprout"
    path = write(folder, byte_level_bpe())
    assert read_artifact(path).name == "gpt-9"
    monkeypatch.chdir(folder)
    assert read_artifact(path.relative_to(folder)).name == "gpt-9"


def test_without_spec_drops_the_parsed_file_alone(tmp_path):
    artifact = read_artifact(write(tmp_path, byte_level_bpe()))
    light = artifact.without_spec()
    assert light.spec == {}
    assert light.tokenizer is artifact.tokenizer
    assert light.fingerprint == artifact.fingerprint


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe{}", "not UTF-8: a bad byte at 0"),
        (gzip.compress(b"{}", mtime=0), "not UTF-8"),
        ("{}".encode("utf-16"), "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"[" * 100_000, "not JSON: depth limit exceeded"),
        (b"[]", 'no "model" object'),
        (b"{}", 'no "model" object'),
        (b'{"model": "gpt"}', 'no "model" object'),
        (
            changed(byte_level_bpe(), version="2.0").encode(),
            'its "version" is \'2.0\', and only "1.0" is known',
        ),
        (changed(byte_level_bpe(), version=None).encode(), 'its "version" is None'),
        (changed(byte_level_bpe(), decoder={"type": "Nonsense"}).encode(), "the library refuses it"),
        (tokenizer_json(bpe_model({"a": 0}, [("a", "b")])).encode(), "Token `b` out of vocabulary"),
        (
            changed(byte_level_bpe(), added_tokens=["<|end|>"]).encode(),
            "an entry of its added_tokens has not",
        ),
        (
            changed(byte_level_bpe(), added_tokens=[{"id": 5}]).encode(),
            "id (int), content (str), special (bool)",
        ),
        (b'{"model": NaN}', "not JSON"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused_with_one_line(tmp_path, content, reason):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    assert reason in refusal(path)


def test_a_missing_file_a_folder_and_a_device_are_refused(tmp_path):
    assert "no such file" in refusal(tmp_path / "none.json")
    assert "a folder" in refusal(tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "not a regular file" in refusal(pipe)


def test_a_file_over_the_limit_is_refused_and_one_at_it_is_read(tmp_path, monkeypatch):
    path = write(tmp_path, byte_level_bpe())
    monkeypatch.setattr(tokenizer_file, "FILE_LIMIT_BYTES", path.stat().st_size)
    assert read_artifact(path).name
    monkeypatch.setattr(tokenizer_file, "FILE_LIMIT_BYTES", path.stat().st_size - 1)
    assert "larger than" in refusal(path)


def test_a_panic_of_the_library_at_load_is_a_refusal(tmp_path):
    text = changed(byte_level_bpe(), normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})
    assert "the library panics on it" in refusal(write(tmp_path, text))


@pytest.mark.parametrize(
    ("added", "reason"),
    [
        (
            [added_token(262, "<|bos|>"), added_token(999, "<|end|>")],
            "'<|end|>' has id 999 in the file and id 263",
        ),
        ([added_token(263, "<|bos|>"), added_token(262, "<|end|>")], "has id 263 in the file and id 262"),
        ([added_token(262, "<|bos|>"), added_token(263, "<|bos|>")], "has id 263 in the file and id 262"),
        ([added_token(262, "<|bos|>"), added_token(263, "")], "has id 263 in the file and no id"),
    ],
)
def test_an_added_token_under_another_id_than_the_files_is_refused(tmp_path, added, reason):
    assert reason in refusal(write(tmp_path, byte_level_bpe(added=added)))


def test_truncation_and_padding_of_the_file_are_ignored_and_named(tmp_path):
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": "BatchLongest",
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    artifact = read_artifact(write(tmp_path, word_piece(truncation=truncation, padding=padding)))
    assert json.loads(artifact.ignored_truncation) == truncation
    assert json.loads(artifact.ignored_padding) == padding
    assert ["truncation" in artifact.warnings[0], "padding" in artifact.warnings[1]] == [True, True]
    batch = artifact.tokenizer.encode_batch(["hello world , . !", "hello"])
    assert [encoding.ids for encoding in batch] == [[2, 5, 6, 7, 8, 9, 3], [2, 5, 3]]


def test_dropout_of_the_file_is_ignored_and_named(tmp_path):
    text = tokenizer_json(bpe_model({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.9))
    artifact = read_artifact(write(tmp_path, text))
    assert {tuple(artifact.tokenizer.encode("ab").ids) for _ in range(50)} == {(2,)}
    assert any("dropout" in warning for warning in artifact.warnings)


def without_byte(text, letter):
    spec = json.loads(text)
    del spec["model"]["vocab"][letter]
    return json.dumps(spec)


def without_unk(text):
    spec = json.loads(text)
    spec["model"]["unk_id"] = None
    return json.dumps(spec)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (bpe_without_unk(), "dropped silently"),
        (without_byte(byte_level_bpe(added=[], post=False), "ÿ"), "1 of the 256 bytes"),
        (word_level(unk_token=None), "refused"),
        (without_unk(unigram()), "refused"),
        (byte_level_bpe(), None),
        (byte_fallback_bpe(), None),
        (word_piece(), None),
        (word_level(), None),
        (unigram(), None),
    ],
)
def test_text_that_the_vocabulary_cannot_express_is_warned_of(tmp_path, text, warning):
    warnings = read_artifact(write(tmp_path, text)).warnings
    assert len(warnings) == (warning is not None)
    assert warning is None or warning in warnings[0]


def test_added_tokens_that_the_normalizer_makes_alike_are_warned_of(tmp_path):
    def warnings(*contents, **flags):
        added = [added_token(262 + n, content, **flags) for n, content in enumerate(contents)]
        text = byte_level_bpe(normalizer={"type": "Lowercase"}, added=added, post=False)
        return read_artifact(write(tmp_path, text)).warnings

    (warning,) = warnings("<A>", "<b>", "<a>", normalized=True)
    assert "'<A>', '<a>':" in warning
    (warning,) = warnings("<A>", "<a>", "<B>", "<b>", normalized=True)
    assert "and of 1 more groups" in warning
    assert warnings("<A>", "<a>", normalized=False) == ()
    assert warnings("<A>", "<b>", normalized=True) == ()


@pytest.mark.parametrize(
    ("text", "unk"),
    [(unigram(), "<unk>"), (word_piece(), "[UNK]"), (byte_level_bpe(), None), (without_unk(unigram()), None)],
)
def test_the_unk_token_is_found_in_every_kind_of_model(text, unk):
    assert unknown_token_of(json.loads(text)["model"]) == unk


def test_a_post_processor_on_which_the_library_panics_is_a_refusal(tmp_path):
    text = changed(byte_level_bpe(), post_processor=template("<x> A", "A B", {}))
    path = write(tmp_path, text)
    with pytest.raises(TokenizerFileError, match="panics on its post-processor") as refused:
        FrozenTokenizer.load(path)
    assert str(refused.value).startswith(f"{path}: ")
