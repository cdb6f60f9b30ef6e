"""Every method of both clients against a real server, on the tokenizer whose ids are mostly the byte values."""

import asyncio
import hashlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tokend
from tests.servers import RunningServer
from tests.tokenizers_for_tests import byte_level_bpe, unigram, word_piece

Connect = Callable[..., Any]
BOS = 262
plain = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_encode_gives_ids_counts_and_the_fingerprint(client: Any) -> None:
    encoded = client.encode("hi")
    assert encoded.ids == [BOS, 104, 105]
    assert encoded.numpy().tolist() == encoded.ids
    assert encoded.numpy().dtype == np.uint32
    assert (len(encoded), encoded.token_count, encoded.total_token_count) == (3, 3, 3)
    assert encoded.fingerprint == hashlib.sha256(byte_level_bpe().encode()).hexdigest()
    assert (encoded.offsets, encoded.tokens, encoded.type_ids) == (None, None, None)


def test_every_encode_option_reaches_the_server(client: Any) -> None:
    text = "é<|end|>z"
    as_text = client.encode(text, add_special_tokens=False)
    assert (as_text.ids, as_text.special_text_count) == (list(text.encode()), 1)
    assert client.encode(text, special_tokens="parse", add_special_tokens=False).ids == [0xC3, 0xA9, 263, 122]
    allowed = client.encode(text, allowed_special_tokens=["<|end|>"], add_special_tokens=False)
    assert allowed.ids == [0xC3, 0xA9, 263, 122]
    with pytest.raises(tokend.SpecialTokenRejectedError) as raised:
        client.encode(text, special_tokens=tokend.SpecialTokens.REJECT)
    assert (raised.value.token, raised.value.position) == ("<|end|>", 1)
    cut = client.encode("abcd", max_tokens=3)
    assert (cut.ids, cut.total_token_count) == ([BOS, 97, 98], 5)
    assert client.encode("abcd", max_tokens=3, truncation_side="LEFT").ids == [BOS, 99, 100]
    full = client.encode("é!", offsets="code_points", include_tokens=True)
    assert full.offsets == [(0, 0), (0, 1), (0, 1), (1, 2)]
    assert full.tokens == ["<|bos|>", "Ã", "©", "!"]
    assert full.type_ids == [0, 0, 0, 0]
    assert client.encode("é!", offsets="utf8_bytes").offsets[-1] == (2, 3)
    assert client.encode("🙂!", offsets="UTF16_UNITS").offsets[-1] == (2, 3)


def test_a_pair_is_joined_as_the_post_processor_does_it(
    connect: Connect, server_for: Callable[..., Any]
) -> None:
    client = connect(server_for(word_piece()).grpc)
    encoded = client.encode("hello", "world")
    assert encoded.ids == [2, 5, 3, 6, 3]
    assert encoded.type_ids == [0, 0, 0, 1, 1]
    assert client.encode("hello", "").ids != client.encode("hello").ids
    assert client.encode_batch(["hello", "hello"], ["world", ""]) == [encoded, client.encode("hello", "")]


@pytest.mark.parametrize(
    "options", [{}, {"offsets": "code_points", "include_tokens": True}, {"max_tokens": 4}]
)
def test_a_batch_is_what_its_texts_are_alone(client: Any, options: dict[str, Any]) -> None:
    texts = ["", "the theme", "a🙂b", "<|end|>", "aaaa" * 3]
    assert client.encode_batch(texts, **options) == [client.encode(text, **options) for text in texts]
    assert list(client.encode_stream(texts, batch_texts=2, **options)) == client.encode_batch(
        texts, **options
    )


def test_no_texts_give_no_encodings(client: Any) -> None:
    assert client.encode_batch([]) == []
    assert list(client.encode_stream([])) == []
    assert client.count([]) == tokend.Counts(
        counts=[], total=0, fingerprint=client.tokenizer_info().fingerprint
    )
    assert client.decode_batch([]) == []


def test_ten_thousand_texts_go_in_one_call(client: Any) -> None:
    texts = [f"{number} apples" for number in range(10_000)]
    encoded = client.encode_batch(texts, add_special_tokens=False)
    assert [bytes(one.ids).decode() for one in encoded] == texts
    counts = client.count(texts, add_special_tokens=False)
    assert counts.counts == [len(text) for text in texts]
    decoded = client.decode_batch([one.packed_ids and one.numpy() for one in encoded])
    assert [one.text for one in decoded] == texts


