"""The structured log of a server under calls: one line a call at debug, one a refusal, and what stands in them."""

import json
from collections.abc import Callable

import grpc
import pytest

from tests.integration.wire import Wire, encode_options, one_sequence, refused, until
from tests.servers import RunningServer
from tests.tokenizers_for_tests import byte_level_bpe
from tokend.v1 import tokenizer_service_pb2 as pb

Line = dict[str, str | int | float]


class Log:
    """The records of one server that tell of calls."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._n_read = len(server.stderr_lines)

    def lines(self, n: int) -> list[Line]:
        """Wait for `n` records on calls since the beginning of the test, and for no more."""

        def found() -> list[Line]:
            records = map(json.loads, self._server.stderr_lines[self._n_read :])
            return [record for record in records if record["logger"] == "tokend.transport"]

        until(lambda: len(found()) >= n)
        assert len(found()) == n
        return found()


@pytest.fixture
def logged(server_for: Callable[..., RunningServer], wire_to) -> tuple[Wire, Log]:
    flags = ("--log-format", "json", "--log-level", "debug", "--max-ids", "1000")
    server = server_for(byte_level_bpe(), *flags)
    return wire_to(server), Log(server)


def call_fields(line: Line) -> Line:
    """The fields that one can know before, after a look at the others."""
    assert 0 < line["duration_s"] < 60
    assert {"time", "level", "logger", "message"} < line.keys()
    return {
        name: value
        for name, value in line.items()
        if name not in {"time", "logger", "level", "duration_s", "request_id"}
    }


def test_a_call_is_one_line_with_what_it_was_how_it_ended_and_its_size(logged):
    wire, log = logged
    wire.stub.BatchEncode(
        pb.BatchEncodeRequest(texts=["abc", "d"], options=encode_options()),
        metadata=[("x-request-id", "from-the-caller-1")],
    )
    [line] = log.lines(1)
    assert line["level"] == "debug"
    assert line["request_id"] == "from-the-caller-1"
    assert call_fields(line) == {
        "message": "handled",
        "method": "BatchEncode",
        "caller": "anonymous",
        "code": "OK",
        "n_tokens": 4,
        "n_texts": 2,
    }


def test_a_refusal_is_a_line_of_its_own_with_its_reason_and_limit(logged):
    wire, log = logged
    refused(wire.stub.Decode, pb.DecodeRequest(ids=[97] * 1001))
    refusal, end = log.lines(2)
    assert (refusal["level"], refusal["request_id"]) == ("info", end["request_id"])
    assert call_fields(refusal) == {
        "message": "refused",
        "method": "Decode",
        "caller": "anonymous",
        "code": "INVALID_ARGUMENT",
        "reason": "TOO_MANY_IDS",
        "n_tokens": 0,
        "n_texts": 0,
        "size": 1001,
        "limit": 1000,
    }
    assert call_fields(end)["code"] == "INVALID_ARGUMENT"


def test_a_stream_is_one_line_at_its_end_with_all_that_it_moved(logged):
    wire, log = logged
    stream = wire.stream("StreamDecode")
    stream.ask(one_sequence(b"hello"))
    stream.ask(one_sequence([9999], sequence_id=2))
    stream.ask(one_sequence(b"!", end=True))
    stream.rest()
    refusal, end = log.lines(2)
    assert (refusal["reason"], refusal["sequence_id"], refusal["n_tokens"]) == ("UNKNOWN_TOKEN_ID", 2, 5)
    assert call_fields(end) == {
        "message": "handled",
        "method": "StreamDecode",
        "caller": "anonymous",
        "code": "OK",
        "n_tokens": 6,
        "n_texts": 1,
    }


def test_a_caller_who_leaves_is_told_as_such(logged):
    wire, log = logged
    stream = wire.stream("StreamDecode")
    stream.ask(one_sequence(b"hello"))
    stream.cancel()
    [end] = log.lines(1)
    assert (end["code"], end["n_tokens"]) == (grpc.StatusCode.CANCELLED.name, 5)
