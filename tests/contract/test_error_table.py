"""Each ErrorReason that a running server can be made to give, as `grpcio-status` reads it.

Not here: SHUTTING_DOWN and TOKENIZER_LOADING (tests/integration/test_shutdown.py), SERVER_OVERLOADED and
TOO_MANY_SEQUENCES (test_stream_decode.py), UNAUTHENTICATED and
PERMISSION_DENIED (tests/integration/test_authentication.py).
"""

import grpc
import pytest

from tests.integration.conftest import (  # noqa: F401 (fixtures)
    byte_server,
    front,
    limited,
    limited_server,
    panicking_server,
    server_for,
    wire,
    wire_to,
)
from tests.integration.wire import Wire, encode_options, refused, until
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2 as types

INVALID = grpc.StatusCode.INVALID_ARGUMENT
PARTS = encode_options(include_tokens=True, offsets=types.OFFSET_UNIT_CODE_POINTS)
REJECT = encode_options(special_tokens=types.SPECIAL_TOKENS_REJECT)

CAUSES = {
    "TEXT_TOO_LARGE": ("Encode", pb.EncodeRequest(text="a" * 8001), {"size": "8001", "limit": "8000"}),
    "TEXT_TOO_LARGE in a pair": (
        "Encode",
        pb.EncodeRequest(text="a", pair="é" * 4001),
        {"size": "8002", "limit": "8000"},
    ),
    "TEXT_TOO_LARGE in a batch": (
        "BatchEncode",
        pb.BatchEncodeRequest(texts=["a", "a" * 8001]),
        {"size": "8001", "limit": "8000", "index": "1"},
    ),
    "TEXT_TOO_LARGE in a count": (
        "CountTokens",
        pb.CountTokensRequest(texts=["a" * 8001]),
        {"size": "8001", "limit": "8000", "index": "0"},
    ),
    "BATCH_TOO_LARGE by number": (
        "BatchEncode",
        pb.BatchEncodeRequest(texts=["a"] * 5),
        {"size": "5", "limit": "4"},
    ),
    "BATCH_TOO_LARGE by size": (
        "CountTokens",
        pb.CountTokensRequest(texts=["a" * 7000] * 3),
        {"size": "21000", "limit": "20000"},
    ),
    "BATCH_TOO_LARGE with pairs": (
        "BatchEncode",
        pb.BatchEncodeRequest(texts=["a" * 7000] * 2, pairs=["a" * 7000] * 2),
        {"size": "28000", "limit": "20000"},
    ),
    "BATCH_TOO_LARGE of id lists": (
        "BatchDecode",
        pb.BatchDecodeRequest(sequences=[types.IdList()] * 5),
        {"size": "5", "limit": "4"},
    ),
    "TOO_MANY_IDS": ("Decode", pb.DecodeRequest(ids=[97] * 1001), {"size": "1001", "limit": "1000"}),
    "TOO_MANY_IDS packed": (
        "Decode",
        pb.DecodeRequest(packed_ids=b"\0" * 4004),
        {"size": "1001", "limit": "1000"},
    ),
    "REPLY_TOO_LARGE": ("Encode", pb.EncodeRequest(text="é" * 4000, options=PARTS), {"limit": "65536"}),
    "SPECIAL_TOKEN_REJECTED": (
        "Encode",
        pb.EncodeRequest(text="🙂é<|end|>", options=REJECT),
        {"token": "<|end|>", "position": "2"},
    ),
    "SPECIAL_TOKEN_REJECTED in a pair": (
        "BatchEncode",
        pb.BatchEncodeRequest(texts=["a", "b"], pairs=["c", "dd<|bos|>"], options=REJECT),
        {"token": "<|bos|>", "position": "2", "index": "1"},
    ),
    "SPECIAL_TOKEN_REJECTED in a count that may stop": (
        "CountTokens",
        pb.CountTokensRequest(texts=["a", "b", "<|bos|>"], options=REJECT, stop_after=1000),
        {"token": "<|bos|>", "position": "0", "index": "2"},
    ),
    "UNKNOWN_TOKEN_ID": (
        "Decode",
        pb.DecodeRequest(ids=[97, 265]),
        {"id": "265", "index": "1", "max_id": "264"},
    ),
    "INVALID_OPTION": (
        "Encode",
        pb.EncodeRequest(options=encode_options(truncation=types.Truncation())),
        {"field": "truncation.max_tokens", "value": "0"},
    ),
    "TOKENIZER_MISMATCH": (
        "Encode",
        pb.EncodeRequest(options=encode_options(expected_fingerprint="ab" * 32)),
        {"expected": "ab" * 32},
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_each_reason_has_its_code_its_metadata_and_the_call_s_trailer(limited: Wire, cause):  # noqa: F811 (fixture)
    method, request, metadata = CAUSES[cause]
    failure = refused(getattr(limited.stub, method), request, metadata=[("tokend-request-id", "my-id-1")])
    reason = cause.split(maxsplit=1)[0]
    assert (failure.reason, failure.domain) == (reason, "tokend")
    assert failure.code is (
        grpc.StatusCode.FAILED_PRECONDITION if reason == "TOKENIZER_MISMATCH" else INVALID
    )
    served = limited.stub.GetTokenizer(pb.GetTokenizerRequest()).fingerprint
    told = dict(failure.metadata)
    if reason == "TOKENIZER_MISMATCH":
        assert told.pop("served") == served
    if reason == "REPLY_TOO_LARGE":
        assert int(told.pop("size")) > 65536
    assert told == metadata
    assert failure.retry_after_ms is None
    assert "grpc-retry-pushback-ms" not in failure.trailing
    assert (failure.trailing["tokend-request-id"], failure.trailing["tokend-fingerprint"]) == (
        "my-id-1",
        served,
    )
    assert 20 < len(failure.message) < 400


def test_a_message_that_is_none_is_malformed(wire: Wire):  # noqa: F811 (fixture)
    failure = refused(wire.raw, "Encode", b"\xff" * 7)
    assert (failure.code, failure.reason, failure.metadata) == (INVALID, "MALFORMED_MESSAGE", {})


def test_a_fault_of_the_library_is_internal_and_names_its_request(wire_to, panicking_server):  # noqa: F811 (fixture)
    failure = refused(
        wire_to(panicking_server).stub.Encode,
        pb.EncodeRequest(text="hello"),
        metadata=[("x-request-id", "job/7")],
    )
    assert (failure.code, failure.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert failure.metadata == {"request_id": "job/7"}
    assert failure.trailing["tokend-request-id"] == "job/7"

    # What the operators find under that id is the fault's kind and place.
    def lines() -> list[str]:
        return [line for line in panicking_server.stderr_lines if "job/7" in line and " ERROR " in line]

    until(lambda: bool(lines()))
    [line] = lines()
    assert "INTERNAL" in line


@pytest.mark.parametrize("key", ["tokend-request-id", "x-request-id"])
def test_the_caller_s_own_request_id_comes_back(wire: Wire, key):  # noqa: F811 (fixture)
    _, call = wire.stub.Encode.with_call(pb.EncodeRequest(), metadata=[(key, "4be1c1f2-7.a:b/c+d=")])
    assert dict(call.trailing_metadata())["tokend-request-id"] == "4be1c1f2-7.a:b/c+d="


@pytest.mark.parametrize("bad", ["two words", "x" * 65, "", 'quo"te', "semi;colon"])
def test_a_request_id_that_could_do_harm_is_replaced(wire: Wire, bad):  # noqa: F811 (fixture)
    trailers = [
        dict(
            wire.stub.Encode.with_call(pb.EncodeRequest(), metadata=[("tokend-request-id", bad)])[
                1
            ].trailing_metadata()
        )
        for _ in range(2)
    ]
    first, second = (trailer["tokend-request-id"] for trailer in trailers)
    assert len({first, second, bad}) == 3


def test_a_good_call_and_a_good_stream_tell_request_id_and_fingerprint_too(wire: Wire):  # noqa: F811 (fixture)
    served = wire.stub.GetTokenizer(pb.GetTokenizerRequest()).fingerprint
    stream = wire.stream("StreamEncode", metadata=[("tokend-request-id", "s-1")])
    stream.rest()
    download = wire.stub.DownloadTokenizer(
        pb.DownloadTokenizerRequest(), metadata=[("tokend-request-id", "s-1")]
    )
    list(download)
    for call in (stream.call, download):
        trailer = dict(call.trailing_metadata())
        assert (trailer["tokend-request-id"], trailer["tokend-fingerprint"]) == ("s-1", served)
        # Initial metadata sent before a failure would switch gRPC's own retries off.
        assert "tokend-request-id" not in dict(call.initial_metadata())
