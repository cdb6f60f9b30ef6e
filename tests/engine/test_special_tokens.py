"""Which tokens are control tokens, and the cheap look whether a text may hold one."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenizers_for_tests import added_token, byte_level_bpe, load, unigram, write
from tokend_server.engine.artifact import read_artifact
from tokend_server.engine.special_tokens import TextFilter, _any_of, select_control_tokens
from tokend_server.engine.tokenizer_file import AddedTokenSpec
from tokend_server.errors import TokenizerFileError

MARKERS = [
    ("<|bos|>", True),
    ("<|User|>", False),
    ("<｜User｜>", False),
    ("<｜tool▁sep｜>", False),
    ("<think>", False),
    ("[INST]", False),
    ("<table>", False),
    ("tool", False),
    ("<||", False),
    ("[x", False),
]


def artifact_with(folder, contents, **options):
    added = [
        added_token(262 + n, content, special=special, **options)
        for n, (content, special) in enumerate(contents)
    ]
    return read_artifact(write(folder, byte_level_bpe(added=added, post=False)))


def test_special_tokens_and_those_between_bars_are_control_tokens(tmp_path):
    control = select_control_tokens(artifact_with(tmp_path, MARKERS))
    assert dict(control.ids) == {"<|bos|>": 262, "<|User|>": 263, "<｜User｜>": 264, "<｜tool▁sep｜>": 265}


def test_bracketed_tokens_that_are_left_out_are_named(tmp_path):
    assert select_control_tokens(artifact_with(tmp_path, MARKERS)).left_out == (
        "<think>",
        "[INST]",
        "<table>",
    )


def test_the_operator_adds_tokens_by_name_and_by_pattern(tmp_path):
    artifact = artifact_with(tmp_path, MARKERS)
    assert "tool" in select_control_tokens(artifact, ["tool"]).ids
    more = select_control_tokens(artifact, ["/<.+>/", "[INST]"])
    assert {"<think>", "<table>", "[INST]"} <= more.ids.keys()
    assert more.left_out == ()


def test_a_token_of_the_model_alone_can_be_named(tmp_path):
    artifact = read_artifact(write(tmp_path, unigram()))
    assert "<pad>" not in select_control_tokens(artifact).ids
    assert select_control_tokens(artifact, ["<pad>"]).ids["<pad>"] == 7


@pytest.mark.parametrize("item", ["<nobody>", "/<no.+body>/", "/(/", "", "//"])
def test_a_setting_that_names_no_token_is_refused(tmp_path, item):
    with pytest.raises(TokenizerFileError, match=re.escape(repr(item))):
        select_control_tokens(artifact_with(tmp_path, MARKERS), [item])


@given(
    contents=st.lists(
        st.text(alphabet="<|ab>é", min_size=1, max_size=6), min_size=1, max_size=12, unique=True
    ),
    text=st.text(alphabet="<|ab>é", max_size=40),
)
def test_the_search_for_many_literals_finds_exactly_what_holds_one(contents, text):
    found = re.search(_any_of(sorted(contents), 0), text) is not None
    assert found == any(content in text for content in contents)


def test_the_search_for_deeply_nested_literals_compiles():
    contents = sorted("a" * n for n in range(1, 200)) + sorted("b" * n + "c" for n in range(200))
    assert re.search(_any_of(sorted(contents), 0), "bbbc")
    assert not re.search(_any_of(sorted(contents), 0), "bbb")


NORMALIZERS = [
    None,
    {"type": "NFC"},
    {"type": "NFKC"},
    {"type": "Lowercase"},
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    {"type": "Replace", "pattern": {"String": "x"}, "content": "|"},
    {"type": "Replace", "pattern": {"String": " "}, "content": ""},
    {"type": "Replace", "pattern": {"Regex": "q+"}, "content": "<"},
    {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "Prepend", "prepend": "▁"}]},
    {"type": "Sequence", "normalizers": []},
]
FRAGMENTS = [
    "<|K|>",
    "<|k|>",
    "<|\u212a|>",
    "＜|K|＞",
    "<xKx>",
    "< |K|>",
    "q|K|>",
    "<",
    "|",
    "K",
    ">",
    " ",
    "é",
    "x",
    "e\u0301",
]


@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=json.dumps)
@pytest.mark.parametrize("normalized", [True, False])
@given(parts=st.lists(st.sampled_from(FRAGMENTS), max_size=8))
def test_the_filter_never_misses_what_the_reference_would_match(normalizer, normalized, parts):
    text = "".join(parts)
    added = [
        added_token(262, "<|K|>", normalized=normalized),
        added_token(263, "<|e|>", normalized=normalized),
    ]
    reference = load(byte_level_bpe(added=added, post=False, normalizer=normalizer))
    tokens = [AddedTokenSpec(**entry) for entry in added]
    text_filter = TextFilter(["<|K|>", "<|e|>"], added_tokens=tokens, normalizer=normalizer)
    if not {262, 263}.isdisjoint(reference.encode(text).ids):
        assert text_filter.may_hold(text)


@pytest.mark.parametrize("normalizer", [None, NORMALIZERS[4], NORMALIZERS[5], NORMALIZERS[9]], ids=json.dumps)
def test_the_filter_lets_ordinary_text_pass(normalizer):
    token = AddedTokenSpec(**added_token(262, "<|K|>", normalized=True))
    text_filter = TextFilter(["<|K|>"], added_tokens=[token], normalizer=normalizer)
    assert not text_filter.may_hold("if a < b | c > d: <b>K</b>")
    assert not text_filter.may_hold("")
    assert text_filter.may_hold("x<|K|>")


def test_a_filter_for_no_tokens_passes_everything():
    assert not TextFilter([], added_tokens=[], normalizer={"type": "Lowercase"}).may_hold("<|bos|>")
