"""Streamed decoding: many sequences in a message, and one token on a lone stream."""

import asyncio
import itertools
import queue
import time
from collections.abc import Iterator
from statistics import median

import grpc
import grpc.aio
from benchmarks import echo as echoes
from benchmarks import texts
from benchmarks.measure import in_turn, two_cores
from benchmarks.results import Row, Sizes, Target
from benchmarks.servers import Server, echo, tokenizer_file
from benchmarks.servers import tokend as serve
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

import tokend
from tokend.v1 import tokenizer_service_pb2 as pb

__all__ = ["compare_lone_push", "compare_long_sequence", "compare_shared_stream"]

_STREAM_DECODE = "/tokend.v1.TokenizerService/StreamDecode"
_SEQUENCES = 256
_TOKENS_EACH = 400
_IDS_A_MESSAGE = 10
_SHARED_TARGET = Target(at_least=250_000, aim=1_000_000, unit="/s")
_PUSH_TARGET = Target(at_least=1.2, aim=1.05)


class _Stream:
    """One stream, a message and its answer in turn."""

    def __init__(self, channel: grpc.Channel, method: str) -> None:
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers = channel.stream_stream(method)(iter(self._waiting.get, None))

    def exchange(self, message: bytes) -> bytes:
        """Send a message and wait for its answer."""
        self._waiting.put(message)
        return next(self._answers)

    def close(self) -> None:
        """End it, and wait for the server's end."""
        self._waiting.put(None)
        list(self._answers)


def _token_lists(library: Tokenizer, n: int) -> list[list[int]]:
    """Ids of real text in many languages, as many for each sequence."""
    found, fresh = [], texts.fresh(3_000, 7)
    while len(found) < n:
        ids = library.encode_batch_fast([next(fresh)])[0].ids
        if len(ids) >= _TOKENS_EACH:
            found.append(ids[:_TOKENS_EACH])
    return found


def compare_shared_stream(sizes: Sizes) -> Iterator[Row]:
    """One token of each of 256 sequences in a message; the server has one core."""
    core, _ = two_cores()
    file = tokenizer_file(sizes.file)
    library = Tokenizer.from_file(str(file))
    lists = _token_lists(library, _SEQUENCES)
    messages = [
        pb.StreamDecodeRequest(
            sequences=[
                {"sequence_id": n, "packed_ids": ids[at].to_bytes(4, "little")} for n, ids in enumerate(lists)
            ]
        ).SerializeToString()
        for at in range(_TOKENS_EACH)
    ]

    def in_process(_: int) -> float:
        streams = [DecodeStream(skip_special_tokens=True) for _ in range(_SEQUENCES)]
        n_tokens, start_s = 0, time.process_time()
        for at in itertools.cycle(range(_TOKENS_EACH)):
            for stream, ids in zip(streams, lists, strict=True):
                stream.step(library, ids[at])
            n_tokens += _SEQUENCES
            if time.process_time() - start_s > sizes.seconds:
                return n_tokens / (time.process_time() - start_s)
        raise AssertionError

    with serve(file, core=core) as server:
        rates = in_turn(
            sizes.rounds,
            {"tokend": lambda _: _tokens_per_cpu_s(server, messages, sizes.seconds), "library": in_process},
        )
    medians = {way: median(each) for way, each in rates.items()}
    yield Row(
        number=6,
        what="StreamDecode, 256 sequences a message: tokens a server-CPU second",
        value=medians["tokend"],
        target=_SHARED_TARGET,
        note=f"DecodeStream in process: {medians['library']:,.0f} tokens a CPU second",
        figures={"tokens_per_cpu_s": rates},
    )


def _tokens_per_cpu_s(server: Server, messages: list[bytes], seconds: float) -> float:
    with grpc.insecure_channel(server.target) as channel:
        stream = _Stream(channel, _STREAM_DECODE)
        n_messages, before_s = 0, server.tree.cpu_s()
        end_s = time.perf_counter() + seconds
        for message in itertools.cycle(messages):
            stream.exchange(message)
            n_messages += 1
            if time.perf_counter() > end_s:
                break
        took_s = server.tree.cpu_s() - before_s
        stream.close()
    return n_messages * _SEQUENCES / took_s


