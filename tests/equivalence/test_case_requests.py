"""What a request, or a file, cannot have: too small a limit, unknown text, a panic, lone surrogates, a wrong id."""

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokend
from tests.servers import fails_to_start
from tests.tokenizers_for_tests import (
    BL,
    WP,
    added_token,
    bpe_without_unk,
    byte_level_bpe,
    load,
    word_level,
)

PANICS_BEFORE_LETTERS = {"type": "Replace", "pattern": {"Regex": r"^(?=\p{L})"}, "content": " "}
TRUNCATION = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
PADDING = {
    "strategy": "BatchLongest",
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "[PAD]",
}


# Truncation


@pytest.mark.parametrize(("max_tokens", "pair", "least"), [(1, None, 2), (2, "hello", 3), (1, "hello", 3)])
def test_a_limit_with_no_room_for_what_is_added_is_refused(client_of, max_tokens, pair, least):
    client = client_of(WP())
    with pytest.raises(tokend.InvalidOptionError, match=f"at least {least}") as refused:
        client.encode("hello world", pair, max_tokens=max_tokens)
    assert refused.value.metadata["value"] == str(max_tokens)
    assert (
        client.encode("hello world", pair, max_tokens=max_tokens, add_special_tokens=False).token_count
        == max_tokens
    )


@settings(max_examples=100)
@given(
    n_words=st.integers(0, 12),
    pair=st.none() | st.just("world ,"),
    options=st.fixed_dictionaries(
        {
            "max_tokens": st.integers(1, 8),
            "add_special_tokens": st.booleans(),
            "truncation_side": st.sampled_from(["left", "right"]),
        }
    ),
)
def test_no_answer_is_longer_than_its_limit(client_of, n_words, pair, options):
    client, text, add = client_of(WP()), "hello " * n_words, options["add_special_tokens"]
    try:
        encoded = client.encode(text, pair, **options)
    except tokend.InvalidOptionError:
        assert add
        assert options["max_tokens"] < (2 if pair is None else 3)
        return
    whole = client.encode(text, pair, add_special_tokens=add)
    assert encoded.token_count == min(options["max_tokens"], whole.token_count)
    assert encoded.total_token_count == whole.token_count


def test_truncation_and_padding_of_the_file_touch_no_request(client_of):
    client = client_of(WP(truncation=TRUNCATION, padding=PADDING))
    texts = ["hello world , . !", "hello"]
    ids = [[2, 5, 6, 7, 8, 9, 3], [2, 5, 3]]
    assert [client.encode(text).ids for text in texts] == ids
    assert [encoded.ids for encoded in client.encode_batch(texts)] == ids
    assert client.count(texts).counts == [7, 3]
    info = client.tokenizer_info()
    assert '"max_length": 4' in info.ignored_truncation
    assert '"pad_id": 0' in info.ignored_padding
    assert len(info.warnings) == 2


# Batches


def test_a_batch_is_a_list_of_texts_whatever_they_are(client_of):
    client = client_of(BL())
    assert [each.ids for each in client.encode_batch(["b", "c"])] == [[262, 98], [262, 99]]
    assert [each.ids for each in client.encode_batch(["b"], ["c"])] == [[262, 98, 99]]
    with pytest.raises(TypeError, match=r"texts\[0\] is a str, not list"):
        client.encode_batch([["b", "c"]])


def test_empty_input_is_input(client_of):
    client = client_of(BL())
    assert client.decode([]).text == ""
    assert client.encode("").ids == [262]
    assert client.encode("", add_special_tokens=False).ids == []
    assert client.encode_batch([]) == []
    assert client.decode_batch([]) == []
    assert client.decode_batch([[]])[0].text == ""
    assert client.count([]).total == 0


def test_a_panic_of_the_library_fails_its_call_at_once_and_names_the_item(client_of):
    client = client_of(byte_level_bpe(normalizer=PANICS_BEFORE_LETTERS))
    for _ in range(3):
        start_s = time.monotonic()
        with pytest.raises(tokend.InternalError) as failed:
            client.encode_batch(["1a", "hello", "2b"])
        assert time.monotonic() - start_s < 2
        assert failed.value.index == 1
        with pytest.raises(tokend.InternalError):
            client.encode("hello")
        assert [each.ids for each in client.encode_batch(["1a", "2"])] == [[262, 49, 97], [262, 50]]


