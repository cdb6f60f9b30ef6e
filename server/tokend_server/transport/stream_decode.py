"""StreamDecode: a message of many sequences in, its answer out, and the counts of what moved."""

from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2
from tokend_server.engine.decoding import FFFD
from tokend_server.errors import InvalidOption
from tokend_server.metrics import Tally
from tokend_server.service.limits import utf8_length
from tokend_server.service.streams import DecodeStream, EndReason, SequenceOutput, SequenceStart
from tokend_server.service.usage import Usage
from tokend_server.transport.calls import Call
from tokend_server.transport.options import read_decode_options
from tokend_server.transport.status import error_message

__all__ = ["StreamDecodeSession"]

_END_REASONS = {
    EndReason.END: types_pb2.END_REASON_END,
    EndReason.STOP: types_pb2.END_REASON_STOP,
    EndReason.ERROR: types_pb2.END_REASON_ERROR,
}


class StreamDecodeSession:
    """One StreamDecode."""

    def __init__(self, stream: DecodeStream, call: Call, live_sequences: Tally, fingerprint: str) -> None:
        self._stream = stream
        self._call = call
        self._live_sequences = live_sequences
        self._n_counted_live = 0
        self._fingerprint_to_say = fingerprint
        self._last: _Reply | None = None

    @property
    def n_open(self) -> int:
        """Sequences that are open now."""
        return self._stream.n_open

    @property
    def holds_text(self) -> bool:
        """Whether even a small message may take long; see `DecodeStream.holds_text`."""
        return self._stream.holds_text

    def n_texts(self, request: pb.StreamDecodeRequest) -> int:
        """Count a message's inputs."""
        return len(request.sequences)

    def answer(self, request: pb.StreamDecodeRequest) -> pb.StreamDecodeResponse:
        """Take one message's inputs in order, and answer each."""
        self._stream.start_message()
        reply = _Reply(self._fingerprint_to_say)
        step, add_step = self._stream.step, reply.add_step
        for given in request.sequences:
            sequence_id = given.sequence_id
            token_id = _only_id(given, sequence_id)
            stepped = None if token_id is None else step(sequence_id, token_id)
            if stepped is None:
                self._add(reply, self._take(given))
            else:
                add_step(sequence_id, stepped)
        return self._counted(reply)

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

    def _add(self, reply: "_Reply", output: SequenceOutput) -> None:
        added = reply.add(output)
        if output.error is not None:
            self._call.refusal(output.error, sequence_id=output.sequence_id)
            added.error.CopyFrom(error_message(output.error))
        elif output.ended_now:
            reply.tokens_of_ended.append(output.total_tokens)

    def _counted(self, reply: "_Reply") -> pb.StreamDecodeResponse:
        self._fingerprint_to_say = ""
        self._count(reply)
        self._count_live(self._stream.n_open)
        return reply.message

    def _count(self, reply: "_Reply") -> None:
        for n_tokens in reply.tokens_of_ended:
            self._call.sequence_ended(n_tokens)
        self._call.moved(reply.usage())

    def finish(self) -> pb.StreamDecodeResponse | None:
        """Flush every open sequence; nothing is counted before `finish_sent`."""
        outputs = self._stream.finish()
        if not outputs:
            return None
        self._last = reply = _Reply(self._fingerprint_to_say)
        for output in outputs:
            self._add(reply, output)
        self._count_live(0)
        return reply.message

    def finish_sent(self) -> None:
        """Count what `finish` flushed: its client, who may have looked as if it had said all, had not left."""
        if self._last is not None:
            self._count(self._last)

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


def _only_id(given: types_pb2.SequenceInput, sequence_id: int) -> int | None:
    """The id of an input that holds one packed id, and nothing else; None for every other one.

    Nearly all inputs are so, and to ask each of their fields whether it is set takes longer than to decode the id.
    """
    packed = given.packed_ids
    if len(packed) != 4:
        return None
    # A tag and a length for the id's four bytes, a tag and a varint for the sequence's name unless that is 0: where the
    # input takes no more bytes, no other field is set.
    name_bytes = 1 + (sequence_id.bit_length() + 6) // 7 if sequence_id else 0
    return int.from_bytes(packed, "little") if given.ByteSize() == 6 + name_bytes else None


class _Reply:
    """The answer to one message while it is made."""

    def __init__(self, fingerprint: str) -> None:
        self.message = pb.StreamDecodeResponse(fingerprint=fingerprint)
        self.tokens_of_ended: list[int] = []
        """How many each sequence had that ended well."""
        self._new = self.message.sequences.add
        self._texts: list[str] = []
        self._n_more_tokens = 0
        self._n_unknown = 0

    def add_step(self, sequence_id: int, step: tuple[str, int, int]) -> None:
        """Add the answer to one id of a sequence that stays open; see `DecodeStream.step`."""
        # One field after the other: keyword arguments take twice as long.
        added = self._new()
        added.sequence_id = sequence_id
        added.text, added.total_tokens, pending_bytes = step
        added.tokens = 1
        if pending_bytes:
            added.pending_bytes = pending_bytes
        self._texts.append(step[0])

    def add(self, output: SequenceOutput) -> types_pb2.SequenceOutput:
        """Add any answer."""
        self._texts.append(output.text)
        self._n_more_tokens += output.tokens - 1
        self._n_unknown += output.unknown_id_count
        added = self._new(
            sequence_id=output.sequence_id,
            text=output.text,
            tokens=output.tokens,
            total_tokens=output.total_tokens,
            pending_bytes=output.pending_bytes,
            unknown_id_count=output.unknown_id_count,
        )
        if output.end_reason is not None:
            added.ended = True
            added.end_reason = _END_REASONS[output.end_reason]
            added.stop = output.stop
        return added

    def usage(self) -> Usage:
        """What the message moved."""
        text = "".join(self._texts)
        return Usage(
            n_tokens=len(self._texts) + self._n_more_tokens,
            n_texts=len(self.tokens_of_ended),
            text_bytes=utf8_length(text),
            characters=len(text),
            unknown_ids=self._n_unknown,
            replacement_characters=text.count(FFFD),
        )