def compare_long_sequence(sizes: Sizes) -> Iterator[Row]:
    """One sequence of very many tokens: what those of the last tenth cost against those of the first."""
    core, _ = two_cores()
    file = tokenizer_file(sizes.file)
    ids = _token_lists(Tokenizer.from_file(str(file)), 1)[0]
    messages = [
        pb.StreamDecodeRequest(
            sequences=[
                {
                    "packed_ids": b"".join(
                        token_id.to_bytes(4, "little") for token_id in ids[at : at + _IDS_A_MESSAGE]
                    )
                }
            ]
        ).SerializeToString()
        for at in range(0, _TOKENS_EACH, _IDS_A_MESSAGE)
    ]
    waiting = itertools.cycle(messages)
    n_in_tenth = sizes.sequence_tokens // 10
    with serve(file, core=core) as server, grpc.insecure_channel(server.target) as channel:
        stream = _Stream(channel, _STREAM_DECODE)
        tenths_s = []
        for _ in range(10):
            before_s = server.tree.cpu_s()
            for _ in range(n_in_tenth // _IDS_A_MESSAGE):
                stream.exchange(next(waiting))
            tenths_s.append(server.tree.cpu_s() - before_s)
        stream.close()
    cost_us = [each / n_in_tenth * 1e6 for each in tenths_s]
    yield Row(
        number=12,
        what=f"a token of the last tenth of {sizes.sequence_tokens:,} of one sequence against one of the first",
        value=cost_us[-1] / cost_us[0],
        note=f"{cost_us[-1]:.1f} us of server CPU against {cost_us[0]:.1f} us, {_IDS_A_MESSAGE} a message",
        figures={"us_a_token": cost_us},
    )


def compare_lone_push(sizes: Sizes) -> Iterator[Row]:
    """One push after the other on one stream, against an echo stream of the same bytes, by turns; p50."""
    file = tokenizer_file(sizes.file)
    ids = _token_lists(Tokenizer.from_file(str(file)), 1)[0]
    request = pb.StreamDecodeRequest(sequences=[{"packed_ids": bytes(4)}]).SerializeToString()
    with serve(file) as server, echo("grpcio", _usual_reply_bytes(server, ids)) as other:
        took_s = {
            "Decoder": _blocking_pushes(server, other, ids, request, sizes.pushes),
            "AsyncDecoder": asyncio.run(_awaited_pushes(server, other, ids, request, sizes.pushes)),
        }
    for name, (pushes, echo_pushes) in took_s.items():
        p50_us, echo_p50_us = median(pushes) * 1e6, median(echo_pushes) * 1e6
        yield Row(
            number=7,
            what=f"a lone push of one token, p50 against an echo stream, {name}",
            value=p50_us / echo_p50_us,
            target=_PUSH_TARGET,
            note=f"{p50_us:.0f} us against {echo_p50_us:.0f} us",
            figures={"p50_us": {"push": p50_us, "echo": echo_p50_us}},
        )


def _usual_reply_bytes(server: Server, ids: list[int]) -> int:
    """Bytes of an answer that is not the first, which carries the fingerprint."""
    with grpc.insecure_channel(server.target) as channel:
        stream = _Stream(channel, _STREAM_DECODE)
        found = []
        for token_id in ids[:50]:
            message = pb.StreamDecodeRequest(sequences=[{"packed_ids": token_id.to_bytes(4, "little")}])
            found.append(len(stream.exchange(message.SerializeToString())))
        stream.close()
    return int(median(found[1:]))


def _blocking_pushes(
    server: Server, other: Server, ids: list[int], request: bytes, n: int
) -> tuple[list[float], list[float]]:
    pushes, echo_pushes = [], []
    with (
        tokend.Client(server.target) as client,
        grpc.insecure_channel(other.target) as channel,
        client.decoder() as decoder,
    ):
        stream = _Stream(channel, echoes.STREAM)
        # The first ones open the streams.
        for token_id in itertools.islice(itertools.cycle(ids), n + 20):
            start_s = time.perf_counter()
            decoder.push(token_id)
            between_s = time.perf_counter()
            stream.exchange(request)
            echo_pushes.append(time.perf_counter() - between_s)
            pushes.append(between_s - start_s)
        stream.close()
    return pushes[20:], echo_pushes[20:]


async def _awaited_pushes(
    server: Server, other: Server, ids: list[int], request: bytes, n: int
) -> tuple[list[float], list[float]]:
    pushes, echo_pushes = [], []
    async with (
        tokend.AsyncClient(server.target) as client,
        grpc.aio.insecure_channel(other.target) as channel,
        client.decoder() as decoder,
    ):
        stream = channel.stream_stream(echoes.STREAM)()
        for token_id in itertools.islice(itertools.cycle(ids), n + 20):
            start_s = time.perf_counter()
            await decoder.push(token_id)
            between_s = time.perf_counter()
            await stream.write(request)
            await stream.read()
            echo_pushes.append(time.perf_counter() - between_s)
            pushes.append(between_s - start_s)
        await stream.done_writing()
    return pushes[20:], echo_pushes[20:]
