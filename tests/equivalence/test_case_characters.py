"""Characters that come in pieces: nothing is broken, nothing waits longer than it must, nothing is lost at the end.

In BL an id below 256 is the byte of that value; in BF the byte b has the id 3 + b.
"""

import codecs
import os
import signal
from itertools import accumulate, chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokend
from tests.servers import RunningServer
from tests.tokenizers_for_tests import BF, BL, byte_fallback_decoder, load

THE, END, UNKNOWN = 258, 263, 5000
HI = 287
FFFD = "\ufffd"
HALF_SMILE = [0xF0, 0x9F]

BYTES = st.lists(
    st.integers(0, 255)
    | st.sampled_from([0xED, 0xA0, 0xBF, 0xE4, 0xBD, 0xEF, 0xBF, 0xBD, 0xF0, 0x9F, 0xF4, 0x90]),
    max_size=24,
)
"""Byte values, many of them at the edges of UTF-8 and out of U+FFFD itself."""


def settled(data: bytes) -> str:
    """The text of bytes, but for a proper beginning of one character at their end."""
    text, n_read = codecs.utf_8_decode(data, "replace", False)
    rest = data[n_read:]
    # Half a surrogate is no beginning of anything: CPython waits for its third byte, and nothing can come of it.
    is_surrogate = len(rest) == 2 and rest[0] == 0xED and rest[1] >= 0xA0
    return text + 2 * FFFD if is_surrogate else text


def so_far(pieces: list[str]) -> list[str]:
    """The text after each answer."""
    return list(accumulate(pieces))


