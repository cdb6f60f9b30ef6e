"""Spaces and pieces of words in a stream: at its start, behind skipped tokens, between sequences.

BF: 1 `<s>`, 2 `</s>`, 259 a word mark, 287 a word mark with `hi`. WP: 2 `[CLS]`, 5 `hello`, 6 `world`, 11 `##e`.
"""

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizers_for_tests import (
    BF,
    BFM,
    BL,
    WP,
    ctc,
    load,
    metaspace_words,
    suffix_bpe,
    unigram,
    word_level,
    word_level_with_rewriting_decoder,
)

BOS, EOS, MARK, HI = 1, 2, 259, 287

FILES = {
    "bytes": BL(),
    "byte runs": BF(),
    "byte runs, another normalizer": BFM(),
    "word pieces": WP(),
    "word pieces, spaces kept": WP(cleanup=False),
    "word marks, always": metaspace_words("always"),
    "word marks, at the first": metaspace_words("first"),
    "word marks, never": metaspace_words("never"),
    "unigram": unigram(),
    "unigram with bytes": unigram(byte_fallback=True),
    "word ends": suffix_bpe(),
    "speech": ctc(),
    "no decoder": word_level(),
    "rewriting": word_level_with_rewriting_decoder(),
}


@pytest.mark.parametrize(
    ("ids", "pieces"),
    [
        ([HI, HI, HI], ["hi", " hi", " hi", ""]),
        ([MARK], ["", ""]),
        ([MARK, MARK, HI], ["", " ", " hi", ""]),
        ([BOS, HI, HI], ["", "hi", " hi", ""]),
        ([HI, EOS, HI], ["hi", "", " hi", ""]),
        ([EOS, BOS, MARK, HI], ["", "", "", " hi", ""]),
    ],
    ids=[
        "between words",
        "nothing but a space is the empty text, as in Decode",
        "only the first of several spaces goes",
        "a skipped token at the start is not the first one",
        "a skipped token inside takes no space along",
        "several skipped tokens",
    ],
)
def test_only_the_space_at_the_very_start_of_a_sequence_goes(client_of, streamed, ids, pieces):
    assert streamed(client_of(BF()), [[token_id] for token_id in ids]) == pieces
    assert "".join(pieces) == load(BF()).decode(ids)


def test_each_sequence_of_a_stream_has_a_start_of_its_own(client_of, streamed):
    client = client_of(BF())
    for _ in range(2):
        assert streamed(client, [[HI], [HI]]) == ["hi", " hi", ""]


def test_a_prompt_is_the_start_so_what_follows_keeps_its_space(client_of, streamed):
    assert streamed(client_of(BF()), [[HI], [HI]], prompt_ids=[BOS, HI]) == [" hi", " hi", ""]
    assert streamed(client_of(BF()), [[HI]], prompt_ids=[BOS]) == ["hi", ""], (
        "a skipped prompt starts nothing"
    )
    assert streamed(client_of(WP()), [[11]], prompt_ids=[5]) == ["e", ""]


@pytest.mark.parametrize(
    ("ids", "pieces"),
    [
        ([11, 5], ["##e", " hello", ""]),
        ([2, 11], ["", "##e", ""]),
        ([10, 11], ["caf", "e", ""]),
        ([5, 7, 6, 8, 9], ["hello", ",", " world", ".", "!", ""]),
        ([12, 13, 14], ["don", " '", " t", ""]),
    ],
    ids=[
        "a continuation that is first keeps its prefix",
        "also behind a skipped token",
        "inside a word the prefix goes",
        "no space before punctuation, and none of it is sent first",
        "clean-up looks at one token at a time",
    ],
)
def test_word_pieces_come_as_decode_gives_them(client_of, streamed, ids, pieces):
    assert streamed(client_of(WP()), [[token_id] for token_id in ids]) == pieces
    assert "".join(pieces) == load(WP()).decode(ids)


def test_clean_up_is_the_files_and_never_ours(client_of):
    text = "x != y , z . n't"
    client = client_of(BL())
    assert client.decode(client.encode(text).ids).text == text
    assert client_of(WP()).decode([5, 7, 6, 9]).text == "hello, world!"
    assert client_of(WP(cleanup=False)).decode([5, 7, 6, 9]).text == "hello , world !"


def test_a_decoder_that_rewrites_across_tokens_waits_and_never_fails(client_of, streamed):
    client = client_of(word_level_with_rewriting_decoder())
    assert streamed(client, [[1], [2], [3]]) == ["", "", "", "Xc"]
    streaming = client.tokenizer_info().streaming
    assert streaming.mode == "held"
    assert "Replace" in streaming.reason


@pytest.mark.parametrize("messages", [[], [[]], [[], [262, 263], []]], ids=["none", "empty", "specials only"])
def test_nothing_to_say_is_the_empty_text(client_of, streamed, messages):
    assert "".join(streamed(client_of(BL()), messages)) == ""


@settings(max_examples=100)
@given(data=st.data(), skip=st.booleans())
def test_a_stream_is_what_decode_gives_for_every_way_of_decoding(client_of, streamed, data, skip):
    name = data.draw(st.sampled_from(sorted(FILES)))
    client, library = client_of(FILES[name]), load(FILES[name])
    ids = st.integers(0, library.get_vocab_size() - 1)
    messages = data.draw(st.lists(st.lists(ids, max_size=4), max_size=8))
    every = [*chain(*messages)]
    whole = library.decode(every, skip_special_tokens=skip)
    options = {"skip_special_tokens": skip, "byte_runs": "HOLD"}
    assert client.decode(every, skip_special_tokens=skip).text == whole
    assert "".join(streamed(client, messages, **options)) == whole


# Special tokens and bytes


@pytest.mark.parametrize(
    ("skip", "pieces"),
    [(True, ["", "", "é", ""]), (False, ["", "\ufffd<|end|>", "\ufffd", ""])],
    ids=["skipped: the bytes meet", "shown: the character is lost, and the rest is not"],
)
def test_a_special_token_between_the_bytes_of_a_character(client_of, streamed, skip, pieces):
    ids = [0xC3, 263, 0xA9]
    assert streamed(client_of(BL()), [[token_id] for token_id in ids], skip_special_tokens=skip) == pieces
    assert "".join(pieces) == load(BL()).decode(ids, skip_special_tokens=skip)


@settings(max_examples=80)
@given(
    text=st.text(min_size=1, max_size=12),
    places=st.lists(st.tuples(st.integers(0, 40), st.sampled_from([262, 263]))),
)
@pytest.mark.parametrize("file", [BL(), BF()], ids=["bytes", "byte runs"])
def test_skipped_tokens_anywhere_change_nothing(client_of, streamed, file, text, places):
    client = client_of(file)
    ids = client.encode(text, add_special_tokens=False).ids
    alone = client.decode(ids).text
    specials = {262: BOS, 263: EOS} if file == BF() else {262: 262, 263: 263}
    for place, special in places:
        ids.insert(min(place, len(ids)), specials[special])
    assert "".join(streamed(client, [[token_id] for token_id in ids])) == client.decode(ids).text == alone
