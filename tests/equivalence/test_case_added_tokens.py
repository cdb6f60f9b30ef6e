"""Added tokens with every flag, and other fields of the file that change which ids a text gets."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizers_for_tests import BL, BLO, added_token, byte_level_bpe, load

LOWERCASE = {"type": "Lowercase"}
FLAGS = ("lstrip", "rstrip", "single_word", "normalized")
COMBINATIONS = list(itertools.product([False, True], repeat=len(FLAGS)))


def every_combination(first: int) -> list:
    """One added token for each set of flags, special and not, some with letters of the byte alphabet."""
    tokens = []
    for special, letters in itertools.product([False, True], ["Tag", "ÖĠn"]):
        for flags in COMBINATIONS:
            content = f"{letters}{len(tokens)}."
            # A normalized token is named by its normalized content, so a file states it that way.
            chosen = dict(zip(FLAGS, flags, strict=True))
            tokens.append(added_token(first + len(tokens), content, special=special, **chosen))
    return tokens


FILES = {
    "as it is": byte_level_bpe(added=every_combination(262), post=False),
    "lower-cased": byte_level_bpe(added=every_combination(262), post=False, normalizer=LOWERCASE),
    "composed": byte_level_bpe(added=every_combination(262), post=False, normalizer={"type": "NFC"}),
}
CONTENTS = [token["content"] for token in every_combination(262)]


@settings(max_examples=120)
@given(data=st.data())
@pytest.mark.parametrize("name", FILES)
def test_every_set_of_flags_gives_what_the_library_gives(client_of, name, data):
    client, library = client_of(FILES[name]), load(FILES[name])
    contents = st.sampled_from(CONTENTS)
    part = (
        contents
        | contents.map(str.lower)
        | contents.map(str.upper)
        | st.sampled_from([" ", "\n ", "x", "Ö", "."])
    )
    text = "".join(data.draw(st.lists(part, max_size=8)))
    expected = library.encode(text)
    encoded = client.encode(text, special_tokens="parse", offsets="code_points", include_tokens=True)
    assert (encoded.ids, encoded.offsets, encoded.tokens) == (expected.ids, expected.offsets, expected.tokens)
    for skip in (True, False):
        text = client.decode(expected.ids, skip_special_tokens=skip).text
        assert text == library.decode(expected.ids, skip_special_tokens=skip)


@pytest.mark.parametrize(
    ("text", "ids"),
    [("<END>", [262]), ("<end>", [*b"<end>"]), ("<stop>", [263]), ("A<STOP>", [97, 263]), ("<Stop>", [263])],
)
def test_normalized_decides_whether_another_spelling_is_the_token(client_of, text, ids):
    added = [added_token(262, "<END>", normalized=False), added_token(263, "<Stop>", normalized=True)]
    file = byte_level_bpe(added=added, post=False, normalizer=LOWERCASE)
    assert load(file).encode(text).ids == ids
    assert client_of(file).encode(text, special_tokens="parse").ids == ids


FLAGGED = byte_level_bpe(
    added=[
        added_token(262, "<T>", special=False),
        added_token(263, "<L>", special=False, lstrip=True),
        added_token(264, "<R>", special=False, rstrip=True),
        added_token(265, "<B>", special=False, lstrip=True, rstrip=True),
        added_token(266, "<W>", special=False, single_word=True),
    ],
    post=False,
)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a <T> b", [97, 32, 262, 32, 98]),
        ("a <L> b", [97, 263, 32, 98]),
        ("a <R> b", [97, 32, 264, 98]),
        ("a \n<B>  b", [97, 265, 98]),
        ("a <W> b", [97, 32, 266, 32, 98]),
        ("a<T>b", [97, 262, 98]),
        ("a<W>b", [97, *b"<W>", 98]),
    ],
)
def test_what_a_token_takes_of_the_text_beside_it(client_of, text, ids):
    assert client_of(FLAGGED).encode(text).ids == load(FLAGGED).encode(text).ids == ids


# Letters of the byte alphabet

ODD = {"ilÖveyou": "il\ufffdveyou", "Bác": "B\ufffdc", "Ġthex": " thex", "北京": "北京", "<a b>": "<a b>"}


@pytest.mark.parametrize("content", ODD)
@pytest.mark.parametrize("special", [False, True])
def test_an_added_token_decodes_as_in_the_library_and_its_own_bytes_can_be_had(client_of, content, special):
    added = [added_token(262 + n, name, special=special) for n, name in enumerate(ODD)]
    file = byte_level_bpe(added=added, post=False)
    client = client_of(file)
    ids = client.encode(content, special_tokens="parse").ids
    assert ids == [262 + list(ODD).index(content)]
    assert client.decode(ids, skip_special_tokens=False).text == ODD[content]
    assert load(file).decode(ids, skip_special_tokens=False) == ODD[content]
    assert client.lookup(ids)[0].token_bytes == content.encode()


def test_a_normalizer_that_writes_the_byte_alphabet_makes_such_a_token_decode_right(client_of):
    spec = json.loads(
        byte_level_bpe(added=[added_token(262, "Bác", special=False, normalized=True)], post=False)
    )
    spec["normalizer"] = {"type": "ByteLevel"}
    spec["pre_tokenizer"] = None
    client = client_of(json.dumps(spec))
    assert client.encode("Bác").ids == [262]
    assert client.decode([262]).text == "Bác"


def test_the_odd_letter_streams_as_it_decodes(client_of, streamed):
    assert streamed(client_of(BLO()), [[263], [97]]) == ["il\ufffdveyou", "a", ""]


def test_skipping_takes_the_special_tokens_and_no_other_added_one(client_of):
    client = client_of(BL())
    ids = [262, 104, 264, 105, 263]
    assert client.decode(ids).text == load(BL()).decode(ids) == "h<tool>i"
    assert client.decode(ids, skip_special_tokens=False).text == "<|bos|>h<tool>i<|end|>"


# Other fields of the file


@pytest.mark.parametrize(("flag", "ids"), [(True, [262]), (False, [120, 121, 122])])
def test_a_word_of_the_vocabulary_that_no_merge_makes(client_of, flag, ids):
    file = byte_level_bpe(extra_vocab=["xyz"], added=[], post=False, ignore_merges=flag)
    client = client_of(file)
    assert client.encode("xyz").ids == load(file).encode("xyz").ids == ids
    assert client.decode(ids).text == "xyz"
