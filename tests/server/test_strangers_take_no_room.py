"""Who may not call is refused before anything of the call takes up room that others could have."""

from types import SimpleNamespace

import grpc
import pytest

from tokend.v1 import tokenizer_service_pb2 as pb
from tokend_server.errors import ServerOverloaded
from tokend_server.metrics import Metrics, methods_of
from tokend_server.service.access import Access, Caller, Permission, Tokens, digest_of
from tokend_server.service.admission import ServingState
from tokend_server.transport.calls import CallScope
from tokend_server.transport.routing import SERVICE
from tokend_server.transport.unary import TakenCall, UnaryMethod

LARGE = pb.EncodeRequest(text="a" * 10_000).SerializeToString()
CHAT = Caller(name="chat", permissions=frozenset({Permission.TOKENIZE}))
MIRROR = Caller(name="mirror", permissions=frozenset({Permission.DOWNLOAD}))


class FullHouse:
    """A budget of work that has no room left; counts who asked for some."""

    asked = 0

    def enter(self, n_bytes: int):
        self.asked += 1
        raise ServerOverloaded(f"no room for {n_bytes} bytes", retry_after_ms=1)


class Front(TakenCall):
    """A front that only remembers the status."""

    code: int | None = None

    def begins(self) -> bool:
        return True

    def time_remaining(self) -> float | None:
        return None

    def respond(self, reply, trailer) -> bool:
        raise AssertionError((reply, trailer))

    def fail(self, code, message, trailer) -> None:
        self.code, self.said = code, (message, trailer)


@pytest.mark.parametrize(
    ("metadata", "code", "asked"),
    [
        ([], grpc.StatusCode.UNAUTHENTICATED, 0),
        ([("authorization", "Bearer nobody's")], grpc.StatusCode.UNAUTHENTICATED, 0),
        ([("authorization", "Bearer mirror's")], grpc.StatusCode.PERMISSION_DENIED, 0),
        ([("authorization", "Bearer chat's")], grpc.StatusCode.UNAVAILABLE, 1),
    ],
)
def test_a_large_call_of_a_stranger_is_refused_before_it_takes_room(metadata, code, asked):
    house = FullHouse()
    admission = SimpleNamespace(state=ServingState.SERVING, unary_work=house)
    scope = CallScope(admission, SimpleNamespace())
    scope.access = Access(Tokens([(digest_of("chat's"), CHAT), (digest_of("mirror's"), MIRROR)]))
    metrics = Metrics(methods_of(SERVICE), version="0")
    method = UnaryMethod(
        scope, "Encode", metrics.method("/tokend.v1.TokenizerService/Encode"), pb.EncodeRequest
    )
    call = Front(method, metadata)
    call.take(LARGE, SimpleNamespace())
    assert (call.code, house.asked) == (code.value[0], asked)
