"""A server at the system's limit on threads: what needs none goes on, what needs one is refused, and it recovers."""

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

import tokend
from tests.integration.wire import Wire, failure_of
from tests.servers import RunningServer
from tokend.v1 import tokenizer_service_pb2 as pb

# The limits of a container cannot be set here, so the one place where all threads start plays them.
_LIMITED = """
import os, sys, threading
start = threading.Thread.start
def start_if_allowed(thread):
    if os.path.exists({limit!r}):
        raise RuntimeError("can't start new thread")
    start(thread)
threading.Thread.start = start_if_allowed
from tokend_server.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
MEDIUM = pb.EncodeRequest(text="hello the world " * 200)


@pytest.fixture
def limit(tmp_path: Path) -> Path:
    """While this file exists no thread can be started."""
    return tmp_path / "limit"


@pytest.fixture
def front() -> str:
    return "grpcio"


@pytest.fixture
def server(limit: Path, front: str):
    command = (sys.executable, "-c", _LIMITED.format(limit=str(limit)), "serve")
    server = RunningServer("--front", front, command=command)
    yield server
    limit.unlink(missing_ok=True)
    assert server.stop() == 0


def test_no_call_ends_the_serving_thread(server: RunningServer, limit: Path):
    with Wire(server.grpc) as wire:
        limit.touch()
        assert wire.stub.Encode(MEDIUM, timeout=20).encoding.ids
        for answers in (
            wire.stub.StreamEncode(iter([pb.StreamEncodeRequest()]), timeout=20),
            wire.stub.DownloadTokenizer(pb.DownloadTokenizerRequest(), timeout=20),
        ):
            with pytest.raises(grpc.RpcError) as raised:
                next(answers)
            failure = failure_of(raised.value)
            assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "SERVER_OVERLOADED")
        stream = wire.stream("StreamDecode")
        answer = stream.ask(pb.StreamDecodeRequest(sequences=[{"packed_ids": bytes(4_000)}]))
        assert answer.sequences[0].total_tokens == 1_000
        stream.cancel()
        limit.unlink()
        assert list(wire.stub.DownloadTokenizer(pb.DownloadTokenizerRequest(), timeout=20))
    assert server.metric("tokend_live_streams", method="StreamEncode") == 0


@pytest.mark.parametrize("front", ["grpcio", "native"])
def test_a_server_drains_and_ends_well(server: RunningServer, limit: Path):
    with tokend.Client(server.grpc) as client, client.decoder() as decoder:
        ids = client.encode("to and fro").ids
        decoder.push(ids[0])
        limit.touch()
        server.process.terminate()
        with pytest.raises(tokend.UnavailableError):
            _push_for_ever(decoder, ids)
    assert server.stop() == 0
    assert not any("Traceback" in line for line in server.stderr_lines)


def _push_for_ever(decoder: tokend.Decoder, ids: Sequence[int]) -> None:
    for token_id in itertools.cycle(ids):
        decoder.push(token_id)
