"""Clients that flood: with calls that they reset at once, with metadata, with headers that never end, with silence.

Others keep being served meanwhile, and nothing that was theirs is left afterwards.
"""

import asyncio
import time

import grpc
import pytest

from tests.faults.bystander import MIB, Bystander
from tests.faults.load import LARGE
from tests.faults.raw_http2 import connected
from tests.integration.wire import Wire, in_flight, one_sequence, until
from tests.integration.workers import n_threads
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import tokenizer_service_pb2_grpc as pb_grpc

N_RESETS, N_METADATA = (50_000, 5_000) if LARGE else (4_000, 500)
N_IDLE = 5_000
N_HEADER_BYTES = (256 if LARGE else 64) * MIB


@pytest.mark.parametrize("method", ["StreamDecode", "Encode"])
def test_a_flood_of_calls_that_are_reset_at_once_harms_nobody_else(server_with, tell, method):
    server = server_with()
    message = pb.EncodeRequest(text="the").SerializeToString()
    n_sent = n_connections = 0
    started_s = time.monotonic()
    with Bystander(server) as beside:
        while n_sent < N_RESETS:
            n_connections += 1
            with connected(server.grpc) as flood:
                while n_sent < N_RESETS and not flood.is_cut:
                    flood.reset(flood.open(method, message=message))
                    n_sent += 1
                    if n_sent % 100 == 0:
                        flood.hear()
                        beside.look()
        took_s = time.monotonic() - started_s
    until(lambda: in_flight(server) == {})
    # gRPC lets 16,384 calls wait that nobody has taken up, at 15 KB each.
    assert beside.grown_mib < 350
    assert beside.most_threads < beside.before_threads + 300
    tell(
        f"a flood of RST_STREAM, {method}",
        load=f"{n_sent} calls reset, {n_sent / took_s:.0f} a second, on {n_connections} connections",
        lost=f"none of {beside.load.n_answered} of a client beside it",
        after=beside.told,
    )


@pytest.mark.parametrize("metadata_bytes", [12_000, 60_000])
def test_a_flood_of_metadata_harms_nobody_else(server_with, tell, metadata_bytes):
    server = server_with()
    metadata = [(f"x-{n}", "m" * 1_000) for n in range(metadata_bytes // 1_000)]
    message = pb.EncodeRequest(text="the")
    codes = set()
    with Bystander(server) as beside, Wire(server.grpc, grpc__max_metadata_size=1 << 20) as flood:
        for _ in range(0, N_METADATA, 100):
            calls = [flood.stub.Encode.future(message, metadata=metadata, timeout=60) for _ in range(100)]
            codes |= {call.code() for call in calls}
            beside.look()
    assert codes == {grpc.StatusCode.OK if metadata_bytes < 16_384 else grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert beside.grown_mib < 100
    tell(
        f"a flood of metadata, {metadata_bytes // 1_000} KB a call",
        load=f"{N_METADATA} calls, 100 at a time",
        lost=f"none of {beside.load.n_answered} of a client beside it; {codes.pop().name} for the flood",
        after=beside.told,
    )


def test_headers_that_never_end_are_not_kept(server_with, tell):
    server = server_with()
    # A literal header of 16 KB, by hand: new name, not indexed.
    block = b"\x00\x01x" + b"\x7f\x81\x7d" + b"v" * 16_000
    n_sent = 0
    with Bystander(server) as beside, connected(server.grpc) as flood:
        while n_sent < N_HEADER_BYTES and not flood.is_cut:
            flood.endless_headers(block)
            n_sent += len(block)
            if n_sent % (100 * len(block)) == 0:
                flood.hear()
                beside.look()
        beside.look()
    until(lambda: in_flight(server) == {})
    assert beside.grown_mib < 50
    tell(
        "headers that never end",
        load=f"{n_sent / MIB:.0f} MB of CONTINUATION frames"
        + (", then cut off by the server" * flood.is_cut),
        lost=f"none of {beside.load.n_answered} of a client beside it",
        after=beside.told,
    )


def test_thousands_of_idle_streams_take_bounded_memory_and_hold_nobody_up(server_with, tell):
    server = server_with()

    async def hold_open(beside: Bystander) -> None:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            stub = pb_grpc.TokenizerServiceStub(channel)
            streams = [stub.StreamDecode(timeout=120) for _ in range(N_IDLE)]
            for stream in streams:
                await stream.write(one_sequence([0xF0]))
            for stream in streams:
                assert (await stream.read()).sequences[0].pending_bytes == 1
            assert server.metric("tokend_live_streams", method="StreamDecode") >= N_IDLE
            await asyncio.to_thread(beside.is_served, 50)
            beside.look()
            for stream in streams:
                stream.cancel()

    with Bystander(server) as beside:
        asyncio.run(hold_open(beside))
    until(lambda: in_flight(server) == {})
    # A thread each, and some tens of kilobytes.
    assert beside.most_threads <= beside.before_threads + N_IDLE + 100
    assert beside.grown_mib < N_IDLE * 0.08
    until(lambda: n_threads(server.process.pid) < beside.before_threads + 100)
    tell(
        f"{N_IDLE:,} idle streams",
        load="each with a character half sent",
        lost=f"none of {beside.load.n_answered} calls of a client beside it",
        after=beside.told,
    )
