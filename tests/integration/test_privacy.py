"""No text of a caller is told to anybody else: not in statuses, not in the log, not on the ops port."""

import contextlib
import time
import urllib.error

import grpc
import pytest

from tests.integration.conftest import PANICS_BEFORE_LETTERS, SMALL_LIMITS
from tests.integration.wire import Wire, encode_options, one_sequence
from tests.tokenizers_for_tests import byte_level_bpe
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2 as types

MARK = "Zq7secret"
REJECT = encode_options(special_tokens=types.SPECIAL_TOKENS_REJECT)
UNARY = {
    "a text too large": ("Encode", pb.EncodeRequest(text=MARK * 1000)),
    "a pair too large": ("Encode", pb.EncodeRequest(text=MARK, pair=MARK * 1000)),
    "a batch too large": ("BatchEncode", pb.BatchEncodeRequest(texts=[MARK] * 5)),
    "a rejected special token": ("Encode", pb.EncodeRequest(text=f"1{MARK}<|end|>", options=REJECT)),
    "a panic": ("Encode", pb.EncodeRequest(text=MARK)),
    "a panic in a batch": ("BatchEncode", pb.BatchEncodeRequest(texts=["1", MARK])),
    "a panic in a count": ("CountTokens", pb.CountTokensRequest(texts=[MARK])),
    "a panic with offsets": ("Encode", pb.EncodeRequest(text=MARK, options=encode_options(offsets=2))),
    "a panic with truncation": (
        "Encode",
        pb.EncodeRequest(text=MARK, options=encode_options(truncation=types.Truncation(max_tokens=1))),
    ),
    "pairs for no texts": ("BatchEncode", pb.BatchEncodeRequest(pairs=[MARK])),
    "an allowed token that is none": (
        "Encode",
        pb.EncodeRequest(options=encode_options(allowed_special_tokens=[MARK])),
    ),
    "a fingerprint that is none": (
        "Encode",
        pb.EncodeRequest(options=encode_options(expected_fingerprint=MARK)),
    ),
    "a reply too large": (
        "Encode",
        pb.EncodeRequest(
            text="1" + MARK + "é" * 3900, options=encode_options(include_tokens=True, offsets=2)
        ),
    ),
    "too many look-ups": ("LookupTokens", pb.LookupTokensRequest(tokens=[MARK] * 1001)),
    "unknown ids": ("Decode", pb.DecodeRequest(ids=[*MARK.encode(), 9999])),
}


@pytest.fixture(scope="module")
def told(server_for, wire_to) -> dict[str, str]:
    """Everything that the server tells, by where it does, after every error was caused with the mark in it."""
    flags = [str(each) for pair in SMALL_LIMITS.items() for each in pair]
    server = server_for(byte_level_bpe(normalizer=PANICS_BEFORE_LETTERS), "--log-level", "debug", *flags)
    wire: Wire = wire_to(server)
    said: dict[str, str] = {}

    def cause(name: str, call, *arguments, **options) -> None:
        with pytest.raises(grpc.RpcError) as raised:
            call(*arguments, timeout=10, **options)
        error = raised.value
        said[name] = f"{error.details()} {error.trailing_metadata()} {error.initial_metadata()}"

    for name, (method, request) in UNARY.items():
        cause(name, getattr(wire.stub, method), request)
    raw = wire.channel.unary_unary("/tokend.v1.TokenizerService/Encode")
    cause("bytes that are no UTF-8", raw, b"\x0a\x0b" + MARK.encode() + b"\xff\xfe")
    cause("bytes that are no message", raw, MARK.encode() * 3)
    cause("an unknown method", wire.channel.unary_unary(f"/tokend.v1.TokenizerService/{MARK}"), b"")
    cause("an unknown service", wire.channel.unary_unary(f"/{MARK}/Encode"), b"")
    cause(
        "a request id with blanks",
        wire.stub.Decode,
        pb.DecodeRequest(ids=[9999]),
        metadata=[("x-request-id", f"{MARK} {MARK}"), ("x-other", MARK)],
    )
    said["batches"] = str(
        list(
            wire.stub.StreamEncode(
                iter([pb.StreamEncodeRequest(texts=[MARK]), pb.StreamEncodeRequest(texts=["1"] * 5)])
            )
        )
    )
    sequences = [
        one_sequence(stop=[MARK * 2]),
        one_sequence([9999], sequence_id=1, stop=[MARK[:8]]),
        one_sequence(sequence_id=1, end=True),
    ]
    answers = list(wire.stub.StreamDecode(iter(sequences)))
    said["sequences"] = str(answers)
    for path in (f"/{MARK}", f"/metrics?{MARK}", "/metrics", "/readyz", "/"):
        with contextlib.suppress(urllib.error.HTTPError):
            said[path.replace(MARK, "MARK")] = server.get(path)
    time.sleep(0.2)
    said["the log"] = "".join(server.stderr_lines)
    said["names"] = " ".join(said)
    return said


def test_no_text_of_a_caller_is_told(told):
    assert not [where for where, text in told.items() if MARK in text or MARK[3:] in text]


def test_the_panics_were_panics_and_their_output_was_kept_out_of_the_log(told):
    assert "INTERNAL" in told["a panic in a batch"]
    assert "panicked" not in told["the log"]
    [line] = [
        line for line in told["/metrics"].splitlines() if line.startswith("tokend_native_stderr_lines_total")
    ]
    assert float(line.split()[-1]) > 0