def test_the_place_of_a_bad_text_counts_from_the_start_of_the_call(client: Any) -> None:
    texts = [*["fine"] * 5000, "<|end|>", *["fine"] * 100]
    calls = [
        lambda: client.encode_batch(texts, special_tokens="REJECT"),
        lambda: list(client.encode_stream(texts, special_tokens="REJECT")),
        lambda: client.count(texts, special_tokens="REJECT"),
    ]
    for call in calls:
        with pytest.raises(tokend.SpecialTokenRejectedError) as raised:
            call()
        assert (raised.value.index, raised.value.position) == (5000, 0)
    with pytest.raises(tokend.UnknownTokenIdError) as bad_id:
        client.decode_batch([*[[97]] * 3000, [97, 5000]])
    assert (bad_id.value.index, bad_id.value.id) == (3000, 5000)


def test_batches_are_cut_under_limits_that_an_operator_lowered(
    connect: Connect, server_for: Callable[..., RunningServer]
) -> None:
    flags = (
        "--max-batch-texts",
        "7",
        "--max-batch-bytes",
        "100",
        "--max-text-bytes",
        "50",
        "--max-ids",
        "20",
    )
    client = connect(server_for(byte_level_bpe(), *flags).grpc)
    texts = [f"{number:05}" for number in range(40)]
    assert client.decode_batch([text.encode() and list(text.encode()) for text in texts])[39].text == "00039"
    assert connect(server_for(byte_level_bpe(), *flags).grpc).count(texts).total == 40 * 6
    assert [one.ids[1:] for one in client.encode_batch(texts)] == [list(text.encode()) for text in texts]
    assert len(list(client.encode_stream(texts))) == 40
    with pytest.raises(tokend.TooLargeError) as raised:
        client.encode_batch([*texts, "x" * 51])
    assert (raised.value.reason, raised.value.index, raised.value.limit) == ("TEXT_TOO_LARGE", 40, 50)


def test_a_large_body_of_text_goes_through_a_stream(client: Any) -> None:
    text = "12345 " * 20_000
    n_texts = 30
    n_ids = 0
    for encoded in client.encode_stream((text for _ in range(n_texts)), add_special_tokens=False):
        n_ids += encoded.token_count
    assert n_ids == n_texts * len(text)


def test_a_text_alone_may_be_larger_than_a_batch(client: Any) -> None:
    texts = ["a b " * 600_000, "x"]
    assert [one.token_count for one in client.encode_batch(texts, add_special_tokens=False)] == [2_400_000, 1]


def test_count_takes_one_text_or_many_and_stops_in_time(client: Any) -> None:
    assert client.count("hello").total == 6
    assert client.count(["a", "bb", "ccc"], add_special_tokens=False).counts == [1, 2, 3]
    stopped = client.count(["a"] * 5000, stop_after=2047, add_special_tokens=False)
    assert (stopped.total, stopped.stopped, len(stopped.counts)) == (2048, True, 2048)
    at_the_border = client.count(["a"] * 5000, stop_after=1024, add_special_tokens=False)
    assert (at_the_border.total, at_the_border.stopped) == (1025, True)
    assert client.count(["a"] * 5, stop_after=5, add_special_tokens=False).stopped is False
    with pytest.raises(ValueError, match="offsets"):
        client.count("a", offsets="code_points")


def test_decode_gives_text_bytes_and_the_count_of_unknown_ids(client: Any) -> None:
    assert client.decode([104, 105]).text == "hi"
    assert str(client.decode(np.array([104, 105], dtype=np.int64))) == "hi"
    assert client.decode([]).text == ""
    assert client.decode([BOS, 104]).text == "h"
    assert client.decode([BOS, 104], skip_special_tokens=False).text == "<|bos|>h"
    whole = client.decode([0xE2, 5000, 104], unknown_ids="skip", include_bytes=True)
    assert (whole.text, whole.raw_bytes, whole.unknown_id_count) == ("\ufffdh", b"\xe2h", 1)
    assert client.decode([104]).raw_bytes is None
    with pytest.raises(tokend.UnknownTokenIdError) as raised:
        client.decode([104, 5000])
    assert (raised.value.id, raised.value.index, raised.value.max_id) == (5000, 1, 264)


