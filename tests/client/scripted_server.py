# ruff: noqa: ARG002, N802 (the methods have the names and arguments that gRPC calls them by)
"""A real gRPC server on a real socket for faults that no healthy server shows on demand.

Its ids are the bytes of the text. `faults` are used up in order, one a call (unary or stream).
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import tokenizer_service_pb2_grpc as pb_grpc
from tokend.v1 import types_pb2

FINGERPRINT = "ab" * 32


@dataclass
class Fault:
    """What one call does instead of its work, after it has answered `after` messages."""

    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    after: int = 0
    hang_s: float = 0.0
    end: bool = False
    trailing: tuple[tuple[str, str | bytes], ...] = ()

    def strike(self, context: grpc.ServicerContext) -> None:
        time.sleep(self.hang_s)
        if not self.end:
            context.set_trailing_metadata(self.trailing)
            context.abort(self.code, "scripted")


@dataclass
class ScriptedServer(pb_grpc.TokenizerServiceServicer):
    """Counts what it is asked, and fails as told."""

    faults: list[Fault] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    peers: set[str] = field(default_factory=set)
    metadata: dict[str, Any] = field(default_factory=dict)
    limits: types_pb2.Limits = field(
        default_factory=lambda: types_pb2.Limits(
            max_batch_texts=4096, max_batch_bytes=48 << 20, max_ids=4_000_000
        )
    )
    wrong_batch_ids: bool = False

    def start(self, address: str = "127.0.0.1:0") -> str:
        self._server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        pb_grpc.add_TokenizerServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(address)
        self._server.start()
        return f"127.0.0.1:{port}"

    def stop(self) -> None:
        self._server.stop(0).wait()

    def _begin(self, method: str, context: grpc.ServicerContext) -> Fault | None:
        self.calls.append(method)
        self.peers.add(context.peer())
        self.metadata = dict(context.invocation_metadata())
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and fault.after == 0:
            fault.strike(context)
        return fault

    def Encode(self, request: Any, context: Any) -> Any:
        self._begin("Encode", context)
        data = request.text.encode()
        encoding = types_pb2.Encoding(
            packed_ids=b"".join(b.to_bytes(4, "little") for b in data),
            token_count=len(data),
            total_token_count=len(data),
        )
        return pb.EncodeResponse(encoding=encoding, fingerprint=FINGERPRINT)

    def GetTokenizer(self, request: Any, context: Any) -> Any:
        return pb.GetTokenizerResponse(fingerprint=FINGERPRINT, limits=self.limits)

    def DownloadTokenizer(self, request: Any, context: Any) -> Iterator[Any]:
        yield pb.DownloadTokenizerResponse(chunk=b"{", total_bytes=2)
        yield pb.DownloadTokenizerResponse(chunk=b"}", fingerprint=FINGERPRINT)

    def StreamEncode(self, requests: Any, context: Any) -> Iterator[Any]:
        fault = self._begin("StreamEncode", context)
        for n_answered, request in enumerate(requests):
            if fault is not None and n_answered == fault.after:
                fault.strike(context)
                return
            self.batches.append(request.batch_id)
            texts = [text.encode() for text in request.texts]
            result = pb.BatchEncodeResponse(
                packed_ids=b"".join(b.to_bytes(4, "little") for text in texts for b in text),
                token_counts=[len(text) for text in texts],
                fingerprint=FINGERPRINT,
            )
            yield pb.StreamEncodeResponse(batch_id=request.batch_id + self.wrong_batch_ids, result=result)

    def StreamDecode(self, requests: Any, context: Any) -> Iterator[Any]:
        fault = self._begin("StreamDecode", context)
        for n_answered, request in enumerate(requests):
            if fault is not None and n_answered == fault.after:
                if fault.end:
                    # As a drain does: what is held back is flushed with an END that nobody asked for.
                    last = types_pb2.SequenceOutput(text="~", ended=True, end_reason=types_pb2.END_REASON_END)
                    yield pb.StreamDecodeResponse(sequences=[last])
                fault.strike(context)
                return
            outputs = [
                types_pb2.SequenceOutput(
                    text=one.packed_ids[::4].decode("latin-1"), tokens=len(one.packed_ids) // 4
                )
                for one in request.sequences
            ]
            yield pb.StreamDecodeResponse(sequences=outputs, fingerprint="" if n_answered else FINGERPRINT)
        last = types_pb2.SequenceOutput(ended=True, end_reason=types_pb2.END_REASON_END)
        yield pb.StreamDecodeResponse(sequences=[last])
