"""StreamDecode: many sequences on one stream, each a small state machine.

Nothing here sends or waits. The transport calls `DecodeStream.take` for each sequence input of a message, in
order, and sends the outputs; at half-close it sends what `finish` gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from tokend_server.engine.decoding import OpenSequence
from tokend_server.engine.stops import StopMatcher
from tokend_server.errors import (
    InvalidOption,
    LimitExceeded,
    Reason,
    RequestError,
    ShuttingDown,
    UnknownTokenId,
)
from tokend_server.service.decode import DecodeOptions, DecodeService, UnknownIds, read_ids

__all__ = ["DecodeStream", "EndReason", "SequenceOutput", "SequenceStart"]


class EndReason(Enum):
    """Why a sequence ended."""

    END = auto()
    """The client said `end`, or closed its side of the stream."""
    STOP = auto()
    """A stop string was found."""
    ERROR = auto()
    """The sequence was refused; its error says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStart:
    """What only a sequence's first message may carry; `options` is None where the message has none."""

    options: DecodeOptions | None = None
    prompt_ids: Sequence[int] = ()
    stop: Sequence[str] = ()
    refusal: RequestError | None = None
    """What is wrong with these fields already, for example a value that no version of the options has."""

    def field_in_use(self) -> str:
        """Name the first field that is set."""
        if self.prompt_ids:
            return "prompt_ids"
        return "stop" if self.stop else "options"


@dataclass(slots=True, kw_only=True)
class SequenceOutput:
    """The answer to one sequence input; filled by the state machine, read by the transport."""

    sequence_id: int
    text: str = ""
    tokens: int = 0
    total_tokens: int = 0
    pending_bytes: int = 0
    unknown_id_count: int = 0
    end_reason: EndReason | None = None
    """None while the sequence is open."""
    stop: str = ""
    error: RequestError | None = None
    ended_now: bool = False
    """This answer is the one at which the sequence ended; later ones only repeat that it did."""

    def end(self, reason: EndReason, *, stop: str = "", error: RequestError | None = None) -> None:
        """Say that the sequence ends with this answer."""
        self.end_reason, self.stop, self.error, self.ended_now = reason, stop, error, True
        self.pending_bytes = 0


@dataclass(frozen=True, slots=True)
class _Ended:
    """What is kept of an ended sequence until the client says `end`."""

    end_reason: EndReason
    stop: str
    total_tokens: int

    def output(self, sequence_id: int) -> SequenceOutput:
        return SequenceOutput(
            sequence_id=sequence_id,
            total_tokens=self.total_tokens,
            end_reason=self.end_reason,
            stop=self.stop,
        )


class _Open:
    """One open sequence: the decoder's state, the stop strings, the count."""

    __slots__ = ("decoder", "is_plain", "matcher", "total_tokens", "unknown_ids")

    def __init__(self, decoder: OpenSequence, matcher: StopMatcher | None, unknown_ids: UnknownIds) -> None:
        self.decoder = decoder
        self.matcher = matcher
        self.is_plain = matcher is None and not decoder.may_refuse
        self.unknown_ids = unknown_ids
        self.total_tokens = 0

    @property
    def pending_bytes(self) -> int:
        held_bytes = 0 if self.matcher is None else self.matcher.held_bytes
        return self.decoder.pending_bytes + held_bytes

    def flush(self, output: SequenceOutput) -> None:
        """Append what is held to the output; what is flushed may itself complete a stop string."""
        text = self.decoder.finish()
        if self.matcher is not None:
            text, stop = self.matcher.feed(text)
            if stop is not None:
                output.text += text
                output.end(EndReason.STOP, stop=stop)
                return
            text += self.matcher.finish()
        output.text += text


