"""Decoders of one AsyncClient share a stream, and each is as if it had one of its own."""

import asyncio
import gc
import itertools
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tokend
from tests.client.scripted_server import Fault, ScriptedServer
from tests.servers import RunningServer
from tests.tokenizers_for_tests import byte_level_bpe

BOS = 262
plain = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.stop()


@pytest.fixture
async def client(byte_server: RunningServer) -> AsyncIterator[tokend.AsyncClient]:
    async with tokend.AsyncClient(byte_server.grpc) as client:
        yield client


async def becomes(expected: float, read: Callable[[], float]) -> None:
    """Wait until what is read is as expected."""
    ends_s = time.monotonic() + 5
    while (value := await asyncio.to_thread(read)) != expected:
        assert time.monotonic() < ends_s, f"{value} instead of {expected}"
        await asyncio.sleep(0.02)


def streams(server: RunningServer) -> float:
    return server.metric("tokend_live_streams", method="StreamDecode")


def sequences(server: RunningServer) -> float:
    return server.metric("tokend_live_sequences")


async def pushed(decoder: tokend.AsyncDecoder, lists: list[Any]) -> str:
    return "".join([await decoder.push(ids) for ids in lists]) + await decoder.finish()


async def test_many_decoders_have_one_stream(client: tokend.AsyncClient, byte_server: RunningServer) -> None:
    texts = [f"décodeur {number} 🙂" for number in range(200)]
    decoders = [client.decoder() for _ in texts]
    steps = list(itertools.zip_longest(*(text.encode() for text in texts)))
    pieces = [""] * len(texts)
    for step in steps:
        given = [index for index, byte in enumerate(step) if byte is not None]
        for index, piece in zip(
            given, await asyncio.gather(*(decoders[index].push(step[index]) for index in given)), strict=True
        ):
            pieces[index] += piece
    assert (await asyncio.to_thread(streams, byte_server), sequences(byte_server)) == (1, 200)
    rests = await asyncio.gather(*(decoder.finish() for decoder in decoders))
    assert [piece + rest for piece, rest in zip(pieces, rests, strict=True)] == texts
    await becomes(0, lambda: streams(byte_server))
    assert {decoder.fingerprint for decoder in decoders} == {(await client.tokenizer_info()).fingerprint}


@given(
    sessions=st.lists(
        st.tuples(st.lists(st.binary(max_size=6), max_size=8), st.booleans()), min_size=1, max_size=20
    )
)
@plain
def test_any_cutting_of_any_number_of_sequences_gives_each_its_text(
    byte_server: RunningServer, sessions: list[tuple[list[bytes], bool]]
) -> None:
    async def session(client: tokend.AsyncClient, parts: list[bytes], stops: bool) -> None:
        text = (await client.decode(list(b"".join(parts)))).text
        decoder = client.decoder(stop=["\x00"] if stops else [])
        expected = text.partition("\x00")[0] if stops else text
        assert await pushed(decoder, [list(part) for part in parts]) == expected

    async def run() -> None:
        async with tokend.AsyncClient(byte_server.grpc) as client:
            await asyncio.gather(*(session(client, parts, stops) for parts, stops in sessions))

    asyncio.run(run())


async def test_pushes_of_one_turn_travel_in_one_message(scripted: ScriptedServer) -> None:
    async with tokend.AsyncClient(scripted.start()) as client:
        decoders = [client.decoder() for _ in range(50)]
        for _ in range(3):
            await asyncio.gather(*(decoder.push(97) for decoder in decoders))
    assert scripted.batch_sizes == [1, 49, 50, 50], "the first one goes at once"


async def test_what_comes_while_messages_are_under_way_goes_together(client: tokend.AsyncClient) -> None:
    async def session() -> str:
        decoder = client.decoder()
        return await pushed(decoder, list(b"one by one " * 20))

    assert set(await asyncio.gather(*(session() for _ in range(60)))) == {"one by one " * 20}


async def test_decoders_can_have_streams_of_their_own(byte_server: RunningServer) -> None:
    async with tokend.AsyncClient(byte_server.grpc, join_calls=False) as client:
        decoders = [client.decoder() for _ in range(5)]
        assert await asyncio.gather(*(decoder.push(97) for decoder in decoders)) == ["a"] * 5
        assert await asyncio.to_thread(streams, byte_server) == 5
        assert await asyncio.gather(*(decoder.finish() for decoder in decoders)) == [""] * 5


