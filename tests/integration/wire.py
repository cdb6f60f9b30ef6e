"""The wire as any gRPC client sees it: generated stubs, raw bytes, statuses, and streams fed by hand."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tests.servers import RunningServer
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import tokenizer_service_pb2_grpc as pb_grpc
from tokend.v1 import types_pb2 as types

__all__ = [
    "Failure",
    "Stream",
    "Wire",
    "encode_options",
    "failure_of",
    "little_endian",
    "one_sequence",
    "refused",
    "until",
]

WITHIN_S = 20
_MESSAGE_BYTES = 64 << 20


class Wire:
    """A channel of its own to one server: the stub, and raw calls beside it."""

    def __init__(self, target: str, **options: int | str) -> None:
        sizes = {"grpc.max_receive_message_length": _MESSAGE_BYTES, "grpc.max_send_message_length": -1}
        given = {name.replace("__", "."): value for name, value in options.items()}
        every = {**sizes, "grpc.use_local_subchannel_pool": 1, "grpc.enable_http_proxy": 0, **given}
        self.channel = grpc.insecure_channel(target, options=list(every.items()))
        self.stub = pb_grpc.TokenizerServiceStub(self.channel)

    def raw(self, method: str, data: bytes, **options: Any) -> bytes:
        """Send bytes as the request of a unary method, and give the bytes of its answer."""
        call = self.channel.unary_unary(f"/tokend.v1.TokenizerService/{method}")
        return call(data, **{"timeout": WITHIN_S, **options})

    def stream(self, method: str, **options: Any) -> "Stream":
        """Open a stream of bytes or, by the stub's method of that name, of messages."""
        return Stream(getattr(self.stub, method), **options)

    def raw_stream(self, method: str, **options: Any) -> "Stream":
        """Open a stream of raw bytes."""
        return Stream(self.channel.stream_stream(f"/tokend.v1.TokenizerService/{method}"), **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()


class Stream:
    """A bidirectional stream, fed and read step by step."""

    def __init__(
        self, method: Callable[..., Any], *, timeout: float | None = WITHIN_S, **options: Any
    ) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.call = method(iter(self._requests.get, None), timeout=timeout, **options)

    def send(self, request: Any) -> None:
        """Send one message."""
        self._requests.put(request)

    def ask(self, request: Any) -> Any:
        """Send one message and wait for its answer."""
        self.send(request)
        return next(self.call)

    def half_close(self) -> None:
        """Say that no further message comes."""
        self._requests.put(None)

    def rest(self) -> list[Any]:
        """Half-close, and give all answers that are left."""
        self.half_close()
        return list(self.call)

    def cancel(self) -> None:
        """Leave."""
        self.call.cancel()
        # The thread that feeds gRPC waits for it.
        self._requests.put(None)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A status that is no OK, with its details as `grpcio-status` reads them."""

    code: grpc.StatusCode
    message: str
    trailing: dict[str, str | bytes]
    reason: str = ""
    domain: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    retry_after_ms: int | None = None


def failure_of(call: Any) -> Failure:
    """Read the status of a call that has failed."""
    facts: dict[str, Any] = {
        "code": call.code(),
        "message": call.details(),
        "trailing": dict(call.trailing_metadata() or ()),
    }
    status = rpc_status.from_call(call)
    if status is not None:
        assert (status.code, status.message) == (call.code().value[0], call.details())
        for detail in status.details:
            info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
            if detail.Unpack(info):
                facts |= {"reason": info.reason, "domain": info.domain, "metadata": dict(info.metadata)}
            elif detail.Unpack(retry):
                facts["retry_after_ms"] = retry.retry_delay.ToMilliseconds()
    return Failure(**facts)


def refused(call: Callable[..., Any], *arguments: Any, **options: Any) -> Failure:
    """Make a call that must fail, and give its status."""
    with pytest.raises(grpc.RpcError) as raised:
        call(*arguments, **{"timeout": WITHIN_S, **options})
    return failure_of(raised.value)


def until(condition: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    """Wait until something holds; fails if it does not in time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.02)


def encode_options(**fields: Any) -> types.EncodeOptions:
    """EncodeOptions without what the post-processor adds, unless asked for."""
    return types.EncodeOptions(**{"add_special_tokens": False, **fields})


def one_sequence(ids: Any = (), **fields: Any) -> pb.StreamDecodeRequest:
    """A StreamDecode message with one input."""
    return pb.StreamDecodeRequest(sequences=[types.SequenceInput(ids=ids, **fields)])


def little_endian(ids: Any) -> bytes:
    """Ids as packed bytes."""
    return b"".join(token_id.to_bytes(4, "little") for token_id in ids)


@contextmanager
def in_background(work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Run something beside the block, and wait for it at the block's end."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(WITHIN_S)
        assert not thread.is_alive()


def in_flight(server: RunningServer) -> dict[str, float]:
    """All gauges of living calls, streams and sequences that are not 0."""
    from prometheus_client.parser import text_string_to_metric_families

    names = {"tokend_in_flight_calls", "tokend_live_streams", "tokend_live_sequences"}
    return {
        f"{sample.name}{sample.labels}": sample.value
        for family in text_string_to_metric_families(server.get("/metrics"))
        for sample in family.samples
        if sample.name in names and sample.value
    }
