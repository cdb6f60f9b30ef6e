"""Special tokens in a text: what a user types never becomes a control token, unless the call asks for it."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokend
from tests.tokenizers_for_tests import (
    BL,
    WORD_PIECES,
    WP,
    added_token,
    bpe_model,
    byte_level_bpe,
    load,
    tokenizer_json,
    unigram,
    word_piece,
)
from tests.zoo import catalogue as zoo

BOS, END, TOOL = 262, 263, 264
TYPED = "a<|end|>b"


def ids_of(client, text, **options):
    return client.encode(text, **{"add_special_tokens": False, **options}).ids


# The three policies


def test_a_typed_marker_is_text_unless_the_call_asks_for_the_token(client_of):
    client = client_of(BL())
    assert ids_of(client, TYPED) == [*TYPED.encode()]
    assert ids_of(client, TYPED, special_tokens="parse") == [97, END, 98]
    assert ids_of(client, TYPED, allowed_special_tokens=["<|end|>"]) == [97, END, 98]
    with pytest.raises(tokend.SpecialTokenRejectedError) as refused:
        ids_of(client, "é" + TYPED, special_tokens="reject")
    assert (refused.value.metadata["token"], refused.value.metadata["position"]) == ("<|end|>", "2")


def test_text_about_special_tokens_never_fails_and_says_what_was_kept(client_of):
    encoded = client_of(BL()).encode("docs about <|end|> and <|bos|>, and <tool>")
    assert encoded.special_text_count == 2
    assert encoded.ids.count(BOS) == 1, "the one that the post-processor adds"
    assert END not in encoded.ids
    assert TOOL in encoded.ids, "an added token that controls nothing is a word like another"


@pytest.mark.parametrize(
    ("add", "policy", "ids"),
    [
        (True, "parse", [BOS, BOS, 104, 105]),
        (False, "parse", [BOS, 104, 105]),
        (True, "text", [BOS, *b"<|bos|>hi"]),
        (False, "text", [*b"<|bos|>hi"]),
    ],
)
def test_a_text_that_begins_with_the_token_gets_another_one_only_by_the_flag(client_of, add, policy, ids):
    assert client_of(BL()).encode("<|bos|>hi", add_special_tokens=add, special_tokens=policy).ids == ids


# Calls beside each other

MIXED = [
    {"special_tokens": policy, "add_special_tokens": add, **more}
    for policy in ("text", "parse")
    for add in (True, False)
    for more in (
        {},
        {"allowed_special_tokens": ["<|bos|>"]},
        {"max_tokens": 3},
        {"max_tokens": 4, "truncation_side": "left"},
        {"offsets": "utf8_bytes"},
        {"include_tokens": True},
    )
]


def test_no_option_of_a_call_reaches_another_one_among_64_at_a_time(client_of):
    client = client_of(BL())
    text = "é<|bos|>a<|end|>b"
    alone = [client.encode(text, **options) for options in MIXED]
    assert len({tuple(encoded.ids) for encoded in alone}) > 8, "the options make a difference"
    order = [n % len(MIXED) for n in range(64 * 12)]
    random.Random(64).shuffle(order)
    with ThreadPoolExecutor(64) as pool:
        together = list(pool.map(lambda n: client.encode(text, **MIXED[n]), order))
    assert all(encoded == alone[n] for n, encoded in zip(order, together, strict=True))


def test_no_option_of_a_decode_reaches_another_one_among_64_at_a_time(client_of):
    client = client_of(BL())
    ids = [BOS, 97, 5000, END, 98]
    options = [
        {"skip_special_tokens": skip, "unknown_ids": unknown}
        for skip in (True, False)
        for unknown in ("skip", "replace")
    ]
    alone = [client.decode(ids, **each).text for each in options]
    assert alone == ["ab", "a\ufffdb", "<|bos|>a<|end|>b", "<|bos|>a\ufffd<|end|>b"]
    order = [n % len(options) for n in range(64 * 8)]
    with ThreadPoolExecutor(64) as pool:

        def run(n):
            whole = client.decode(ids, **options[n]).text
            return whole, "".join(client.decode_stream(ids, **options[n]))

        together = list(pool.map(run, order))
    assert together == [(alone[n], alone[n]) for n in order]


# Vocabularies that hold the string themselves


def held_by_merges() -> str:
    """Letters of which merges make `<s>`; the added token of the same name has its id."""
    vocab = {"<": 0, "s": 1, ">": 2, "<s": 3, "<s>": 4, "a": 5}
    model = bpe_model(vocab, [("<", "s"), ("<s", ">")])
    return tokenizer_json(model, decoder={"type": "Fuse"}, added=[added_token(4, "<s>")])


HELD = {
    "unigram": (unigram(), "hello<s>a", "<s>", 1),
    "unigram with bytes": (unigram(byte_fallback=True), "hello<s>a", "<s>", 1),
    "word pieces": (
        # The word splitter cuts brackets off, so the token that a text can reach is one without.
        word_piece(pieces=[*WORD_PIECES[:4], "mask", *WORD_PIECES[5:]]),
        "hello mask world",
        "mask",
        4,
    ),
    "merges": (held_by_merges(), "a<s>a", "<s>", 4),
    "whole words": (
        byte_level_bpe(
            ignore_merges=True, extra_vocab=["stop"], added=[added_token(262, "stop")], post=False
        ),
        "stop",
        "stop",
        262,
    ),
}


@pytest.mark.parametrize("name", HELD)
def test_a_model_that_holds_the_string_does_not_give_it_away(client_of, name):
    file, text, token, token_id = HELD[name]
    library = load(file)
    library.encode_special_tokens = True
    assert token_id in library.encode(text, add_special_tokens=False).ids, (
        "the library's own switch fails here"
    )
    client = client_of(file)
    kept = client.encode(text, add_special_tokens=False)
    assert token_id not in kept.ids
    assert kept.special_text_count == 1
    assert token_id in ids_of(client, text, special_tokens="parse")
    with pytest.raises(tokend.SpecialTokenRejectedError):
        ids_of(client, text, special_tokens="reject")
    assert client.lookup([token_id])[0].token == token, "its id stays its own"
    assert token in client.decode([token_id], skip_special_tokens=False).text


def test_the_word_for_what_is_unknown_may_come_out_of_a_text(client_of):
    assert 1 in ids_of(client_of(WP()), "hello жuk")
    assert 0 in ids_of(client_of(unigram()), "hello ж")


def test_pieces_in_brackets_are_text_for_word_pieces(client_of):
    client = client_of(WP())
    encoded = client.encode("hello [SEP] world", add_special_tokens=False)
    assert not {2, 3} & set(encoded.ids)
    assert encoded.special_text_count == 1
    assert ids_of(client, "hello [SEP] world", special_tokens="parse") == [5, 3, 6]


# Real files


@cache
def without(name, contents):
    """The library on this file without some of its added tokens."""
    spec = json.loads(zoo.require(name).read_text(encoding="utf-8"))
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] not in contents]
    spec["post_processor"] = None
    return load(json.dumps(spec))


REAL = {
    "deepseek-v3": (
        [
            "<｜User｜>",
            "<｜Assistant｜>",
            "<｜tool▁calls▁begin｜>",
            "<｜begin▁of▁sentence｜>",
            "<｜fim▁hole｜>",
        ],
        [],
    ),
    "qwen3": (["<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|vision_pad|>"], ["<think>", "<tool_call>"]),
    "gemma3": (["<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>"], ["<table>", "<mask>", "\n\n"]),
}


@pytest.mark.parametrize("name", REAL)
def test_markers_of_real_chat_formats_stay_text(client_of, name):
    markers, words = REAL[name]
    client = client_of(zoo.require(name))
    control = {token.token: token.id for token in client.tokenizer_info().control_tokens}
    assert set(markers) <= control.keys()
    assert not set(words) & control.keys(), "these are words of the text, unless the operator names them"
    library = without(name, tuple(control))
    for marker in markers:
        text = f"hi {marker}ok {marker[:-1]} {marker}"
        kept = client.encode(text, add_special_tokens=False)
        assert kept.ids == library.encode(text, add_special_tokens=False).ids
        assert kept.special_text_count == 2
        assert ids_of(client, text, special_tokens="parse").count(control[marker]) == 2
        with pytest.raises(tokend.SpecialTokenRejectedError) as refused:
            ids_of(client, text, special_tokens="reject")
        assert refused.value.metadata["token"] == marker
        assert refused.value.metadata["position"] == "3"
    for word in words:
        assert client.lookup(tokens=[word])[0].id in ids_of(client, f"hi {word}")


@settings(max_examples=40)
@given(data=st.data())
@pytest.mark.parametrize("name", REAL)
def test_no_text_brings_a_control_token_out_of_a_real_file(client_of, name, data):
    client = client_of(zoo.require(name))
    control = {token.token: token.id for token in client.tokenizer_info().control_tokens}
    marker = st.sampled_from(sorted(control))
    part = marker | marker.map(lambda token: token[:-1]) | st.text(max_size=5)
    text = "".join(data.draw(st.lists(part, max_size=6)))
    kept = client.encode(text, add_special_tokens=False)
    assert not set(control.values()) & set(kept.ids)
    assert kept.ids == without(name, tuple(control)).encode(text, add_special_tokens=False).ids


def test_the_operator_can_make_control_tokens_of_the_tags_of_a_real_file(client_of):
    client = client_of(zoo.require("qwen3"), "--control-tokens", "/<.+>/")
    think = client.lookup(tokens=["<think>"])[0]
    assert think.control
    assert think.id not in ids_of(client, "<think>well</think>")