async def test_each_sequence_has_its_own_options_prompt_and_stop_strings(client: tokend.AsyncClient) -> None:
    with_special = client.decoder(skip_special_tokens=False)
    with_prompt = client.decoder(prompt_ids=[97, 0xC3])
    with_stop = client.decoder(stop=["b"])
    replacing = client.decoder(unknown_ids="replace")
    pinned = client.decoder(expected_fingerprint="0" * 64)
    texts = await asyncio.gather(
        with_special.push([BOS, 97]),
        with_prompt.push([0xA9]),
        with_stop.push([97, 98, 99]),
        replacing.push([5000, 97]),
        pinned.push(97),
        client.decoder().push([BOS, 97]),
        return_exceptions=True,
    )
    assert texts[:4] == ["<|bos|>a", "é", "a", "\ufffda"]
    assert isinstance(texts[4], tokend.TokenizerMismatchError)
    assert texts[5] == "a"
    assert (with_stop.ended, with_stop.stop, replacing.unknown_id_count) == (True, "b", 1)


async def test_the_error_of_a_sequence_is_its_own(
    client: tokend.AsyncClient, byte_server: RunningServer
) -> None:
    good, bad = client.decoder(), client.decoder()
    text, error = await asyncio.gather(good.push(97), bad.push([98, 5000]), return_exceptions=True)
    assert text == "a"
    assert isinstance(error, tokend.UnknownTokenIdError)
    assert (error.text_before_error, bad.end_reason) == ("b", "ERROR")
    with pytest.raises(tokend.UnknownTokenIdError):
        await bad.push(97)
    assert await good.push(98) == "b"
    assert await good.finish() == ""
    await becomes(0, lambda: streams(byte_server))


async def test_a_broken_stream_fails_every_open_sequence_and_nothing_is_sent_again(
    scripted: ScriptedServer,
) -> None:
    scripted.faults = [Fault(after=3)]
    async with tokend.AsyncClient(scripted.start()) as client:
        decoders = [client.decoder() for _ in range(4)]
        await asyncio.gather(*(decoder.push(97) for decoder in decoders))
        await asyncio.gather(*(decoder.push(97) for decoder in decoders[:2]))
        errors = await asyncio.gather(*(decoder.push(98) for decoder in decoders[:3]), return_exceptions=True)
        assert {type(error) for error in errors} == {tokend.UnavailableError}
        assert len({id(error) for error in errors}) == 3
        for last in (decoders[3].push(98), decoders[3].finish(), decoders[0].push(98)):
            with pytest.raises(tokend.UnavailableError):
                await last
        assert scripted.calls == ["StreamDecode"]
        assert await client.decoder().push(99) == "c"
    assert scripted.calls == ["StreamDecode"] * 2
    assert scripted.batch_sizes == [1, 3, 2, 1]


async def test_a_sequence_that_joined_a_stream_of_a_server_that_is_gone_starts_on_another(
    scripted: ScriptedServer,
) -> None:
    scripted.faults = [Fault(after=1)]
    async with tokend.AsyncClient(scripted.start()) as client:
        old = client.decoder()
        await old.push(97)
        results = await asyncio.gather(
            old.push(98), *(client.decoder().push(99) for _ in range(3)), return_exceptions=True
        )
        assert isinstance(results[0], tokend.UnavailableError)
        assert results[1:] == ["c"] * 3
    assert scripted.calls == ["StreamDecode"] * 2


async def test_a_server_that_refuses_streams_is_an_error_and_no_endless_try(scripted: ScriptedServer) -> None:
    scripted.faults = [Fault() for _ in range(50)]
    async with tokend.AsyncClient(scripted.start()) as client:
        errors = await asyncio.gather(*(client.decoder().push(97) for _ in range(40)), return_exceptions=True)
    assert {type(error) for error in errors} == {tokend.UnavailableError}
    assert len(scripted.calls) <= 4


async def test_a_drain_flushes_each_sequence_and_says_that_nobody_asked(
    tokenizer_file: Callable[[str], Path],
) -> None:
    server = RunningServer("--drain-grace-s", "1.5", tokenizer=tokenizer_file(byte_level_bpe()))
    async with tokend.AsyncClient(server.grpc) as client:
        idle, held, goes_on = client.decoder(), client.decoder(stop=["ab"]), client.decoder()
        assert [await idle.push(0xC3), await held.push(97), await goes_on.push(97)] == ["", "", "a"]
        server.process.terminate()
        await asyncio.sleep(0.3)
        assert await goes_on.push(98) == "b", "open sequences go on for a time"
        with pytest.raises(tokend.UnavailableError):
            await client.decoder().push(97)

        async def go_on() -> None:
            while True:
                await goes_on.push(99)
                await asyncio.sleep(0.02)

        with pytest.raises(tokend.UnavailableError):
            await go_on()
        # Whoever has sent all ids gets the whole text; whoever goes on is told what is missing.
        assert await idle.finish() == "\ufffd"
        with pytest.raises(tokend.UnavailableError) as raised:
            await held.push(98)
        assert (raised.value.text_before_error, raised.value.reason) == ("a", "SHUTTING_DOWN")
    assert await asyncio.to_thread(server.stop) == 0