def test_a_panic_fails_its_own_batch_of_a_stream_alone(client_of):
    client = client_of(byte_level_bpe(normalizer=PANICS_BEFORE_LETTERS))
    answers = client.encode_stream(iter(["1", "2", "x", "3"]), batch_texts=1, in_flight=1)
    got = []
    with pytest.raises(tokend.InternalError) as failed:
        got.extend(encoded.ids for encoded in answers)
    assert failed.value.index == 2
    assert client.encode("3", add_special_tokens=False).ids == [51]


# Text that cannot be said


def test_text_that_the_library_drops_is_told_at_the_start(client_of):
    client = client_of(bpe_without_unk())
    assert client.encode("a zz a").ids == load(bpe_without_unk()).encode("a zz a").ids == [0, 0]
    info = client.tokenizer_info()
    assert any("dropped silently" in warning for warning in info.warnings)
    assert not info.round_trip.exact


def test_text_that_the_library_refuses_is_refused_by_its_place(client_of):
    client = client_of(word_level(unk_token=None))
    assert client.encode("a b").ids == [1, 2]
    with pytest.raises(tokend.InvalidOptionError, match="no unk token") as refused:
        client.encode_batch(["a", "a zz"])
    assert refused.value.metadata["value"] == "1"
    assert "zz" not in str(refused.value)
    assert any("refused" in warning for warning in client.tokenizer_info().warnings)


@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
@pytest.mark.parametrize("text", ["a\ud83d", "\udc00a", "a\ud83d\ude42"], ids=["high", "low", "a pair"])
def test_a_lone_surrogate_is_a_value_error_before_anything_is_sent(server_for, kind, text):
    target = server_for(BL()).grpc
    place = next(n for n, character in enumerate(text) if "\ud800" <= character <= "\udfff")
    message = f"lone surrogate at position {place}"
    if kind == "blocking":
        with tokend.Client(target) as client:
            for call in (client.encode, lambda bad: client.encode("ok", bad), client.count):
                with pytest.raises(ValueError, match=message):
                    call(text)
            with pytest.raises(ValueError, match=r"texts\[1\] has a " + message):
                client.encode_batch(["ok", text])
            with pytest.raises(ValueError, match=message):
                list(client.encode_stream(["ok", text]))
            with pytest.raises(ValueError, match=message):
                list(client.decode_stream([97], stop=[text]))
            assert client.encode("ok").ids == [262, 111, 107]
        return

    async def run():
        async with tokend.AsyncClient(target) as client:
            for call in (client.encode, lambda bad: client.encode("ok", bad), client.count):
                with pytest.raises(ValueError, match=message):
                    await call(text)
            with pytest.raises(ValueError, match=r"texts\[1\] has a " + message):
                await client.encode_batch(["ok", text])
            with pytest.raises(ValueError, match=message):
                [_ async for _ in client.encode_stream(["ok", text])]
            with pytest.raises(ValueError, match=message):
                [_ async for _ in client.decode_stream([97], stop=[text])]
            assert (await client.encode("ok")).ids == [262, 111, 107]

    asyncio.run(run())


# Ids that are none


def test_an_unknown_id_is_an_error_or_is_counted_and_never_vanishes(client_of):
    client = client_of(BL())
    with pytest.raises(tokend.UnknownTokenIdError) as refused:
        client.decode([104, 5000, 105])
    assert (refused.value.id, refused.value.index, refused.value.max_id) == (5000, 1, 264)
    skipped = client.decode([104, 5000, 105], unknown_ids="skip")
    assert (skipped.text, skipped.unknown_id_count) == ("hi", 1)
    replaced = client.decode([104, 5000, 105], unknown_ids="replace")
    assert (replaced.text, replaced.unknown_id_count) == ("h\ufffdi", 1)


# Files


def test_a_file_whose_added_token_would_get_another_id_is_not_served(tokenizer_file):
    end = added_token(999, "<|end|>")
    file = byte_level_bpe(added=[added_token(262, "<|bos|>"), end], post=False)
    assert load(file).token_to_id("<|end|>") == 263, "the library says nothing"
    code, said = fails_to_start(
        "--tokenizer", str(tokenizer_file(file)), "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"
    )
    assert code == 2
    assert "'<|end|>' has id 999 in the file and id 263 in memory" in said.splitlines()[-1]