@given(data=st.binary(max_size=60), cuts=st.lists(st.integers(0, 60)))
@plain
def test_any_cutting_of_a_stream_joins_to_what_decode_gives(
    client: Any, data: bytes, cuts: list[int]
) -> None:
    borders = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    lists = [list(data[start:end]) for start, end in itertools.pairwise(borders)]
    text = client.decode(list(data)).text
    assert "".join(client.decode_stream(lists)) == text
    assert "".join(client.decode_stream(iter(data))) == text
    assert "".join(client.decode_stream(list(data))) == text


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=20))
@plain
def test_a_stream_of_texts_is_encode_mapped(client: Any, texts: list[str]) -> None:
    stream = client.encode_stream(iter(texts), batch_texts=3, batch_bytes=10)
    assert list(stream) == [client.encode(text) for text in texts]


def test_a_decode_stream_ends_at_a_stop_string_and_draws_no_further_id(client: Any) -> None:
    drawn = []

    def ids() -> Iterator[int]:
        for token_id in b"well END never":
            drawn.append(token_id)
            yield token_id

    assert "".join(client.decode_stream(ids(), stop=["END"])) == "well "
    assert bytes(drawn) == b"well END"


def test_a_decode_stream_takes_the_prompt_as_context(client: Any) -> None:
    assert "".join(client.decode_stream([0xA9, 33], prompt_ids=[97, 0xC3])) == "é!"


def test_a_decode_stream_gives_the_text_before_a_bad_id_and_then_the_error(client: Any) -> None:
    pieces = []
    with pytest.raises(tokend.UnknownTokenIdError):
        pieces.extend(client.decode_stream([[97, 98, 5000]]))
    assert pieces == ["ab"]


@pytest.mark.parametrize("method", ["decode_stream", "encode_stream"])
def test_an_exception_of_the_callers_iterator_is_the_callers(client: Any, method: str) -> None:
    problem = RuntimeError("x")

    def items() -> Iterator[Any]:
        yield 104 if method == "decode_stream" else "h"
        raise problem

    received = []
    started_s = time.monotonic()
    with pytest.raises(RuntimeError) as raised:
        received.extend(getattr(client, method)(items()))
    assert raised.value is problem
    assert len(received) == 1, "what came before the exception is not lost"
    assert time.monotonic() - started_s < 2


def test_bad_items_inside_a_stream_name_their_place(client: Any) -> None:
    with pytest.raises(ValueError, match=r"ids\[2\] is -1"):
        list(client.decode_stream([[97, 98], [-1]]))
    with pytest.raises(ValueError, match=r"texts\[1\].*surrogate"):
        list(client.encode_stream(["a", "\ud800"]))


def test_closing_a_stream_early_ends_its_call(client: Any, byte_server: RunningServer) -> None:
    stream = client.decode_stream(iter(b"abc"))
    next(stream)
    stream.close()
    other = client.encode_stream((str(number) for number in range(10_000)), batch_texts=10)
    next(other)
    other.close()
    ends_s = time.monotonic() + 5
    while byte_server.metric("tokend_live_streams") > 0:
        assert time.monotonic() < ends_s
        time.sleep(0.05)


def test_a_decoder_takes_ids_and_gives_text(client: Any) -> None:
    decoder = client.decoder()
    assert decoder.push(104) == "h"
    assert decoder.push([0xC3]) == ""
    assert decoder.pending_bytes == 1
    assert decoder.push(np.array([0xA9, 0xE2], dtype=np.uint32)) == "é"
    assert (decoder.total_tokens, decoder.ended, decoder.end_reason) == (4, False, None)
    assert len(decoder.fingerprint) == 64
    assert decoder.finish() == "\ufffd"
    assert (decoder.ended, decoder.end_reason, decoder.finish()) == (True, "END", "")
    with pytest.raises(ValueError, match="finished"):
        decoder.push(104)


def test_a_decoder_without_ids_has_no_text(client: Any) -> None:
    assert client.decoder().finish() == ""


def test_a_decoder_stops_at_a_stop_string(client: Any) -> None:
    decoder = client.decoder(stop=["<<", "<>"], skip_special_tokens=False)
    assert [decoder.push(byte) for byte in b"a<b<>c"] == ["a", "", "<b", "", "", ""]
    assert (decoder.ended, decoder.end_reason, decoder.stop, decoder.total_tokens) == (True, "STOP", "<>", 5)
    assert decoder.finish() == ""