async def test_a_new_sequence_goes_on_another_stream_than_one_that_is_draining(
    scripted: ScriptedServer,
) -> None:
    async with tokend.AsyncClient(scripted.start()) as client:
        old = client.decoder()
        assert await old.push(97) == "a"
        scripted.draining = {0}
        new = [client.decoder() for _ in range(5)]
        assert await asyncio.gather(*(decoder.push(98) for decoder in new)) == ["b"] * 5
        assert await old.push(97) == "a", "the old sequence goes on where it is"
        assert len(scripted.calls) == 2
        scripted.draining = {0, 1, 2, 3, 4}
        with pytest.raises(tokend.UnavailableError) as raised:
            await client.decoder().push(97)
        assert raised.value.reason == "SHUTTING_DOWN"


async def test_a_time_limit_is_that_of_one_push(scripted: ScriptedServer) -> None:
    scripted.faults = [Fault(after=2, hang_s=1.0)]
    async with tokend.AsyncClient(scripted.start()) as client:
        hasty, patient = client.decoder(timeout_s=0.2), client.decoder()
        await asyncio.gather(hasty.push(97), patient.push(97))
        started_s = time.monotonic()
        late = asyncio.create_task(patient.push(98))
        with pytest.raises(tokend.DeadlineExceededError, match=r"0\.2 s"):
            await hasty.push(98)
        assert time.monotonic() - started_s < 0.9
        assert await client.decoder().push(99) == "c", (
            "a new sequence does not wait behind a message that hangs"
        )
        assert not late.done()
        with pytest.raises(tokend.UnavailableError):
            await late
        with pytest.raises(tokend.DeadlineExceededError):
            await hasty.push(97)


async def test_cancelling_a_push_ends_its_sequence_alone(
    client: tokend.AsyncClient, byte_server: RunningServer
) -> None:
    decoders = [client.decoder() for _ in range(3)]
    await asyncio.gather(*(decoder.push(97) for decoder in decoders))
    pushes = [asyncio.create_task(decoder.push(98)) for decoder in decoders]
    await asyncio.sleep(0)
    pushes[1].cancel()
    assert [str(result) for result in await asyncio.gather(*pushes, return_exceptions=True)] == ["b", "", "b"]
    with pytest.raises(tokend.CallCancelledError, match="its text is missing"):
        await decoders[1].push(99)
    assert await decoders[0].push(99) == "c"
    await becomes(2, lambda: sequences(byte_server))
    assert streams(byte_server) == 1


async def test_a_sequence_that_is_closed_or_dropped_is_forgotten_by_the_server(
    client: tokend.AsyncClient, byte_server: RunningServer
) -> None:
    stays, closed, dropped, stopped = (
        client.decoder(),
        client.decoder(),
        client.decoder(),
        client.decoder(stop=["a"]),
    )
    await asyncio.gather(*(decoder.push(97) for decoder in (stays, closed, dropped, stopped)))
    assert await asyncio.to_thread(sequences, byte_server) == 3
    await closed.close()
    await becomes(2, lambda: sequences(byte_server))
    del dropped
    gc.collect()
    await becomes(1, lambda: sequences(byte_server))
    async with stays:
        pass
    assert streams(byte_server) == 1, "the one that stopped has not been closed"
    await stopped.finish()
    await becomes(0, lambda: streams(byte_server))


async def test_a_sequence_that_stopped_is_ended_at_the_server_too(scripted: ScriptedServer) -> None:
    async with tokend.AsyncClient(scripted.start()) as client:
        decoders = [client.decoder() for _ in range(3)]
        await asyncio.gather(*(decoder.push(97) for decoder in decoders))
        await decoders[1].finish()
        await decoders[2].close()
        await decoders[0].push(97)
        assert sorted(scripted.ended) == [1, 2]


