"""Concurrent calls of one AsyncClient travel together, and nobody can tell but by the speed."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tokend
from tests.client.scripted_server import Fault, ScriptedServer
from tests.servers import RunningServer
from tests.tokenizers_for_tests import byte_level_bpe, unigram, word_piece
from tokend._flights import Flights
from tokend._time_limits import TimeLimits

plain = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.stop()


@pytest.fixture
async def client(byte_server: RunningServer) -> AsyncIterator[tokend.AsyncClient]:
    async with tokend.AsyncClient(byte_server.grpc) as client:
        yield client


def started(server: RunningServer, method: str) -> float:
    return server.metric("grpc_server_started_total", grpc_method=method)


async def both_under_way(scripted: ScriptedServer) -> None:
    """Wait until the server has the lone call and the batch behind it."""
    while len(scripted.calls) < 2:  # noqa: ASYNC110 (the server's threads set no event of this loop)
        await asyncio.sleep(0.01)


async def outcomes(calls: Any) -> list[Any]:
    """What each call gives, an error in a form that can be compared."""

    def comparable(outcome: Any) -> Any:
        if isinstance(outcome, tokend.TokendError):
            return type(outcome), outcome.message, outcome.code, outcome.reason, dict(outcome.metadata)
        return outcome

    return [comparable(outcome) for outcome in await asyncio.gather(*calls, return_exceptions=True)]


OPTIONS = st.sampled_from(
    [
        {},
        {"add_special_tokens": False},
        {"special_tokens": "PARSE"},
        {"special_tokens": "REJECT"},
        {"special_tokens": tokend.SpecialTokens.REJECT, "allowed_special_tokens": ["<|end|>"]},
        {"max_tokens": 3, "truncation_side": "left"},
        {"offsets": "utf8_bytes"},
        {"include_tokens": True, "offsets": "code_points"},
        {"expected_fingerprint": "0" * 64},
        {"max_tokens": 3, "add_special_tokens": False},
    ]
)


@given(calls=st.lists(st.tuples(st.one_of(TEXTS, st.just("a <|end|> b")), OPTIONS), min_size=1, max_size=40))
@plain
def test_joined_encodes_give_what_separate_ones_give(
    byte_server: RunningServer, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    async def run() -> None:
        async with (
            tokend.AsyncClient(byte_server.grpc) as joined,
            tokend.AsyncClient(byte_server.grpc, join_calls=False) as separate,
        ):
            one_by_one = await outcomes(separate.encode(text, **options) for text, options in calls)
            assert await outcomes(joined.encode(text, **options) for text, options in calls) == one_by_one

    asyncio.run(run())


@given(
    calls=st.lists(
        st.tuples(
            st.lists(st.integers(0, 268), max_size=8),
            st.sampled_from(
                [{}, {"unknown_ids": "skip", "include_bytes": True}, {"skip_special_tokens": False}]
            ),
        ),
        min_size=1,
        max_size=40,
    )
)
@plain
def test_joined_decodes_give_what_separate_ones_give(byte_server: RunningServer, calls: Any) -> None:
    async def run() -> None:
        async with (
            tokend.AsyncClient(byte_server.grpc) as joined,
            tokend.AsyncClient(byte_server.grpc, join_calls=False) as separate,
        ):
            one_by_one = await outcomes(separate.decode(ids, **options) for ids, options in calls)
            assert await outcomes(joined.decode(ids, **options) for ids, options in calls) == one_by_one

    asyncio.run(run())


@given(calls=st.lists(st.lists(st.one_of(TEXTS, st.just("<|end|>")), max_size=4), min_size=1, max_size=40))
@plain
def test_joined_counts_give_what_separate_ones_give(
    byte_server: RunningServer, calls: list[list[str]]
) -> None:
    async def run() -> None:
        async with (
            tokend.AsyncClient(byte_server.grpc) as joined,
            tokend.AsyncClient(byte_server.grpc, join_calls=False) as separate,
        ):
            for policy in ("text", "reject"):
                one_by_one = await outcomes(separate.count(texts, special_tokens=policy) for texts in calls)
                together = await outcomes(joined.count(texts, special_tokens=policy) for texts in calls)
                assert together == one_by_one

    asyncio.run(run())


@pytest.mark.parametrize("tokenizer", [word_piece, unigram])
async def test_pairs_and_other_models_join_alike(
    server_for: Callable[..., RunningServer], tokenizer: Callable[[], str]
) -> None:
    target = server_for(tokenizer()).grpc
    calls = [("hello", "world"), ("hello", ""), ("hello", None), ("", "hello"), ("world hello", "hello")] * 8
    async with (
        tokend.AsyncClient(target) as joined,
        tokend.AsyncClient(target, join_calls=False) as separate,
    ):
        for options in ({}, {"max_tokens": 4}, {"offsets": "code_points"}):
            one_by_one = await outcomes(separate.encode(text, pair, **options) for text, pair in calls)
            assert await outcomes(joined.encode(text, pair, **options) for text, pair in calls) == one_by_one


async def test_hundreds_of_calls_become_a_handful_of_batches(
    byte_server: RunningServer, client: tokend.AsyncClient
) -> None:
    before = [started(byte_server, method) for method in ("Encode", "BatchEncode")]
    texts = [f"text {number}" for number in range(500)]
    encoded = await asyncio.gather(*(client.encode(text, add_special_tokens=False) for text in texts))
    assert [bytes(one.ids).decode() for one in encoded] == texts
    after = [started(byte_server, method) for method in ("Encode", "BatchEncode")]
    assert after[0] - before[0] == 1, "the first one is sent at once"
    assert after[1] - before[1] <= 6


async def test_a_lone_call_is_the_plain_call(scripted: ScriptedServer) -> None:
    async with tokend.AsyncClient(scripted.start()) as client:
        for _ in range(5):
            await client.encode("a")
    assert scripted.calls == ["Encode"] * 5


async def test_what_comes_while_a_call_is_under_way_goes_together(scripted: ScriptedServer) -> None:
    async with tokend.AsyncClient(scripted.start()) as client:
        encoded = await asyncio.gather(*(client.encode(text) for text in "abcdefghij"))
    assert [one.ids for one in encoded] == [[byte] for byte in b"abcdefghij"]
    assert (sorted(scripted.calls), scripted.batch_sizes) == (["BatchEncode", "Encode"], [9])


async def test_joining_can_be_switched_off(scripted: ScriptedServer) -> None:
    async with tokend.AsyncClient(scripted.start(), join_calls=False) as client:
        await asyncio.gather(*(client.encode(text) for text in "abcdefghij"))
    assert scripted.calls == ["Encode"] * 10
    with pytest.raises(TypeError, match="join_calls is a bool"):
        tokend.AsyncClient(join_calls=1)


async def test_long_texts_travel_alone(scripted: ScriptedServer) -> None:
    async with tokend.AsyncClient(scripted.start()) as client:
        texts = ["a", "b" * 20_000, "c", "d" * 20_000, "e"]
        encoded = await asyncio.gather(*map(client.encode, texts))
    assert [one.token_count for one in encoded] == [1, 20_000, 1, 20_000, 1]
    assert (scripted.calls.count("Encode"), scripted.batch_sizes) == (3, [2])


async def test_a_batch_stays_under_a_size_at_which_it_would_be_slow(scripted: ScriptedServer) -> None:
    async with tokend.AsyncClient(scripted.start()) as client:
        await asyncio.gather(*(client.encode("x" * 10_000) for _ in range(100)))
    assert max(scripted.batch_sizes) <= 26


@pytest.mark.parametrize("method", ["encode", "decode", "count"])
async def test_an_error_reaches_its_own_caller_alone_as_a_single_call_gives_it(
    client: tokend.AsyncClient, byte_server: RunningServer, method: str
) -> None:
    good, bad = {
        "encode": ("fine", "no <|end|>"),
        "decode": ([97], [97, 98, 5000]),
        "count": (["fine", "fine"], ["fine", "no <|end|>"]),
    }[method]
    options = {} if method == "decode" else {"special_tokens": "REJECT"}
    items = [bad if number in {0, 7, 8, 100, 199} else good for number in range(200)]
    calls = [getattr(client, method)(item, **options) for item in items]
    started_s = time.monotonic()
    joined = await outcomes(calls)
    assert time.monotonic() - started_s < 20
    async with tokend.AsyncClient(byte_server.grpc, join_calls=False) as separate:
        alone = await outcomes([getattr(separate, method)(item, **options) for item in (good, bad)])
    assert joined == [alone[1] if item == bad else alone[0] for item in items]
    assert isinstance(alone[1], tuple)


async def test_many_bad_texts_among_many_take_few_rounds(
    client: tokend.AsyncClient, byte_server: RunningServer
) -> None:
    before = started(byte_server, "BatchEncode")
    texts = ["<|end|>" if number % 2 else "fine" for number in range(128)]
    results = await outcomes(client.encode(text, special_tokens="REJECT") for text in texts)
    assert [isinstance(result, tokend.Encoded) for result in results] == [text == "fine" for text in texts]
    assert started(byte_server, "BatchEncode") - before < 2 * len(texts)


async def test_a_fault_that_names_no_text_reaches_only_the_text_that_has_it(scripted: ScriptedServer) -> None:
    scripted.failing_text = "bad"
    async with tokend.AsyncClient(scripted.start()) as client:
        texts = ["a", "b", "bad", "c", "d"]
        results = await asyncio.gather(*map(client.encode, texts), return_exceptions=True)
    assert [isinstance(result, tokend.InternalError) for result in results] == [
        text == "bad" for text in texts
    ]
    assert sorted(scripted.calls) == ["BatchEncode", *["Encode"] * 5]


async def test_batches_are_sent_again_while_the_server_is_unavailable(scripted: ScriptedServer) -> None:
    scripted.faults = [Fault() for _ in range(4)]
    async with tokend.AsyncClient(scripted.start()) as client:
        encoded = await asyncio.gather(*(client.encode(text) for text in "abcdef"))
    assert [one.ids for one in encoded] == [[byte] for byte in b"abcdef"]
    assert set(scripted.calls) == {"Encode", "BatchEncode"}


async def test_a_server_that_stays_away_is_every_callers_error_once(scripted: ScriptedServer) -> None:
    scripted.faults = [Fault() for _ in range(200)]
    async with tokend.AsyncClient(scripted.start()) as client:
        errors = await asyncio.gather(*(client.encode(text) for text in "abcdef"), return_exceptions=True)
    assert {type(error) for error in errors} == {tokend.UnavailableError}
    assert len({id(error) for error in errors}) == 6, "callers add their tracebacks to their exceptions"
    assert len(scripted.calls) <= 10, "five attempts each for the lone call and for the batch"


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED])
async def test_what_is_refused_for_its_credentials_is_not_sent_again(
    scripted: ScriptedServer, code: grpc.StatusCode
) -> None:
    scripted.faults = [Fault(code=code) for _ in range(20)]
    async with tokend.AsyncClient(scripted.start()) as client:
        errors = await asyncio.gather(*(client.encode(text) for text in "abcdef"), return_exceptions=True)
    assert {error.code for error in errors} == {code}
    assert len(scripted.calls) == 2


async def test_each_call_keeps_its_own_time_limit(scripted: ScriptedServer) -> None:
    scripted.gate.clear()
    async with tokend.AsyncClient(scripted.start(), timeout_s=60) as client:
        first = asyncio.create_task(client.encode("first"))
        patient = [asyncio.create_task(client.encode("patient", timeout_s=float("inf"))) for _ in range(3)]
        started_s = time.monotonic()
        hasty = await asyncio.gather(
            *(client.encode("hasty", timeout_s=limit_s) for limit_s in (0.3, 0.2)), return_exceptions=True
        )
        assert 0.25 < time.monotonic() - started_s < 2
        assert [type(error) for error in hasty] == [tokend.DeadlineExceededError] * 2
        assert isinstance(hasty[0], TimeoutError)
        assert "0.3 s" in str(hasty[0])
        scripted.gate.set()
        assert [(await call).token_count for call in (first, *patient)] == [5, 7, 7, 7]


async def test_cancelling_a_call_leaves_the_others(scripted: ScriptedServer) -> None:
    scripted.gate.clear()
    async with tokend.AsyncClient(scripted.start()) as client:
        calls = [asyncio.create_task(client.encode(text)) for text in "abcdef"]
        await both_under_way(scripted)
        waiting = [asyncio.create_task(client.encode(text)) for text in "gh"]
        await asyncio.sleep(0)
        for call in (calls[3], waiting[0]):
            call.cancel()
        await asyncio.sleep(0.05)
        assert not scripted.cancelled.is_set()
        scripted.gate.set()
        results = await asyncio.gather(*calls, *waiting, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [
        index in {3, 6} for index in range(8)
    ]


async def test_a_batch_that_everyone_has_left_is_cancelled(scripted: ScriptedServer) -> None:
    scripted.gate.clear()
    async with tokend.AsyncClient(scripted.start()) as client:
        first = asyncio.create_task(client.encode("first"))
        calls = [asyncio.create_task(client.encode(text)) for text in "abcdef"]
        await both_under_way(scripted)
        for call in calls:
            call.cancel()
        assert await asyncio.to_thread(scripted.cancelled.wait, 5)
        scripted.gate.set()
        assert (await first).token_count == 5
        assert (await client.encode("next")).token_count == 4


async def test_calls_that_hang_do_not_hold_up_those_behind_them(scripted: ScriptedServer) -> None:
    scripted.faults = [Fault(hang_s=3) for _ in range(4)]
    async with tokend.AsyncClient(scripted.start()) as client:
        hanging = []
        for text in "abcd":
            hanging.append(asyncio.create_task(client.encode(text)))
            await asyncio.sleep(0.01)
        started_s = time.monotonic()
        assert (await client.encode("next")).token_count == 4
        assert time.monotonic() - started_s < 1.5
        for call in hanging:
            call.cancel()


async def test_limits_that_an_operator_lowered_are_nobodys_error(
    server_for: Callable[..., RunningServer],
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
    target = server_for(byte_level_bpe(), *flags).grpc
    texts = [f"{number:05}" for number in range(60)]
    async with tokend.AsyncClient(target) as client:
        encoded = await asyncio.gather(*map(client.encode, texts))
        assert [bytes(one.ids[1:]).decode() for one in encoded] == texts
        assert [
            one.text for one in await asyncio.gather(*(client.decode(one.ids) for one in encoded))
        ] == texts
        assert {one.total for one in await asyncio.gather(*map(client.count, texts))} == {6}
        results = await asyncio.gather(*map(client.encode, [*texts, "x" * 51]), return_exceptions=True)
    assert [getattr(result, "reason", "") for result in results] == [""] * 60 + ["TEXT_TOO_LARGE"]


async def test_options_never_leak_from_call_to_call(client: tokend.AsyncClient) -> None:
    async def check(number: int) -> None:
        special, length = number % 2 == 0, number % 5 + 2
        encoded = await client.encode("abcdefgh", add_special_tokens=special, max_tokens=length)
        assert encoded.token_count == length
        assert (encoded.ids[0] == 262) is special

    for _ in range(3):
        await asyncio.gather(*map(check, range(64)))


async def test_kept_options_are_still_checked(client: tokend.AsyncClient) -> None:
    assert (await client.encode("a", add_special_tokens=True)).token_count == 2
    with pytest.raises(TypeError, match="is a bool, not int"):
        await client.encode("a", add_special_tokens=1)  # type: ignore[arg-type]
    allowed = iter(["<|end|>"])
    counts = [(await client.count("<|end|>", allowed_special_tokens=allowed)).total for _ in range(2)]
    assert counts == [2, 8], "an iterator that is used up is not remembered"


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whoever_leaves_at_whatever_moment_disturbs_nobody(byte_server: RunningServer, seed: int) -> None:
    chance = random.Random(seed)

    async def encoded(client: tokend.AsyncClient, text: str, options: Any) -> None:
        ids = (await client.encode(text, add_special_tokens=False, **options)).ids
        assert bytes(ids).decode() == text

    async def decoded(client: tokend.AsyncClient, text: str) -> None:
        async with client.decoder() as decoder:
            pieces = [await decoder.push(byte) for byte in text.encode()]
            assert "".join(pieces) + await decoder.finish() == text

    async def run() -> None:
        async with tokend.AsyncClient(byte_server.grpc) as client:
            tasks = []
            for number in range(150):
                options = {"max_tokens": 100} if chance.random() < 0.3 else {}
                work = (
                    encoded(client, f"text {number}", options)
                    if number % 3
                    else decoded(client, f"é {number}")
                )
                tasks.append(asyncio.create_task(work))
                if chance.random() < 0.5:
                    await asyncio.sleep(chance.random() / 1000)
                if chance.random() < 0.4:
                    chance.choice(tasks).cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
            ends_s = time.monotonic() + 5
            while byte_server.metric("tokend_live_sequences"):
                assert time.monotonic() < ends_s, "the server still has a sequence that everyone left"
                await asyncio.sleep(0.02)

    asyncio.run(run())


async def test_closing_the_client_ends_every_call(scripted: ScriptedServer) -> None:
    scripted.gate.clear()
    client = tokend.AsyncClient(scripted.start())
    under_way = [asyncio.create_task(client.encode(text)) for text in "abc"]
    await both_under_way(scripted)
    waiting = [asyncio.create_task(client.encode("x" * 10)) for _ in range(400)]
    await asyncio.sleep(0)
    await client.close()
    errors = await asyncio.gather(*under_way, *waiting, return_exceptions=True)
    assert {type(error) for error in errors} == {tokend.CallCancelledError}
    with pytest.raises(RuntimeError, match="closed"):
        await client.encode("a")


async def test_an_encoding_owns_its_ids_and_not_the_whole_batch(client: tokend.AsyncClient) -> None:
    encoded = await asyncio.gather(*(client.encode("abc") for _ in range(100)))
    assert {(type(one.packed_ids), len(one.packed_ids)) for one in encoded} == {(bytes, 16)}


@given(
    most=st.integers(1, 8),
    least_share=st.integers(1, 64),
    events=st.lists(st.one_of(st.integers(1, 300), st.just(0)), max_size=60),
)
def test_nothing_waits_while_nothing_is_under_way(most: int, least_share: int, events: list[int]) -> None:
    flights = Flights(most=most, least_share=least_share)
    under_way: list[int] = []
    waiting = 0
    for n_more in events:
        waiting += n_more
        if not n_more and under_way:
            flights.end(under_way.pop(0))
        while size := flights.next_size(waiting):
            assert 0 < size <= waiting
            flights.start(size)
            under_way.append(size)
            waiting -= size
        assert under_way or not waiting
        assert len(under_way) <= most
        assert (flights.under_way, flights.items) == (len(under_way), sum(under_way))


async def test_one_timer_serves_waits_of_every_length() -> None:
    loop = asyncio.get_running_loop()
    expired: list[float] = []

    class Wait:
        def __init__(self, wait_s: float) -> None:
            self.wait_s, self.ends_at = wait_s, loop.time() + wait_s

        def expire(self) -> None:
            assert loop.time() >= self.ends_at
            expired.append(self.wait_s)

    limits = TimeLimits()
    waits = [Wait(wait_s) for wait_s in (0.3, 0.1, 0.2, 0.15, 60)]
    for wait in waits:
        limits.add(wait)
    limits.discard(waits[3])
    await asyncio.sleep(0.5)
    assert expired == [0.1, 0.2, 0.3]
    limits.close()
