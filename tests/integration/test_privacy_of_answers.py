"""No text of a caller is told where calls succeed: each method, with texts in all its fields, at log level debug.

What is told where calls fail: test_privacy.py.
"""

from collections.abc import Callable

import grpc
import pytest
from google.protobuf import json_format
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.tokens import ALL, bearer, new_token, write_tokens
from tests.integration.wire import Wire, encode_options, in_flight, one_sequence, refused, until
from tests.servers import RunningServer
from tests.tokenizers_for_tests import byte_level_bpe
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2 as types

MARK = "Zq7secret"
IDS = list(MARK.encode())
FULL = encode_options(include_tokens=True, offsets=types.OFFSET_UNIT_CODE_POINTS)
TOKEN = new_token()

# For each method requests that succeed, full of text.
SUCCEEDS: dict[str, list] = {
    "Encode": [
        pb.EncodeRequest(text=f"{MARK} {MARK}", pair=MARK, options=FULL),
        pb.EncodeRequest(text=MARK * 1000),
        pb.EncodeRequest(text=f"{MARK}<|end|>"),
    ],
    "BatchEncode": [pb.BatchEncodeRequest(texts=[MARK, MARK], pairs=[MARK, ""], options=FULL)],
    "StreamEncode": [pb.StreamEncodeRequest(batch_id=7, texts=[MARK], options=FULL)],
    "CountTokens": [pb.CountTokensRequest(texts=[MARK, MARK], stop_after=3)],
    "Decode": [pb.DecodeRequest(ids=IDS, options=types.DecodeOptions(include_bytes=True))],
    "BatchDecode": [pb.BatchDecodeRequest(sequences=[types.IdList(ids=IDS)] * 2)],
    "StreamDecode": [
        one_sequence(IDS, prompt_ids=IDS, stop=[f"{MARK}{MARK}", "cret"]),
        one_sequence(IDS, sequence_id=1, end=True),
    ],
    "GetTokenizer": [pb.GetTokenizerRequest()],
    "LookupTokens": [pb.LookupTokensRequest(ids=IDS, tokens=[MARK])],
    "DownloadTokenizer": [pb.DownloadTokenizerRequest()],
}


@pytest.fixture(scope="module")
def private_server(server_for, tmp_path_factory) -> RunningServer:
    file = write_tokens(tmp_path_factory.mktemp("tokens") / "tokens.toml", [("caller", ALL, TOKEN)])
    flags = ("--auth-tokens-file", str(file), "--log-level", "debug", "--log-format", "json")
    return server_for(byte_level_bpe(), *flags)


def test_every_method_is_here():
    assert set(SUCCEEDS) == {each.name for each in pb.DESCRIPTOR.services_by_name["TokenizerService"].methods}


def test_what_succeeds_is_told_to_its_caller_alone(
    private_server: RunningServer, wire_to: Callable[[RunningServer], Wire]
):
    wire = wire_to(private_server)
    # Of metadata that nothing reads; the id of a request is the caller's to choose, and is in the log on purpose.
    metadata = [*bearer(TOKEN), ("x-text", MARK), ("x-text-bin", MARK.encode()), ("user-agent", MARK)]
    trailers = []
    for method, requests in SUCCEEDS.items():
        call = getattr(wire.stub, method)
        if method.startswith("Stream"):
            made = [call(iter(requests), metadata=metadata, timeout=20)]
        elif method == "DownloadTokenizer":
            made = [call(request, metadata=metadata, timeout=20) for request in requests]
        else:
            made = [call.with_call(request, metadata=metadata, timeout=20) for request in requests]
        for each in made:
            answers, ended = each if isinstance(each, tuple) else (list(each), each)
            told = json_format.MessageToJson(answers) if isinstance(each, tuple) else str(answers)
            # They did what they were asked, so the server had the text in its hands.
            assert told, method
            trailers.append(f"{ended.initial_metadata()} {ended.trailing_metadata()} {ended.details()}")
            assert ended.code() is grpc.StatusCode.OK
    decoded = wire.stub.Decode(pb.DecodeRequest(ids=IDS), metadata=metadata)
    assert decoded.text == MARK

    def n_handled() -> int:
        return sum('"message": "handled"' in line for line in private_server.stderr_lines)

    # The two inputs of StreamDecode are one call, and Decode was called once more.
    n_calls = sum(map(len, SUCCEEDS.values()))
    until(lambda: n_handled() == n_calls)
    until(lambda: in_flight(private_server) == {})
    page = private_server.get("/metrics")
    told = {"log": "".join(private_server.stderr_lines), "metrics": page, "trailers": "".join(trailers)}
    assert not [where for where, text in told.items() if MARK in text or "secret" in text]
    # Not as ids or bytes either: lists in logs and labels would be as good as the text.
    for spelled in (
        str(IDS),
        " ".join(map(str, IDS)),
        ",".join(map(str, IDS)),
        MARK.encode().hex(),
        repr(IDS)[1:-1],
    ):
        assert not [where for where, text in told.items() if spelled in text]
    labels = {
        value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        for value in sample.labels.values()
    }
    assert "caller" in labels
    assert MARK not in " ".join(labels)


@pytest.mark.parametrize("method", SUCCEEDS)
def test_a_refusal_for_the_token_tells_nothing_of_the_request(
    private_server: RunningServer, wire_to: Callable[[RunningServer], Wire], method: str
):
    wire = wire_to(private_server)
    call, [request, *_] = getattr(wire.stub, method), SUCCEEDS[method]
    given = iter([request]) if method.startswith("Stream") else request
    failure = refused(lambda **_: list(call(given, metadata=bearer(f"{MARK}{MARK}"), timeout=20)))
    assert failure.reason == "UNAUTHENTICATED"
    assert MARK not in repr(failure)
    assert MARK not in "".join(private_server.stderr_lines)
