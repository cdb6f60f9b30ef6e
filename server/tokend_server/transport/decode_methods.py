"""Decode and BatchDecode: proto to domain and back, nothing else; StreamDecode is in `stream_decode`."""

from tokend.v1 import tokenizer_service_pb2 as pb
from tokend_server.engine.decoding import FFFD
from tokend_server.metrics import Tally
from tokend_server.service.decode import Decoded, DecodeService
from tokend_server.service.streams import DecodeStream
from tokend_server.service.usage import Usage
from tokend_server.transport.calls import Call
from tokend_server.transport.options import read_decode_options
from tokend_server.transport.stream_decode import StreamDecodeSession

__all__ = ["DecodeMethods"]


class DecodeMethods:
    """The methods that turn ids into text."""

    def __init__(self, service: DecodeService, live_sequences: Tally) -> None:
        self._service = service
        self._live_sequences = live_sequences
        self._fingerprint = service.tokenizer.fingerprint

    def decode(self, request: pb.DecodeRequest) -> tuple[pb.DecodeResponse, Usage]:
        """Answer Decode."""
        decoded = self._service.decode(
            request.ids[:], request.packed_ids, read_decode_options(request.options)
        )
        response = _response(decoded)
        response.fingerprint = self._fingerprint
        return response, _usage([decoded])

    def batch_decode(self, request: pb.BatchDecodeRequest) -> tuple[pb.BatchDecodeResponse, Usage]:
        """Answer BatchDecode."""
        decoded = self._service.decode_batch(
            [(sequence.ids[:], sequence.packed_ids) for sequence in request.sequences],
            read_decode_options(request.options),
        )
        response = pb.BatchDecodeResponse(results=map(_response, decoded), fingerprint=self._fingerprint)
        return response, _usage(decoded)

    def open_stream(self, call: Call) -> StreamDecodeSession:
        """Begin a StreamDecode."""
        return StreamDecodeSession(DecodeStream(self._service), call, self._live_sequences, self._fingerprint)


def _response(decoded: Decoded) -> pb.DecodeResponse:
    return pb.DecodeResponse(
        text=decoded.text, raw_bytes=decoded.raw_bytes, unknown_id_count=decoded.unknown_id_count
    )


def _usage(decoded: list[Decoded]) -> Usage:
    return Usage.of_texts(
        [each.text for each in decoded],
        n_tokens=sum([each.n_tokens for each in decoded]),
        unknown_ids=sum([each.unknown_id_count for each in decoded]),
        replacement_characters=sum([each.text.count(FFFD) for each in decoded]),
    )
