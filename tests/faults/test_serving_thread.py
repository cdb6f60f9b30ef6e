"""A fault that nothing foresaw, on gRPC's serving thread: it ends its own call, and the thread answers the next."""

import sys
from collections.abc import Callable
from contextlib import suppress

import grpc
import pytest

from tests.integration.wire import Wire, in_flight, until
from tests.servers import RunningServer
from tokend.v1 import tokenizer_service_pb2 as pb

MALFORMED, EMPTY = b"\xff", b""
# No way is known to make these raise; so a server of which they do.
_FAULTY = """
import sys
from tokend_server.transport.calls import Call
from tokend_server.transport.event_stream import EventStream
def fail(*_given, **_more):
    raise MemoryError
{broken} = fail
from tokend_server.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(params=["Call.refusal", "EventStream._send", "EventStream.begin"])
def faulty(request: pytest.FixtureRequest):
    server = RunningServer(command=(sys.executable, "-c", _FAULTY.format(broken=request.param), "serve"))
    yield server
    assert server.stop() == 0


def test_an_unforeseen_fault_ends_its_own_call_alone(faulty: RunningServer):
    def lookup_of_another_tokenizer() -> None:
        wire.stub.LookupTokens(pb.LookupTokensRequest(expected_fingerprint="another"), timeout=20)

    def stream(message: bytes) -> Callable[[], None]:
        return lambda: wire.raw_stream("StreamDecode").ask(message)

    with Wire(faulty.grpc) as wire:
        for call in (lookup_of_another_tokenizer, stream(MALFORMED), stream(EMPTY)) * 2:
            # Some of them are well, as the fault has it.
            with suppress(grpc.RpcError):
                call()
            assert wire.stub.CountTokens(pb.CountTokensRequest(texts=["a"]), timeout=20).counts
    until(lambda: in_flight(faulty) == {})
    assert faulty.metric("tokend_live_streams", method="StreamDecode") == 0
    until(lambda: any("serving thread" in line for line in faulty.stderr_lines))