def test_a_decoder_that_got_a_bad_id_keeps_its_text_in_the_error(client: Any) -> None:
    decoder = client.decoder()
    with pytest.raises(tokend.UnknownTokenIdError) as raised:
        decoder.push([97, 5000])
    assert raised.value.text_before_error == "a"
    assert (decoder.ended, decoder.end_reason) == (True, "ERROR")


def test_a_pin_is_checked_on_every_call(connect: Connect, client: Any, byte_server: RunningServer) -> None:
    other = "0" * 64
    pinned = connect(byte_server.grpc, expected_fingerprint=other)
    calls = [
        lambda: pinned.encode("a"),
        lambda: pinned.encode_batch(["a"]),
        lambda: list(pinned.encode_stream(["a"])),
        lambda: pinned.count("a"),
        lambda: pinned.decode([97]),
        lambda: pinned.decode_batch([[97]]),
        lambda: list(pinned.decode_stream([97])),
        lambda: pinned.lookup([97]),
        pinned.download,
        lambda: client.encode("a", expected_fingerprint=other),
    ]
    for call in calls:
        with pytest.raises(tokend.TokenizerMismatchError) as raised:
            call()
        assert (raised.value.expected, raised.value.served) == (other, client.tokenizer_info().fingerprint)
    assert connect(byte_server.grpc, expected_fingerprint=raised.value.served.upper()).encode("a").ids == [
        BOS,
        97,
    ]


def test_tokenizer_info_describes_what_is_served(client: Any) -> None:
    info = client.tokenizer_info()
    assert (info.vocab_size, info.max_id, info.model_type, info.added_token_count) == (265, 264, "BPE", 3)
    assert [token.token for token in info.special_tokens] == ["<|bos|>", "<|end|>"]
    assert info.special_tokens[0].special
    assert (info.streaming.mode, info.engine.reference_version) == ("bytes", "0.23.3")
    assert info.limits.max_batch_texts == 4096
    assert info.server_version == tokend.__version__


def test_lookup_takes_ids_and_strings(client: Any) -> None:
    the, unknown, bos = client.lookup([258, 5000], ["<|bos|>"])
    assert (the.id, the.token, the.token_bytes, the.known) == (258, "Ġthe", b" the", True)
    assert (unknown.id, unknown.known) == (5000, False)
    assert (bos.id, bos.special, bos.added, bos.control) == (262, True, True, True)
    assert client.lookup() == []


