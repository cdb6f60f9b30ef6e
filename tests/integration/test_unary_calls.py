"""How a unary call comes in and leaves: what it holds while its message is not there, and what small ones never wait for."""

import queue
import re
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from tests.integration.wire import WITHIN_S, Wire, encode_options, in_flight, refused, until
from tests.servers import RunningServer
from tokend.v1 import tokenizer_service_pb2 as pb

ENCODE = "/tokend.v1.TokenizerService/Encode"
SMALL = pb.EncodeRequest(text="hi")
N_SILENT = 200


def silent_call(wire: Wire, stack: ExitStack):
    """A call that has begun and sends no message; it is left at the stack's end."""
    # Any method can be called as a stream: on the wire only what is sent differs.
    messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    call = wire.channel.stream_stream(ENCODE)(iter(messages.get, None), timeout=WITHIN_S)
    stack.callback(messages.put, None)
    stack.callback(call.cancel)
    return messages, call


def n_threads(server: RunningServer) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
    return int(re.search(r"^Threads:\s+(\d+)", status, re.MULTILINE)[1])


def test_calls_without_a_message_hold_no_thread_and_nobody_up(
    wire: Wire, byte_server: RunningServer, front: str, stack: ExitStack
):
    wire.stub.Encode(SMALL)
    before = n_threads(byte_server)
    silent = [silent_call(wire, stack) for _ in range(N_SILENT)]
    if front == "grpcio":
        # The native front tells of a call when its message is there.
        until(lambda: in_flight(byte_server).get("tokend_in_flight_calls{'method': 'Encode'}") == N_SILENT)
    for _ in range(20):
        assert list(wire.stub.Encode(SMALL, timeout=WITHIN_S).encoding.ids)
    # A thread of the pool for calls that are not small, at most, and gRPC's own few.
    assert n_threads(byte_server) - before < 20
    for messages, _ in silent[:50]:
        messages.put(SMALL.SerializeToString())
        messages.put(None)
    assert all(pb.EncodeResponse.FromString(next(call)).encoding.ids for _, call in silent[:50])
    for _, call in silent[50:]:
        call.cancel()
    until(lambda: in_flight(byte_server) == {})


def test_a_call_that_ends_without_a_message_is_told_so(wire: Wire, byte_server: RunningServer, front: str):
    name, labels = "grpc_server_handled_total", {"grpc_method": "Encode", "grpc_code": "Unimplemented"}
    before = byte_server.metric(name, **labels)
    failure = refused(lambda **options: list(wire.channel.stream_stream(ENCODE)(iter(()), **options)))
    if front == "native":
        # docs/configuration.md lists what the native front does otherwise.
        assert failure.code is grpc.StatusCode.INTERNAL
        return
    assert failure.code is grpc.StatusCode.UNIMPLEMENTED
    assert failure.message == f'"{ENCODE}" requires exactly one request message.'
    until(lambda: in_flight(byte_server) == {})
    assert byte_server.metric(name, **labels) == before + 1


def test_a_call_that_is_cancelled_before_its_message_counts_as_cancelled(
    wire: Wire, byte_server: RunningServer, front: str, stack: ExitStack
):
    if front == "native":
        pytest.skip("the native front tells of a call when its message is there")
    name, labels = "grpc_server_handled_total", {"grpc_method": "Encode", "grpc_code": "Canceled"}
    before = byte_server.metric(name, **labels)
    _, call = silent_call(wire, stack)
    until(lambda: in_flight(byte_server) != {})
    call.cancel()
    until(lambda: in_flight(byte_server) == {})
    assert byte_server.metric(name, **labels) == before + 1


def test_small_calls_are_answered_in_any_order_of_sizes_and_policies(wire: Wire):
    """What is answered where it comes in, and what goes to a thread, give the same."""
    texts = ["a", "b" * 2_000, "c" * 2_100, "d" * 40_000, "<|bos|>" * 3]
    options = [encode_options(), encode_options(allowed_special_tokens=["<|bos|>"])]
    requests = [pb.EncodeRequest(text=text, options=each) for text in texts for each in options] * 5
    calls = [wire.stub.Encode.future(request, timeout=WITHIN_S) for request in requests]
    answers = [list(call.result().encoding.ids) for call in calls]
    for request, ids in zip(requests, answers, strict=True):
        parsed = request.text.startswith("<") and request.options.allowed_special_tokens
        assert ids == ([262] * 3 if parsed else list(request.text.encode()))
