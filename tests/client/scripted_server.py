# ruff: noqa: ARG002, N802 (the methods have the names and arguments that gRPC calls them by)
"""A real gRPC server on a real socket for faults that no healthy server shows on demand.

Its ids are the bytes of the text. `faults` are used up in order, one a call (unary or stream).
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from tokend.v1 import error_reason_pb2, types_pb2
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import tokenizer_service_pb2_grpc as pb_grpc

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
    batch_sizes: list[int] = field(default_factory=list)
    """Texts in each BatchEncode; sequences in each message of a StreamDecode."""
    failing_text: str = ""
    """A text on which the server fails, without a word about which text it was."""
    gate: threading.Event = field(default_factory=threading.Event)
    """Encode and BatchEncode answer once it is set, which it is at first."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set once a call that waited at the gate was cancelled by its client."""
    draining: set[int] = field(default_factory=set)
    """The StreamDecodes, by their number from 0, that open no further sequence."""
    n_decode_streams: int = 0
    ended: list[int] = field(default_factory=list)
    """Sequences that a client ended, by `end`."""

    def __post_init__(self) -> None:
        self.gate.set()

    def start(self, address: str = "127.0.0.1:0") -> str:
        self._server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        pb_grpc.add_TokenizerServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(address)
        self._server.start()
        return f"127.0.0.1:{port}"

    def stop(self) -> None:
        self.gate.set()
        self._server.stop(0).wait()

    def _begin(self, method: str, context: grpc.ServicerContext) -> Fault | None:
        self.calls.append(method)
        self.peers.add(context.peer())
        self.metadata = dict(context.invocation_metadata())
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and fault.after == 0:
            fault.strike(context)
        return fault

    def _wait_at_gate(self, texts: list[str], context: grpc.ServicerContext) -> None:
        context.add_callback(lambda: None if self.gate.is_set() else self.cancelled.set())
        self.gate.wait()
        if self.failing_text in texts and self.failing_text:
            context.abort(grpc.StatusCode.INTERNAL, "scripted")

    def BatchEncode(self, request: Any, context: Any) -> Any:
        self._begin("BatchEncode", context)
        self.batch_sizes.append(len(request.texts))
        self._wait_at_gate(list(request.texts), context)
        texts = [text.encode() for text in request.texts]
        return pb.BatchEncodeResponse(
            packed_ids=b"".join(b.to_bytes(4, "little") for text in texts for b in text),
            token_counts=[len(text) for text in texts],
            fingerprint=FINGERPRINT,
        )

    def Encode(self, request: Any, context: Any) -> Any:
        self._begin("Encode", context)
        self._wait_at_gate([request.text], context)
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
        opened: dict[int, None] = {}
        number = self.n_decode_streams
        self.n_decode_streams += 1
        for n_answered, request in enumerate(requests):
            if fault is not None and n_answered == fault.after:
                if fault.end:
                    # As a drain does: what is held back is flushed with an END that nobody asked for.
                    opened.setdefault(request.sequences[0].sequence_id)
                    yield self._ends(opened, "~")
                fault.strike(context)
                return
            self.batch_sizes.append(len(request.sequences))
            outputs = []
            for one in request.sequences:
                if number in self.draining and one.sequence_id not in opened and not one.end:
                    outputs.append(
                        types_pb2.SequenceOutput(
                            sequence_id=one.sequence_id,
                            ended=True,
                            end_reason=types_pb2.END_REASON_ERROR,
                            error=types_pb2.Error(
                                code=grpc.StatusCode.UNAVAILABLE.value[0],
                                reason=error_reason_pb2.ERROR_REASON_SHUTTING_DOWN,
                                message="scripted",
                            ),
                        )
                    )
                    continue
                outputs.append(
                    types_pb2.SequenceOutput(
                        sequence_id=one.sequence_id,
                        text=one.packed_ids[::4].decode("latin-1"),
                        tokens=len(one.packed_ids) // 4,
                        ended=one.end,
                        end_reason=types_pb2.END_REASON_END if one.end else types_pb2.END_REASON_UNSPECIFIED,
                    )
                )
                if one.end:
                    self.ended.append(one.sequence_id)
                    opened.pop(one.sequence_id, None)
                else:
                    opened[one.sequence_id] = None
            yield pb.StreamDecodeResponse(sequences=outputs, fingerprint="" if n_answered else FINGERPRINT)
        if opened:
            yield self._ends(opened, "")

    @staticmethod
    def _ends(opened: dict[int, None], text: str) -> Any:
        return pb.StreamDecodeResponse(
            sequences=[
                types_pb2.SequenceOutput(
                    sequence_id=number, text=text, ended=True, end_reason=types_pb2.END_REASON_END
                )
                for number in opened
            ]
        )
