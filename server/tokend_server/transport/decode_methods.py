"""Decode, BatchDecode and StreamDecode: proto to domain and back, nothing else."""

from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2
from tokend_server.errors import InvalidOption
from tokend_server.metrics import Tally
from tokend_server.service.decode import Decoded, DecodeService
from tokend_server.service.streams import DecodeStream, EndReason, SequenceOutput, SequenceStart
from tokend_server.service.usage import Usage
from tokend_server.transport.calls import Call
from tokend_server.transport.options import read_decode_options
from tokend_server.transport.status import error_message

__all__ = ["DecodeMethods"]

# What stands for bytes that are no UTF-8.
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_END_REASONS = {
    EndReason.END: types_pb2.END_REASON_END,
    EndReason.STOP: types_pb2.END_REASON_STOP,
    EndReason.ERROR: types_pb2.END_REASON_ERROR,
}


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

    def open_stream(self, call: Call) -> "StreamDecodeSession":
        """Begin a StreamDecode."""
        return StreamDecodeSession(DecodeStream(self._service), call, self._live_sequences, self._fingerprint)


class StreamDecodeSession:
    """One StreamDecode: a message in, its answer out, and the counts of what moved."""

    def __init__(self, stream: DecodeStream, call: Call, live_sequences: Tally, fingerprint: str) -> None:
        self._stream = stream
        self._call = call
        self._live_sequences = live_sequences
        self._n_counted_live = 0
        self._fingerprint_to_say = fingerprint

    def n_texts(self, request: pb.StreamDecodeRequest) -> int:
        """Count a message's inputs."""
        return len(request.sequences)

    def answer(self, request: pb.StreamDecodeRequest) -> pb.StreamDecodeResponse:
        """Take one message's inputs in order, and answer each."""
        self._stream.start_message()
        return self._response([self._take(each) for each in request.sequences])

    def _take(self, given: types_pb2.SequenceInput) -> SequenceOutput:
        start = None
        if given.HasField("options") or given.prompt_ids or given.stop:
            try:
                start = SequenceStart(
                    options=read_decode_options(given.options) if given.HasField("options") else None,
                    prompt_ids=given.prompt_ids[:],
                    stop=given.stop[:],
                )
            except InvalidOption as error:
                start = SequenceStart(refusal=error)
        return self._stream.take(
            given.sequence_id, given.ids[:], given.packed_ids, start=start, end=given.end
        )

    def _response(self, outputs: list[SequenceOutput]) -> pb.StreamDecodeResponse:
        response = pb.StreamDecodeResponse(fingerprint=self._fingerprint_to_say)
        self._fingerprint_to_say = ""
        n_tokens = n_bytes = n_characters = n_ended = n_unknown = n_replaced = 0
        for output in outputs:
            self._add(response, output)
            n_tokens += output.tokens
            n_bytes += len(output.text) if output.text.isascii() else len(output.text.encode())
            n_characters += len(output.text)
            n_replaced += output.text.count(_REPLACEMENT)
            n_unknown += output.unknown_id_count
            n_ended += output.ended_now and output.error is None
        self._call.moved(
            Usage(
                n_tokens=n_tokens,
                n_texts=n_ended,
                text_bytes=n_bytes,
                characters=n_characters,
                unknown_ids=n_unknown,
                replacement_characters=n_replaced,
            )
        )
        self._count_live(self._stream.n_open)
        return response

    def _add(self, response: pb.StreamDecodeResponse, output: SequenceOutput) -> None:
        if output.end_reason is None:
            response.sequences.add(
                sequence_id=output.sequence_id,
                text=output.text,
                tokens=output.tokens,
                total_tokens=output.total_tokens,
                pending_bytes=output.pending_bytes,
                unknown_id_count=output.unknown_id_count,
            )
            return
        added = response.sequences.add(
            sequence_id=output.sequence_id,
            text=output.text,
            tokens=output.tokens,
            total_tokens=output.total_tokens,
            unknown_id_count=output.unknown_id_count,
            ended=True,
            end_reason=_END_REASONS[output.end_reason],
            stop=output.stop,
        )
        if output.error is not None:
            self._call.refusal(output.error, sequence_id=output.sequence_id)
            added.error.CopyFrom(error_message(output.error))
        elif output.ended_now:
            self._call.sequence_ended(output.total_tokens)

    def finish(self) -> pb.StreamDecodeResponse | None:
        """Flush every open sequence."""
        outputs = self._stream.finish()
        return self._response(outputs) if outputs else None

    def drain(self) -> bool:
        """Open no new sequence."""
        self._stream.drain()
        return not self._stream.n_open

    def close(self) -> None:
        """Take the sequences of a stream that ended early out of the count of live ones."""
        self._count_live(0)

    def _count_live(self, n_open: int) -> None:
        if n_open != self._n_counted_live:
            self._live_sequences.add(n_open - self._n_counted_live)
            self._n_counted_live = n_open


def _response(decoded: Decoded) -> pb.DecodeResponse:
    return pb.DecodeResponse(
        text=decoded.text, raw_bytes=decoded.raw_bytes, unknown_id_count=decoded.unknown_id_count
    )


def _usage(decoded: list[Decoded]) -> Usage:
    return Usage.of_texts(
        [each.text for each in decoded],
        n_tokens=sum([each.n_tokens for each in decoded]),
        unknown_ids=sum([each.unknown_id_count for each in decoded]),
        replacement_characters=sum([each.text.count(_REPLACEMENT) for each in decoded]),
    )
