"""More than there is room for: who has left is not worked for, who does not read takes little, and all others are told."""

import asyncio
import time
from collections import Counter
from pathlib import Path

import grpc

from tests.integration.wire import (
    Wire,
    encode_options,
    in_flight,
    one_sequence,
    until,
)
from tests.servers import RunningServer
from tests.tokenizers_for_tests import byte_level_bpe
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import tokenizer_service_pb2_grpc as pb_grpc
from tokend.v1 import types_pb2 as types
from tokend_server.cores import usable_cores

MIB = 2**20
PACKED = encode_options(id_format=types.ID_FORMAT_PACKED)
# Some tenths of a second for the reference, and 0.8 MB.
LONG = pb.EncodeRequest(text="hello the world " * 50_000, options=PACKED)


def resident_bytes(server: RunningServer) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def test_the_engine_never_sees_a_call_whose_caller_has_left(wire: Wire, byte_server: RunningServer):
    def n_seen() -> float:
        return byte_server.metric("tokend_engine_texts_total", engine="reference")

    until(lambda: in_flight(byte_server) == {})
    before = n_seen()
    # They keep the threads for such calls busy for longer than those behind them wait.
    ahead = [wire.stub.Encode.future(LONG, timeout=60) for _ in range(3 * usable_cores())]
    until(lambda: byte_server.metric("tokend_work_texts", kind="unary") == len(ahead))
    expired = [wire.stub.Encode.future(LONG, timeout=0.1) for _ in range(3)]
    cancelled = [wire.stub.Encode.future(LONG, timeout=60) for _ in range(3)]
    assert {call.code() for call in expired} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    for call in cancelled:
        call.cancel()
    assert not ahead[-1].done(), "the threads were not busy meanwhile"
    assert {call.code() for call in ahead} == {grpc.StatusCode.OK}
    until(lambda: in_flight(byte_server) == {})
    assert n_seen() - before == len(ahead)
    assert byte_server.metric("tokend_work_bytes", kind="unary") == 0


def most_grown(server: RunningServer, for_s: float) -> int:
    before, greatest = resident_bytes(server), 0
    deadline_s = time.monotonic() + for_s
    while time.monotonic() < deadline_s:
        greatest = max(greatest, resident_bytes(server))
        time.sleep(0.05)
    return greatest - before


def test_batches_whose_answers_nobody_reads_take_bounded_memory(wire: Wire, byte_server: RunningServer):
    message = pb.StreamEncodeRequest(texts=["hello the world " * 6_000], options=PACKED).SerializeToString()
    before = byte_server.metric("grpc_server_msg_received_total", grpc_method="StreamEncode")
    # Its deadline ends it on the native front, which does not tell the server that such a client has left.
    stream = wire.raw_stream("StreamEncode", timeout=6)
    for _ in range(2_000):
        stream.send(message)
    # All of them and their answers are 600 MB. What the library takes while it works on one is the most of this.
    assert most_grown(byte_server, 3) < 150 * MIB
    received = byte_server.metric("grpc_server_msg_received_total", grpc_method="StreamEncode") - before
    assert 1 < received < 1_000
    stream.cancel()
    until(lambda: in_flight(byte_server) == {})


def test_downloads_that_nobody_reads_take_bounded_memory(tmp_path: Path, front: str):
    file = tmp_path / "tokenizer.json"
    file.write_text(byte_level_bpe() + " " * (40 * MIB), encoding="utf-8")
    server = RunningServer("--front", front, "--drain-grace-s", "1", tokenizer=file)
    with Wire(server.grpc) as wire:
        calls = [wire.stub.DownloadTokenizer(pb.DownloadTokenizerRequest(), timeout=20) for _ in range(20)]
        # Each has a chunk or two of 1 MiB, and what gRPC buffers on both sides; all of them whole are 800 MB.
        assert most_grown(server, 2) < 200 * MIB
        size = sum(len(answer.chunk) for answer in calls[0])
        assert size == file.stat().st_size
        for call in calls:
            call.cancel()
        until(lambda: in_flight(server) == {})
    assert server.stop() == 0


def test_5000_streams_at_once_are_served_or_told_that_they_are_too_many(server_for):
    """By itself gRPC cuts off bursts of more than 1,000 new streams; tests/faults has 5,000 that are all served."""
    n_streams, max_streams = 5_000, 2_000
    server = server_for(byte_level_bpe(), "--max-streams", str(max_streams))

    async def open_all() -> Counter[str]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(server.grpc, options=options) for _ in range(4)]
        stubs = [pb_grpc.TokenizerServiceStub(channel) for channel in channels]
        seen: list[asyncio.Event] = []
        may_end = asyncio.Event()

        async def one(n: int) -> str:
            answered = asyncio.Event()
            seen.append(answered)
            stream = stubs[n % len(stubs)].StreamDecode(timeout=60)
            try:
                await stream.write(one_sequence([104]))
                answer = await stream.read()
                if answer is grpc.aio.EOF:
                    return told(await stream.code(), await stream.details())
                assert answer.sequences[0].text == "h"
                answered.set()
                # All are open at once: none makes room for another.
                await may_end.wait()
                await stream.done_writing()
            except grpc.aio.AioRpcError as failure:
                return told(failure.code(), failure.details())
            except asyncio.InvalidStateError:
                return told(await stream.code(), await stream.details())
            else:
                return "served"
            finally:
                answered.set()

        tasks = [asyncio.create_task(one(n)) for n in range(n_streams)]
        await asyncio.sleep(0)
        await asyncio.gather(*(answered.wait() for answered in seen))
        may_end.set()
        outcomes = Counter(await asyncio.gather(*tasks))
        for channel in channels:
            await channel.close()
        return outcomes

    def n_refused() -> tuple[float, float]:
        method = "StreamDecode"
        return (
            server.metric("tokend_refusals_total", method=method, reason="SERVER_OVERLOADED"),
            server.metric("grpc_server_handled_total", grpc_method=method, grpc_code="Unavailable"),
        )

    outcomes = asyncio.run(open_all())
    assert outcomes["served"] == max_streams
    # All others were told so; grpc.aio forgets the status where it comes before the client's first message has left.
    assert n_refused() == (n_streams - max_streams, n_streams - max_streams)
    assert outcomes[f"UNAVAILABLE: {TOO_MANY}"] > 0
    assert set(outcomes) <= {"served", f"UNAVAILABLE: {TOO_MANY}", "INTERNAL: Internal error from Core"}
    until(lambda: in_flight(server) == {})


TOO_MANY = "open streams, the most it takes"


def told(code: grpc.StatusCode, details: str) -> str:
    return f"{code.name}: {TOO_MANY if TOO_MANY in details else details}"