class DecodeStream:
    """The sequences of one StreamDecode call. Not for use by several threads at once."""

    def __init__(self, service: DecodeService) -> None:
        self._service = service
        # Read here once, since `step` is called for each token.
        self._max_ids = service.limits.max_ids
        self._max_id, self._holes = service.tokenizer.vocabulary.max_id, service.tokenizer.vocabulary.holes
        self._sequences: dict[int, _Open | _Ended] = {}
        self._n_open = 0
        self._ids_in_message = 0
        self._draining = False

    @property
    def n_open(self) -> int:
        """Sequences that are open now."""
        return self._n_open

    @property
    def holds_text(self) -> bool:
        """Whether a sequence's whole text is made at its end, so that a few bytes may take seconds."""
        return self._service.tokenizer.decoder.mode == "held"

    def drain(self) -> None:
        """Refuse new sequences from now on; open ones go on."""
        self._draining = True

    def start_message(self) -> None:
        """Start the count of ids anew: the limit is for one message."""
        self._ids_in_message = 0

    def step(self, sequence_id: int, token_id: int) -> tuple[str, int, int] | None:
        """Take one id of an open sequence, if nothing about it is out of the ordinary; nearly all inputs are so.

        Args:
            sequence_id: The client's name for the sequence.
            token_id: Its next id.

        Returns:
            What `take` would answer: text, total tokens and pending bytes. None where `take` has to be asked, since the
            sequence is not open or watches for stop strings, the id is unknown, or the message has too many.
        """
        sequence = self._sequences.get(sequence_id)
        if (
            sequence.__class__ is not _Open
            or not sequence.is_plain
            or token_id > self._max_id
            or token_id in self._holes
            or self._ids_in_message >= self._max_ids
        ):
            return None
        self._ids_in_message += 1
        decoder = sequence.decoder
        text = decoder.push((token_id,))
        sequence.total_tokens = total_tokens = sequence.total_tokens + 1
        return text, total_tokens, decoder.pending_bytes

    def take(
        self,
        sequence_id: int,
        ids: Sequence[int],
        packed_ids: bytes = b"",
        *,
        start: SequenceStart | None = None,
        end: bool = False,
    ) -> SequenceOutput:
        """Take one input of one sequence; opens the sequence if its id is free.

        What is wrong with the input ends this sequence alone and stands in its output. The text of an output
        never changes with later ids, but for an invalid byte run under PROMPT (docs/fidelity.md).

        Args:
            sequence_id: The client's name for the sequence.
            ids: New ids.
            packed_ids: Or the same as little-endian uint32 bytes.
            start: What only a first message may carry; None where nothing of it is set.
            end: Flush, end the sequence and free its id.

        Returns:
            The answer.

        Raises:
            LimitExceeded: TOO_MANY_SEQUENCES where even the refused ones are too many to remember; this ends the
                stream.
        """
        sequence = self._sequences.get(sequence_id)
        if isinstance(sequence, _Ended):
            if end:
                del self._sequences[sequence_id]
            return sequence.output(sequence_id)
        output = SequenceOutput(sequence_id=sequence_id)
        try:
            if sequence is None:
                sequence = self._start(start or _NOTHING, output)
                self._sequences[sequence_id] = sequence
                self._n_open += 1
            elif start is not None:
                raise InvalidOption(start.field_in_use(), "set", "belongs on a sequence's first message")
            given = read_ids(ids, packed_ids)
            self._count_ids(len(given))
            self._push(sequence, given, output)
        except RequestError as error:
            if sequence is not None:
                self._end(sequence, output)
            output.end(EndReason.ERROR, error=error)
        if sequence is not None:
            sequence.total_tokens += output.tokens
            output.total_tokens = sequence.total_tokens
            if output.end_reason is None:
                if not end:
                    output.pending_bytes = sequence.pending_bytes
                    return output
                self._end(sequence, output)
        self._forget(sequence_id, output, freed=end)
        return output

    def finish(self) -> list[SequenceOutput]:
        """Flush and end all open sequences, as at half-close.

        Returns:
            One last output for each sequence that was open, in the order of their opening.
        """
        outputs = []
        for sequence_id, sequence in self._sequences.items():
            if isinstance(sequence, _Open):
                output = SequenceOutput(sequence_id=sequence_id, total_tokens=sequence.total_tokens)
                self._end(sequence, output)
                outputs.append(output)
        self._sequences.clear()
        self._n_open = 0
        return outputs

    def _start(self, start: SequenceStart, output: SequenceOutput) -> _Open:
        options = start.options or _DEFAULTS
        tokenizer, limits = self._service.tokenizer, self._service.limits
        if start.refusal is not None:
            raise start.refusal
        if self._draining:
            raise ShuttingDown
        if self._n_open >= limits.max_sequences_per_stream:
            raise self._too_many("open sequences")
        tokenizer.check_fingerprint(options.expected_fingerprint)
        if options.include_bytes:
            raise InvalidOption(
                "include_bytes", "true", "a StreamDecode answers with text alone; ask Decode for bytes"
            )
        limits.check_stops(start.stop)
        self._count_ids(len(start.prompt_ids))
        try:
            prompt_ids, output.unknown_id_count = self._service.resolve_unknown(
                start.prompt_ids, options.unknown_ids
            )
        except UnknownTokenId as error:
            error.metadata["field"] = "prompt_ids"
            raise
        decoder = tokenizer.decoder.open(
            skip_special_tokens=options.skip_special_tokens,
            hold_byte_runs=options.hold_byte_runs,
            prompt_ids=prompt_ids,
        )
        return _Open(decoder, StopMatcher(start.stop) if start.stop else None, options.unknown_ids)

    def _too_many(self, what: str) -> LimitExceeded:
        limit = self._service.limits.max_sequences_per_stream
        return LimitExceeded(
            Reason.TOO_MANY_SEQUENCES,
            f"this stream has {limit} {what}, the most it may have; end some, or open another stream",
            size=limit + 1,
            limit=limit,
        )

    def _count_ids(self, n_ids: int) -> None:
        self._ids_in_message += n_ids
        self._service.limits.check_ids(self._ids_in_message)

    def _push(self, sequence: _Open, given: Sequence[int], output: SequenceOutput) -> None:
        if sequence.matcher is not None:
            self._push_watching(sequence, sequence.matcher, given, output)
            return
        try:
            ids, n_unknown = self._service.resolve_unknown(given, sequence.unknown_ids)
        except UnknownTokenId as error:
            # The ids before the bad one are good, and their text is the client's.
            output.tokens = error.index
            output.text = sequence.decoder.push(given[: output.tokens])
            raise
        output.unknown_id_count += n_unknown
        output.tokens = len(given)
        output.text = sequence.decoder.push(ids)

    def _push_watching(
        self, sequence: _Open, matcher: StopMatcher, given: Sequence[int], output: SequenceOutput
    ) -> None:
        """Push one id at a time: `tokens` counts up to the id that completed a stop string."""
        resolve, push, policy = self._service.resolve_unknown, sequence.decoder.push, sequence.unknown_ids
        pieces: list[str] = []
        try:
            for index, token_id in enumerate(given):
                ids, n_unknown = resolve((token_id,), policy, first_index=index)
                text, stop = matcher.feed(push(ids))
                pieces.append(text)
                output.unknown_id_count += n_unknown
                output.tokens += 1
                if stop is not None:
                    output.end(EndReason.STOP, stop=stop)
                    return
        finally:
            output.text = "".join(pieces)

    def _end(self, sequence: _Open, output: SequenceOutput) -> None:
        """Flush what is held, and end; a decoder that fails on it ends its own sequence alone."""
        try:
            sequence.flush(output)
        except RequestError as error:
            output.end(EndReason.ERROR, error=error)
        if output.end_reason is None:
            output.end(EndReason.END)

    def _forget(self, sequence_id: int, output: SequenceOutput, *, freed: bool) -> None:
        """Drop an ended sequence, but for the note that it ended where the client has not said `end` yet."""
        if self._sequences.pop(sequence_id, None) is not None:
            self._n_open -= 1
        if freed or output.end_reason is None:
            return
        # Refused sequences are remembered too, or their next message would open them in the middle of their text.
        if len(self._sequences) >= 2 * self._service.limits.max_sequences_per_stream:
            raise self._too_many("ended sequences and more that were sent no `end`")
        self._sequences[sequence_id] = _Ended(output.end_reason, output.stop, output.total_tokens)


_DEFAULTS = DecodeOptions()
_NOTHING = SequenceStart()
