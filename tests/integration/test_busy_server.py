"""Long calls, faults of the library and many callers at once: everybody gets their own answer, soon."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.wire import (
    Wire,
    encode_options,
    in_background,
    in_flight,
    little_endian,
    one_sequence,
    refused,
    until,
)
from tests.servers import RunningServer
from tests.tokenizers_for_tests import byte_level_bpe
from tokend.v1 import error_reason_pb2 as reasons
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2 as types

PACKED = encode_options(id_format=types.ID_FORMAT_PACKED)
LONG = "hello the world " * 100_000


@pytest.fixture
def panicking(wire_to, panicking_server: RunningServer) -> Wire:
    return wire_to(panicking_server)


@pytest.mark.parametrize("options", [None, encode_options(offsets=types.OFFSET_UNIT_UTF8_BYTES)])
@pytest.mark.parametrize("method", ["BatchEncode", "CountTokens"])
def test_a_panic_in_a_batch_is_answered_at_once_and_names_the_item(panicking: Wire, method, options):
    if method == "CountTokens":
        options = None
    started_s = time.monotonic()
    request = getattr(pb, method + "Request")(texts=["1a", "hello", "2b"], options=options)
    failure = refused(getattr(panicking.stub, method), request)
    assert time.monotonic() - started_s < 2
    assert (failure.code, failure.reason, failure.metadata["index"]) == (
        grpc.StatusCode.INTERNAL,
        "INTERNAL",
        "1",
    )
    assert failure.metadata["request_id"] == failure.trailing["tokend-request-id"]


def test_after_panics_the_server_serves_on(panicking: Wire, panicking_server: RunningServer):
    calls = [panicking.stub.Encode.future(pb.EncodeRequest(text="hello"), timeout=10) for _ in range(100)]
    assert {call.code() for call in calls} == {grpc.StatusCode.INTERNAL}
    assert list(panicking.stub.Encode(pb.EncodeRequest(text="1a")).encoding.ids) == [262, 49, 97]
    until(lambda: in_flight(panicking_server) == {})


def test_a_panic_is_its_batch_s_error_and_the_stream_goes_on(panicking: Wire):
    stream = panicking.stream("StreamEncode")
    for batch_id, text in enumerate(["1", "hello", "2"]):
        stream.send(pb.StreamEncodeRequest(batch_id=batch_id, texts=["1", text]))
    good, bad, good_again = stream.rest()
    assert (bad.error.code, bad.error.reason) == (13, reasons.ERROR_REASON_INTERNAL)
    assert bad.error.metadata["index"] == "1"
    assert good.WhichOneof("outcome") == good_again.WhichOneof("outcome") == "result"


@pytest.mark.parametrize(
    ("text", "options"),
    [(LONG, PACKED), (LONG[: len(LONG) // 4], encode_options(offsets=types.OFFSET_UNIT_CODE_POINTS))],
    ids=["packed", "with offsets"],
)
def test_a_long_text_holds_nobody_up(wire: Wire, byte_server: RunningServer, text, options):
    health = health_pb2_grpc.HealthStub(wire.channel)
    small = pb.EncodeRequest(text="hi")
    stream = wire.stream("StreamDecode", timeout=60)
    checks = {
        "encode": lambda: wire.stub.Encode(small),
        "stream": lambda: stream.ask(one_sequence([104])),
        "health": lambda: health.Check(health_pb2.HealthCheckRequest()),
        "metrics": lambda: byte_server.get("/metrics"),
    }
    request = pb.EncodeRequest(text=text, options=options).SerializeToString()

    def longest_waits_s() -> dict[str, float]:
        waits_s = dict.fromkeys(checks, 0.0)
        # The answer stays bytes: this process would hold its own GIL for long otherwise.
        with in_background(lambda: wire.raw("Encode", request)) as call:
            until(lambda: in_flight(byte_server).get("tokend_in_flight_calls{'method': 'Encode'}", 0) > 0)
            while call.is_alive():
                for name, check in checks.items():
                    started_s = time.monotonic()
                    check()
                    waits_s[name] = max(waits_s[name], time.monotonic() - started_s)
        return waits_s

    # Another program of the machine may get in the way once, the server's own would each time.
    attempts = [longest_waits_s() for _ in range(3)]
    stream.rest()
    assert all(min(waits_s[name] for waits_s in attempts) < 0.5 for name in checks), attempts


@pytest.mark.parametrize(
    "text", ["a" * 1_000_000, " " * 1_000_000, "".join(map(chr, range(0x4E00, 0x9E00))) * 16]
)
def test_a_million_characters_of_an_odd_kind_take_bounded_time(wire: Wire, text):
    started_s = time.monotonic()
    encoding = wire.stub.Encode(pb.EncodeRequest(text=text, options=PACKED), timeout=60).encoding
    assert time.monotonic() - started_s < 15
    assert wire.stub.Decode(pb.DecodeRequest(packed_ids=encoding.packed_ids), timeout=60).text == text


def test_mixed_calls_of_many_threads_all_get_their_own_answers(wire: Wire):
    words = ["the", " the", "é", "🙂", "北京", "<|end|>", "<tool>", "th", "\n"]

    def ids_of(text: str) -> bytes:
        return wire.stub.Encode(pb.EncodeRequest(text=text, options=PACKED)).encoding.packed_ids

    chance = random.Random(3)
    texts = ["".join(chance.choices(words, k=chance.randint(0, 20))) for _ in range(40)]
    known = {text: ids_of(text) for text in texts}

    def work(seed: int) -> int:
        chance = random.Random(seed)
        for _ in range(15):
            text, other = chance.choice(texts), chance.choice(texts)
            assert ids_of(text) == known[text]
            batch = wire.stub.BatchEncode(pb.BatchEncodeRequest(texts=[text, other], options=PACKED))
            assert batch.packed_ids == known[text] + known[other]
            decoded = wire.stub.Decode(pb.DecodeRequest(packed_ids=known[text]))
            assert decoded.text == text
            counts = wire.stub.CountTokens(pb.CountTokensRequest(texts=[text, other], options=PACKED))
            assert list(counts.counts) == [len(known[text]) // 4, len(known[other]) // 4]
            messages = [
                one_sequence(packed_ids=known[each], sequence_id=n) for n, each in enumerate((text, other))
            ]
            answers = list(wire.stub.StreamDecode(iter(messages), timeout=20))
            said = [
                "".join(o.text for a in answers for o in a.sequences if o.sequence_id == n) for n in (0, 1)
            ]
            assert said == [text, other]
        return seed

    with ThreadPoolExecutor(32) as threads:
        assert sorted(threads.map(work, range(32))) == list(range(32))


def test_options_of_64_callers_at_once_never_reach_another_call(wire: Wire):
    text = "a<|end|>b<|bos|>c"
    end, bos = [*b"<|end|>"], [*b"<|bos|>"]
    left = types.Truncation(max_tokens=2, side=types.TRUNCATION_SIDE_LEFT)
    cases = [
        ({"special_tokens": types.SPECIAL_TOKENS_PARSE}, [97, 263, 98, 262, 99]),
        ({"special_tokens": types.SPECIAL_TOKENS_TEXT}, [97, *end, 98, *bos, 99]),
        ({"allowed_special_tokens": ["<|end|>"]}, [97, 263, 98, *bos, 99]),
        ({"allowed_special_tokens": ["<|bos|>"]}, [97, *end, 98, 262, 99]),
        ({"truncation": types.Truncation(max_tokens=1)}, [97]),
        ({"truncation": left}, [ord(">"), 99]),
        (
            {"special_tokens": types.SPECIAL_TOKENS_PARSE, "truncation": types.Truncation(max_tokens=2)},
            [97, 263],
        ),
        ({"special_tokens": types.SPECIAL_TOKENS_REJECT}, None),
    ]
    start = threading.Barrier(64)

    def work(seed: int) -> None:
        chance = random.Random(seed)
        start.wait()
        for _ in range(20):
            options, ids = chance.choice(cases)
            request = pb.EncodeRequest(text=text, options=encode_options(**options))
            if ids is None:
                assert refused(wire.stub.Encode, request).reason == "SPECIAL_TOKEN_REJECTED"
            else:
                assert list(wire.stub.Encode(request, timeout=20).encoding.ids) == ids

    with ThreadPoolExecutor(64) as threads:
        list(threads.map(work, range(64)))


def test_calls_that_expired_while_they_waited_are_not_started(wire_to, server_for):
    server: RunningServer = server_for(byte_level_bpe(), "--unary-threads", "1")
    wire: Wire = wire_to(server)
    ended = {"grpc_method": "Encode"}

    def n_given_up() -> float:
        return sum(
            server.metric("grpc_server_handled_total", grpc_code=code, **ended)
            for code in ("DeadlineExceeded", "Canceled")
        )

    answered = server.metric("tokend_request_tokens_count", method="Encode")
    given_up = n_given_up()
    slow = pb.EncodeRequest(text=LONG, options=PACKED)
    calls = [wire.stub.Encode.future(slow, timeout=0.3) for _ in range(13)]
    assert {call.code() for call in calls} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    started_s = time.monotonic()
    assert wire.stub.Encode(pb.EncodeRequest(text="a"), timeout=20).encoding.token_count == 2
    # One may have been at work; all of them would take ten times as long.
    assert time.monotonic() - started_s < 4
    until(lambda: n_given_up() == given_up + 13)
    assert in_flight(server) == {}
    # Work for a caller who has left is no answered request.
    assert server.metric("tokend_request_tokens_count", method="Encode") == answered + 1


def test_cancelled_calls_are_counted_out(wire: Wire, byte_server: RunningServer):
    request = pb.EncodeRequest(text="hello the world " * 2_000, options=PACKED)
    calls = [wire.stub.Encode.future(request, timeout=20) for _ in range(200)]
    until(lambda: in_flight(byte_server) != {} or all(call.done() for call in calls))
    for call in calls:
        call.cancel()
    until(lambda: in_flight(byte_server) == {})
    assert wire.stub.Decode(pb.DecodeRequest(packed_ids=little_endian([104]))).text == "h"