def test_download_gives_the_file_itself(client: Any, tmp_path: Path) -> None:
    file = client.download()
    assert file.data.decode() == byte_level_bpe()
    assert file.fingerprint == client.tokenizer_info().fingerprint
    file.save(tmp_path / "tokenizer.json")
    assert (tmp_path / "tokenizer.json").read_bytes() == file.data


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda c: c.encode(b"a"), TypeError, "text is a str, not bytes"),
        (lambda c: c.encode("a\ud83d"), ValueError, "lone surrogate at position 1"),
        (lambda c: c.encode("a", 3), TypeError, "pair is a str"),
        (lambda c: c.encode("a", special_tokens="maybe"), ValueError, "PARSE, TEXT, REJECT"),
        (lambda c: c.encode("a", max_tokens=0), ValueError, "max_tokens is 0"),
        (lambda c: c.encode("a", truncation_side="left"), ValueError, "needs max_tokens"),
        (lambda c: c.encode("a", add_special_token=True), TypeError, "no option 'add_special_token'"),
        (lambda c: c.encode("a", add_special_tokens=1), TypeError, "is a bool, not int"),
        (lambda c: c.encode("a", expected_fingerprint="abc"), ValueError, "64 hexadecimal"),
        (lambda c: c.encode("a", timeout_s=0), ValueError, "above 0"),
        (lambda c: c.encode_batch("abc"), TypeError, "not one str"),
        (lambda c: c.encode_batch(["a", None]), TypeError, r"texts\[1\] is a str, not NoneType"),
        (lambda c: c.encode_batch(["a"], ["b", "c"]), ValueError, "pairs has 2"),
        (lambda c: c.encode_batch(["a"], [None]), TypeError, r"pairs\[0\]"),
        (lambda c: c.encode_stream("abc"), TypeError, "iterable of str, not str"),
        (lambda c: c.count([1]), TypeError, r"texts\[0\]"),
        (lambda c: c.decode([1, -1]), ValueError, r"ids\[1\] is -1"),
        (lambda c: c.decode([2**32]), ValueError, r"ids\[0\] is 4294967296"),
        (lambda c: c.decode([True]), TypeError, r"ids\[0\] is an int, not bool"),
        (lambda c: c.decode([1.0]), TypeError, r"ids\[0\] is an int, not float"),
        (lambda c: c.decode("12"), TypeError, "not str"),
        (lambda c: c.decode(np.array([1, -2])), ValueError, r"ids\[1\] is -2"),
        (lambda c: c.decode(np.array([1.5])), TypeError, "float64"),
        (lambda c: c.decode_batch([[1], [-1]]), ValueError, r"sequences\[1\]\[0\] is -1"),
        (lambda c: c.decoder(stop="END"), TypeError, "not one str"),
        (lambda c: c.decoder(stop=[""]), ValueError, r"stop\[0\] is empty"),
        (lambda c: c.decoder(include_bytes=True), ValueError, "include_bytes"),
        (lambda c: c.decoder(prompt_ids=[-1]), ValueError, r"prompt_ids\[0\]"),
        (lambda c: c.lookup([-1]), ValueError, r"ids\[0\]"),
        (lambda c: c.lookup(tokens="a"), TypeError, "not one str"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_sent(
    connect: Connect, call: Callable[[Any], Any], kind: type[Exception], message: str
) -> None:
    # Nothing listens at port 9: what reached the wire would be UnavailableError.
    with pytest.raises(kind, match=message) as raised:
        call(connect("127.0.0.1:9"))
    assert not isinstance(raised.value, tokend.TokendError)
    assert not isinstance(raised.value, UnicodeError), "a UnicodeError holds the whole text"


async def test_an_async_iterable_is_drawn_while_the_server_works(byte_server: RunningServer) -> None:
    async def ids() -> AsyncIterator[int]:
        for byte in b"good morning" * 200:
            yield byte

    async with tokend.AsyncClient(byte_server.grpc) as client:
        pieces = [piece async for piece in client.decode_stream(ids())]
    assert "".join(pieces) == "good morning" * 200
    assert len(pieces) < 2400, "what had come was not joined"


async def test_exceptions_of_async_iterables_are_the_callers(byte_server: RunningServer) -> None:
    problem = RuntimeError("x")

    async def items(first: Any) -> AsyncIterator[Any]:
        yield first
        raise problem

    async with tokend.AsyncClient(byte_server.grpc) as client:
        for stream in (client.decode_stream(items(104)), client.encode_stream(items("h"))):
            received = await anext(stream)
            assert received
            with pytest.raises(RuntimeError) as raised:
                await anext(stream)
            assert raised.value is problem


async def test_async_calls_run_side_by_side(byte_server: RunningServer) -> None:
    async with tokend.AsyncClient(byte_server.grpc) as client:
        texts = [f"text {number}" for number in range(300)]
        encoded = await asyncio.gather(*(client.encode(text, add_special_tokens=False) for text in texts))
    assert [bytes(one.ids).decode() for one in encoded] == texts


async def test_cancelling_a_task_cancels_its_call(byte_server: RunningServer) -> None:
    never = asyncio.Event()

    async def ids() -> AsyncIterator[int]:
        yield 104
        await never.wait()

    async with tokend.AsyncClient(byte_server.grpc) as client:
        stream = client.decode_stream(ids())
        assert await anext(stream) == "h"
        task = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_one_client_serves_many_threads(byte_server: RunningServer) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with tokend.Client(byte_server.grpc, connections=2) as client, ThreadPoolExecutor(16) as pool:
        texts = [f"text {number}" for number in range(400)]
        encoded = list(pool.map(lambda text: "".join(client.decode_stream(client.encode(text).ids)), texts))
    assert encoded == texts


def test_a_unigram_file_works_alike(connect: Connect, server_for: Callable[..., RunningServer]) -> None:
    client = connect(server_for(unigram()).grpc)
    info = client.tokenizer_info()
    assert info.model_type == "Unigram"
    ids = client.encode("hello").ids
    assert "".join(client.decode_stream(ids)) == client.decode(ids).text
