"""Clients that take much and give nothing: messages at the limit, answers unread, scrapers that never stop."""

import socket

from tests.faults.bystander import MIB, Bystander
from tests.faults.load import LARGE
from tests.integration.wire import Wire, failure_of, in_flight, one_sequence, until
from tests.integration.workers import n_threads

N_SENDERS, N_READERS = (12, 100) if LARGE else (4, 20)
N_UNREAD = 800
N_VOLLEYS = 6 if LARGE else 2
MESSAGE_MIB = 60
N_SCRAPERS, N_PIPELINED = 70, 300


def test_messages_at_the_limit_from_many_clients_take_bounded_memory(server_with, stack, tell):
    server = server_with()
    text = b"x" * (MESSAGE_MIB * MIB)
    # Field 1 of an EncodeRequest; made by hand, so that all calls share one buffer.
    message = b"\x0a" + _varint(len(text)) + text
    senders = [stack.enter_context(Wire(server.grpc)) for _ in range(N_SENDERS)]
    with Bystander(server) as beside:
        reasons = set()
        # More than once: what the allocator keeps of one volley serves the next.
        for _ in range(N_VOLLEYS):
            calls = [
                wire.channel.unary_unary("/tokend.v1.TokenizerService/Encode").future(message, timeout=120)
                for wire in senders
            ]
            until(lambda: beside.look() or all(call.done() for call in calls), within_s=60)  # noqa: B023 (waited for here)
            reasons |= {failure_of(call).reason for call in calls}
    assert "TEXT_TOO_LARGE" in reasons
    assert reasons <= {"TEXT_TOO_LARGE", "SERVER_OVERLOADED"}
    # As it comes in, as bytes, as a message and as a text: no call is known before its message is there.
    assert beside.grown_mib < N_SENDERS * MESSAGE_MIB * 4
    tell(
        f"messages of {MESSAGE_MIB} MB from {N_SENDERS} clients at once, {N_VOLLEYS} times",
        load="all over the limit of a text",
        lost=f"none of {beside.load.n_answered} of a client beside them; {' and '.join(sorted(reasons))} for them",
        after=beside.told,
    )


def _varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def test_answers_that_nobody_reads_take_bounded_memory(server_with, stack, tell):
    server = server_with()
    message = one_sequence(packed_ids=b"x\0\0\0" * 10_000).SerializeToString()
    wire = stack.enter_context(Wire(server.grpc))
    with Bystander(server) as beside:
        # Their deadline ends them on the native front, which does not tell the server that such clients have left.
        streams = [wire.raw_stream("StreamDecode", timeout=8) for _ in range(N_READERS)]
        for stream in streams:
            for _ in range(N_UNREAD):
                stream.send(message)
        beside.is_served(100)
        beside.look()
        for stream in streams:
            stream.cancel()
        until(lambda: set(in_flight(server)) <= OF_THE_BYSTANDER)
    # For each its messages that came, one answer, and what the connection's windows hold; all that was sent would be
    # three times as much and more.
    assert beside.grown_mib < 80 + 6 * N_READERS
    tell(
        f"{N_READERS} streams whose answers nobody reads",
        load=f"each with {N_UNREAD} messages of 10,000 ids",
        lost=f"none of {beside.load.n_answered} of a client beside them",
        after=beside.told,
    )


OF_THE_BYSTANDER = {
    f"tokend_in_flight_calls{{'method': '{method}'}}"
    for method in ("Encode", "BatchEncode", "Decode", "StreamDecode")
} | {"tokend_live_streams{'method': 'StreamDecode'}", "tokend_live_sequences{}"}


def test_scrapers_that_ask_and_never_read_keep_nobody_out(server_with, stack, tell):
    server = server_with()
    host, _, port = server.ops.rpartition(":")
    asked = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * N_PIPELINED
    with Bystander(server) as beside:
        for _ in range(N_SCRAPERS):
            scraper = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            scraper.sendall(asked)
        beside.is_served(20)
        beside.look()
        for _ in range(5):
            assert server.get("/readyz") == "ready\n"
            assert server.metric("tokend_workers", state="serving") == 1
        beside.look()
    # 64 connections are kept, a thread each; the oldest make room for new ones.
    assert beside.most_threads <= beside.before_threads + 64 + 20
    assert beside.grown_mib < 100
    stack.close()
    until(lambda: n_threads(server.process.pid) < beside.before_threads + 20)
    tell(
        f"{N_SCRAPERS} clients of the ops port that ask and never read",
        load=f"{N_PIPELINED} requests each, pipelined",
        lost=f"no scrape, no probe, none of {beside.load.n_answered} calls beside them",
        after=beside.told,
    )