def cut(data, chunks):
    """Any way to cut a list into messages, empty ones too."""
    places = sorted(chunks.draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@pytest.fixture(scope="module")
def byte_client(client_of):
    return client_of(BL())


@pytest.fixture(scope="module")
def fallback_client(client_of):
    return client_of(BF())


# Bytes


@pytest.mark.parametrize(
    ("ids", "pieces"),
    [
        ([97, *"🙂".encode(), 98], ["a", "", "", "", "🙂", "b", ""]),
        ([120, *FFFD.encode(), 121], ["x", "", "", FFFD, "y", ""]),
        ([0xE4, 0xBD, 97, 98], ["", "", FFFD + "a", "b", ""]),
        ([0xC3, THE, 0xA9], ["", FFFD + " the", FFFD, ""]),
        ([*"é🙂中 e".encode()], ["", "é", "", "", "", "🙂", "", "", "中", " ", "e", ""]),
        ([97, 0, 98, 13, 10, 99], ["a", "\0", "b", "\r", "\n", "c", ""]),
    ],
    ids=[
        "four bytes",
        "a replacement character of the text's own is no open character",
        "a character cut short is one replacement character",
        "a word that starts with a space flushes nothing early",
        "each answer is new text only",
        "control characters",
    ],
)
def test_each_answer_has_what_its_bytes_complete(byte_client, streamed, ids, pieces):
    assert streamed(byte_client, [[token_id] for token_id in ids]) == pieces
    assert "".join(pieces) == load(BL()).decode(ids)


@settings(max_examples=100)
@given(data=BYTES, chunks=st.data())
def test_text_waits_only_while_its_bytes_are_the_beginning_of_one_character(
    byte_client, streamed, data, chunks
):
    messages = cut(data, chunks)
    *answers, last = so_far(streamed(byte_client, messages))
    assert answers == [settled(bytes(chain(*messages[: n + 1]))) for n in range(len(messages))]
    assert (
        last
        == bytes(data).decode(errors="replace")
        == byte_client.decode(data).text
        == load(BL()).decode(data)
    )


@settings(max_examples=100)
@given(text=st.text(st.sampled_from(f"a {FFFD}é中🙂\u200d\u0301\ufeff"), max_size=30), chunks=st.data())
def test_no_character_is_broken_and_none_of_a_cluster_is_lost(byte_client, streamed, text, chunks):
    pieces = streamed(byte_client, cut(list(text.encode()), chunks))
    assert "".join(pieces) == text
    assert pieces[-1] == "", "whole text leaves nothing to flush"


@pytest.mark.parametrize(
    "cluster",
    ["👨\u200d👩\u200d👧", "e\u0301", "a\u200b\ufeff", "🇩🇪", "क्षि", "\u202eabc\u202c"],
    ids=["family", "accent", "invisible", "flag", "conjunct", "direction"],
)
def test_what_one_sees_as_one_letter_may_come_in_parts_but_comes_whole(byte_client, streamed, cluster):
    ids = list(cluster.encode())
    assert "".join(streamed(byte_client, [[token_id] for token_id in ids])) == cluster


@pytest.mark.parametrize(
    ("data", "n_replaced"),
    [
        (b"\xed\xa0\x80", 3),
        (b"\xc0\x80", 2),
        (b"\xe0\x80\x80", 3),
        (b"\xf4\x90\x80\x80", 4),
        (b"\xf5\xff", 2),
        (b"\xf0\x9f\x99", 1),
        (b"\x80\x80", 2),
    ],
    ids=[
        "surrogate",
        "overlong NUL",
        "overlong",
        "above U+10FFFF",
        "never a byte of text",
        "cut short",
        "no lead",
    ],
)
def test_every_class_of_bytes_that_are_no_text(byte_client, streamed, data, n_replaced):
    ids = [97, *data, 98]
    text = "".join(streamed(byte_client, [[token_id] for token_id in ids]))
    assert text == "a" + n_replaced * FFFD + "b" == load(BL()).decode(ids)


def test_a_long_run_of_true_replacement_characters_comes_one_by_one(byte_client, streamed):
    pieces = streamed(byte_client, [[byte] for byte in FFFD.encode()] * 40 + [[122]])
    assert pieces == ["", "", FFFD] * 40 + ["z", ""]


# The end


def half_close(client: tokend.Client, streamed, ids):
    return "".join(streamed(client, [ids]))


def end_of_iterable(client: tokend.Client, _, ids):
    return "".join(client.decode_stream(iter(ids)))


def skipped_token(client: tokend.Client, streamed, ids):
    *pieces, last = streamed(client, [ids, [END]])
    assert pieces[-1] == "", "a token that is skipped does not end the character"
    return "".join(pieces) + last


def shown_token(client: tokend.Client, streamed, ids):
    return "".join(streamed(client, [ids, [END]], skip_special_tokens=False)).removesuffix("<|end|>")


def bad_id(client: tokend.Client, _, ids):
    with client.decoder() as decoder:
        text = decoder.push(ids)
        with pytest.raises(tokend.UnknownTokenIdError) as refused:
            decoder.push([UNKNOWN])
        return text + refused.value.text_before_error


def stop_that_never_came(client: tokend.Client, streamed, ids):
    return "".join(streamed(client, [ids], stop=["k" + FFFD + FFFD]))


@pytest.mark.parametrize(
    "end", [half_close, end_of_iterable, skipped_token, shown_token, bad_id, stop_that_never_came]
)
@pytest.mark.parametrize("open_bytes", [[], [0xC3], HALF_SMILE, [0xF0, 0x9F, 0x99]], ids=len)
def test_an_open_character_is_flushed_once_at_every_kind_of_end(byte_client, streamed, end, open_bytes):
    ids = [*b"ok", *open_bytes]
    assert end(byte_client, streamed, ids) == "ok" + (FFFD if open_bytes else "") == load(BL()).decode(ids)


def test_what_is_flushed_may_itself_complete_a_stop_string(byte_client):
    with byte_client.decoder(stop=["k" + FFFD]) as decoder:
        assert decoder.push([*b"ok", *HALF_SMILE]) == "o"
        assert decoder.finish() == ""
        assert decoder.stop == "k" + FFFD


def test_a_server_that_stops_flushes_what_is_open(tokenizer_file):
    server = RunningServer("--drain-grace-s", "1", tokenizer=tokenizer_file(BL()))
    try:
        with tokend.Client(server.grpc) as client:
            decoder = client.decoder()
            assert decoder.push([*b"ok", *HALF_SMILE]) == "ok"
            os.kill(server.process.pid, signal.SIGTERM)
            # Within the grace the stream goes on, and the client ends it in its own time.
            assert decoder.push(0x99) == ""
            assert decoder.finish() == FFFD
    finally:
        assert server.stop() == 0


# Byte tokens beside text tokens


def byte_ids(data: bytes) -> list[int]:
    return [3 + byte for byte in data]


def test_characters_of_byte_tokens_come_with_their_last_byte(fallback_client, streamed):
    ids = [HI, *byte_ids("中中".encode()), HI]
    pieces = streamed(fallback_client, [[token_id] for token_id in ids])
    assert pieces == ["hi", "", "", "中", "", "", "中", " hi", ""]


def test_many_long_characters_in_a_row_need_no_looking_back(fallback_client, streamed):
    ids = [HI, 259, *byte_ids("🙂🙂🙂".encode()), HI]
    pieces = streamed(fallback_client, [[token_id] for token_id in ids])
    assert pieces == ["hi", " ", *["", "", "", "🙂"] * 3, " hi", ""]


@pytest.mark.parametrize(
    ("ids", "skip", "texts"),
    [
        ([*byte_ids("Ù".encode()), *byte_ids(b"\xf0"), HI], True, (f"Ù{FFFD} hi", f"{3 * FFFD} hi")),
        ([*byte_ids("é".encode()), *byte_ids(b"\x99"), 2], False, (f"é{FFFD}</s>", f"{3 * FFFD}</s>")),
    ],
    ids=["then a word", "then a special token that is shown"],
)
def test_a_stray_byte_behind_a_character_changes_nothing_that_was_sent(
    fallback_client, streamed, ids, skip, texts
):
    prompt, held = texts
    messages = [[token_id] for token_id in ids]
    assert "".join(streamed(fallback_client, messages, skip_special_tokens=skip)) == prompt
    assert "".join(streamed(fallback_client, messages, skip_special_tokens=skip, byte_runs="HOLD")) == held
    assert load(BF()).decode(ids, skip_special_tokens=skip) == held


RUNS = st.lists(
    st.integers(3, 258) | st.sampled_from([HI, HI, 259, 260, 0, 1, 2, *byte_ids("é中🙂".encode())]),
    max_size=24,
)


@settings(max_examples=100)
@given(ids=RUNS, chunks=st.data(), skip=st.booleans())
@pytest.mark.parametrize(
    "file", [BF(), BF(decoder=byte_fallback_decoder(strip=False))], ids=["strip", "no strip"]
)
def test_a_held_stream_is_always_what_the_library_decodes(request, file, ids, chunks, skip):
    client_of, streamed = (request.getfixturevalue(name) for name in ("client_of", "streamed"))
    options = {"skip_special_tokens": skip, "byte_runs": "HOLD"}
    text = "".join(streamed(client_of(file), cut(ids, chunks), **options))
    assert text == load(file).decode(ids, skip_special_tokens=skip)


@settings(max_examples=100)
@given(ids=RUNS, chunks=st.data(), skip=st.booleans())
def test_a_prompt_stream_differs_on_invalid_runs_alone_and_loses_nothing_behind_them(
    fallback_client, streamed, ids, chunks, skip
):
    text = "".join(streamed(fallback_client, cut(ids, chunks), skip_special_tokens=skip))
    whole = load(BF()).decode(ids, skip_special_tokens=skip)
    if FFFD not in whole:
        assert text == whole
    assert text.rpartition(FFFD)[2].endswith(whole.rpartition(FFFD)[2])