async def test_an_iterator_that_is_left_early_or_raises_ends_its_sequence_alone(
    client: tokend.AsyncClient, byte_server: RunningServer
) -> None:
    problem = RuntimeError("x")

    async def failing() -> AsyncIterator[int]:
        yield 97
        raise problem

    other = client.decoder()
    await other.push(97)
    stream = client.decode_stream(iter(b"abc"))
    assert await anext(stream) == "a"
    await stream.aclose()
    stream = client.decode_stream(failing())
    assert await anext(stream) == "a"
    with pytest.raises(RuntimeError) as raised:
        await anext(stream)
    assert raised.value is problem
    await becomes(1, lambda: sequences(byte_server))
    assert await other.push(98) == "b"


async def test_more_sequences_than_a_stream_takes_go_on_further_ones(
    server_for: Callable[..., RunningServer],
) -> None:
    server = server_for(byte_level_bpe(), "--max-sequences-per-stream", "5")
    async with tokend.AsyncClient(server.grpc) as client:
        decoders = [client.decoder() for _ in range(23)]
        assert await asyncio.gather(*(decoder.push(97) for decoder in decoders)) == ["a"] * 23
        assert await asyncio.to_thread(streams, server) == 5
        assert sequences(server) == 23
        for decoder in decoders[:5]:
            await decoder.finish()
        again = [client.decoder() for _ in range(5)]
        assert await asyncio.gather(*(decoder.push(98) for decoder in again)) == ["b"] * 5
        assert await asyncio.gather(*(decoder.push(98) for decoder in decoders[5:])) == ["b"] * 18


async def test_sequences_together_do_not_pass_a_limit_that_none_passes_alone(
    server_for: Callable[..., RunningServer],
) -> None:
    server = server_for(byte_level_bpe(), "--max-ids", "20")
    async with tokend.AsyncClient(server.grpc) as client:
        decoders = [client.decoder(prompt_ids=[97] * 9) for _ in range(30)]
        for _ in range(3):
            texts = await asyncio.gather(*(decoder.push([98] * 10) for decoder in decoders))
            assert texts == ["b" * 10] * 30
        with pytest.raises(tokend.TooLargeError) as raised:
            await decoders[0].push([98] * 21)
        assert raised.value.reason == "TOO_MANY_IDS"


async def test_each_connection_has_a_stream(scripted: ScriptedServer) -> None:
    async with tokend.AsyncClient(scripted.start(), connections=3) as client:
        decoders = [client.decoder() for _ in range(30)]
        for _ in range(2):
            await asyncio.gather(*(decoder.push(97) for decoder in decoders))
        assert (len(scripted.calls), len(scripted.peers)) == (3, 3)
        assert scripted.batch_sizes[-3:] == [10, 10, 10]


async def test_a_decoder_is_for_one_task_at_a_time(client: tokend.AsyncClient) -> None:
    decoder = client.decoder()
    first = asyncio.create_task(decoder.push(97))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="one task at a time"):
        await decoder.push(98)
    assert await first == "a"


async def test_closing_the_client_ends_every_sequence(byte_server: RunningServer) -> None:
    client = tokend.AsyncClient(byte_server.grpc)
    waiting, idle = client.decoder(), client.decoder()
    await asyncio.gather(waiting.push(97), idle.push(97))
    push = asyncio.create_task(waiting.push(98))
    await asyncio.sleep(0)
    await client.close()
    for ended in (push, idle.push(98)):
        with pytest.raises(tokend.CallCancelledError):
            await ended
    with pytest.raises(RuntimeError, match="closed"):
        await client.decoder().push(97)
    await becomes(0, lambda: streams(byte_server))


async def test_a_decoder_that_nobody_used_opens_no_stream(
    client: tokend.AsyncClient, byte_server: RunningServer
) -> None:
    before = byte_server.metric("grpc_server_started_total", grpc_method="StreamDecode")
    decoder = client.decoder()
    assert await decoder.finish() == ""
    async with client.decoder():
        pass
    assert byte_server.metric("grpc_server_started_total", grpc_method="StreamDecode") == before


async def test_an_open_sequence_takes_little_memory(client: tokend.AsyncClient) -> None:
    async def opened(n_sequences: int) -> list[tokend.AsyncDecoder]:
        decoders = [client.decoder(prompt_ids=[97] * 1000, stop=["stop"]) for _ in range(n_sequences)]
        for decoder in decoders:
            await decoder.push(97)
        return decoders

    held = await opened(10)
    tracemalloc.start()
    try:
        held += await opened(500)
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used_bytes / 500 < 600
