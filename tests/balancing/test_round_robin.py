"""gRPC's own balancing in the client, over several servers: what it spreads, and what it loses when they come and go."""

import asyncio
from collections.abc import Iterator

import grpc
import pytest

import tokend
from tests.balancing.backends import Backends
from tests.balancing.load import Load, assert_even, assert_spread_evenly
from tests.balancing.name_server import NameServer
from tests.integration.wire import Wire, one_sequence, until
from tokend.v1 import tokenizer_service_pb2 as pb

TEXT = "Hello world"
ROUND_ROBIN = '{"loadBalancingConfig": [{"round_robin": {}}]}'
RETRIES = """{"methodConfig": [{"name": [{}], "retryPolicy": {
    "maxAttempts": 5, "initialBackoff": "0.05s", "maxBackoff": "1s", "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"]}}]}"""


def test_calls_are_spread_evenly(backends: Backends):
    with tokend.Client(backends.addresses()) as client:
        assert_spread_evenly(backends, lambda: client.encode(TEXT), n_calls=600)


@pytest.mark.parametrize("join_calls", [False, True], ids=["single", "joined"])
async def test_calls_of_the_async_client_are_spread_evenly(backends: Backends, *, join_calls: bool):
    async with tokend.AsyncClient(backends.addresses(), join_calls=join_calls) as client:

        async def all_are_used() -> None:
            while not all((await asyncio.to_thread(backends.answered_more)).values()):
                for _ in range(6):
                    await asyncio.gather(*(client.encode(TEXT) for _ in range(6)))

        backends.answered_more()
        await asyncio.wait_for(all_are_used(), 20)
        for _ in range(300):
            await client.encode(TEXT)
        assert_even(await asyncio.to_thread(backends.answered_more))


def test_a_rolling_restart_loses_no_call(backends: Backends):
    addresses = backends.addresses()
    with tokend.Client(addresses, timeout_s=20) as client, Load(lambda: client.encode(TEXT)) as load:
        for number in range(3):
            load.wait_for(100)
            backends.terminate(number)
            load.wait_for(100)
            backends.start(number)
            until(lambda number=number: backends.answered()[number] > 0)
    assert [failed.error for failed in load.failed] == []


def test_a_server_that_drains_sends_its_callers_on_at_once(backends: Backends):
    address = backends.address(0)
    with (
        Wire(address) as beside,
        # A client that stays with one server while it can, as behind a plain Service.
        Wire(f"ipv4:{address},{backends.address(1)}", grpc__service_config=RETRIES) as wire,
    ):
        stream = beside.stream("StreamDecode")
        stream.ask(one_sequence(b"a"))
        request = pb.EncodeRequest(text=TEXT)
        wire.stub.Encode(request, timeout=20)
        with Load(lambda: wire.stub.Encode(request, timeout=20)) as load:
            load.wait_for(100)
            process = backends.begin_to_terminate(0)
            load.wait_for(100)
            # It drains all the while: a stream has something open.
            assert process.poll() is None
            assert stream.ask(one_sequence(b"b", end=True)).sequences[0].ended
            backends.terminate(0)
    assert [failed.error for failed in load.failed] == []


def test_an_encode_stream_survives_a_rolling_restart(backends: Backends):
    texts = [f"text {number}" for number in range(300)]

    def between_restarts() -> Iterator[str]:
        for number, text in enumerate(texts):
            if number % 100 == 99:
                backends.terminate(number // 100)
                backends.start(number // 100)
            yield text

    with tokend.Client(backends.addresses(), timeout_s=20) as client:
        expected = [each.ids for each in client.encode_batch(texts)]
        streamed = client.encode_stream(between_restarts(), batch_texts=10, in_flight=2)
        assert [each.ids for each in streamed] == expected


def test_of_a_killed_server_only_calls_that_were_with_it_fail(backends: Backends):
    # A client that never sends a call again, to see each one that is lost.
    target = f"ipv4:{','.join(backends.addresses())}"
    with Wire(target, grpc__service_config=ROUND_ROBIN) as wire:
        request = pb.EncodeRequest(text=TEXT)
        with Load(lambda: wire.stub.Encode(request, timeout=20), n_callers=8) as load:
            backends.answered_more()
            until(lambda: all(backends.answered_more().values()))
            backends.kill(0)
            load.wait_for(200)
    # One a caller at most, which is what it had sent to that server. Whatever came later went to the others.
    assert len({failed.caller for failed in load.failed}) == len(load.failed)
    assert {failed.error.code() for failed in load.failed} <= {grpc.StatusCode.UNAVAILABLE}


def test_our_client_loses_no_call_by_a_killed_server_and_uses_one_that_comes(backends: Backends):
    addresses = backends.addresses()
    with tokend.Client(addresses, timeout_s=20) as client, Load(lambda: client.encode(TEXT)) as load:
        backends.answered_more()
        until(lambda: all(backends.answered_more().values()))
        backends.kill(0)
        load.wait_for(200)
        backends.start(0)
        until(lambda: backends.answered()[0] > 0)
    assert [failed.error for failed in load.failed] == []


def busy(backends: Backends) -> set[int]:
    """The servers that have answered since the last look."""
    return {number for number, n_calls in backends.answered_more().items() if n_calls}


def test_a_name_is_asked_again_when_a_server_leaves(backends: Backends):
    with NameServer(backends.host(0), backends.host(1)) as names:
        target = names.target(backends.port)
        with tokend.Client(target, timeout_s=20) as client, Load(lambda: client.encode(TEXT)) as load:
            backends.answered_more()
            until(lambda: busy(backends) == {0, 1})
            names.name(backends.host(1), backends.host(2))
            backends.terminate(0)
            backends.answered_more()
            until(lambda: busy(backends) == {1, 2})
    assert [failed.error for failed in load.failed] == []


def test_a_new_server_is_used_within_the_age_of_a_connection(aging_backends: Backends):
    backends = aging_backends
    with NameServer(backends.host(0)) as names:
        target = names.target(backends.port)
        with tokend.Client(target, timeout_s=20) as client, Load(lambda: client.encode(TEXT)) as load:
            load.wait_for(100)
            assert busy(backends) == {0}
            # Nothing happens to the server that is used, but that its connection grows old.
            names.name(backends.host(0), backends.host(1))
            until(lambda: busy(backends) == {0, 1})
    assert [failed.error for failed in load.failed] == []
