"""The state of one streamed sequence, as the client sees it. Pure.

A started sequence is never sent again: its text was shown. Whatever breaks it is raised.
"""

from collections.abc import Iterable

from tokend import errors
from tokend._arguments import Ids, checked_strings, packed_ids
from tokend._requests import decode_options
from tokend._status import error_of_answer
from tokend.options import DecodeOptions
from tokend.results import unpacked_ids
from tokend.v1 import tokenizer_service_pb2 as service_pb2
from tokend.v1 import types_pb2

__all__ = ["ENDED_TOO_SOON", "DecodeSequence"]

ENDED_TOO_SOON = "the server ended the stream before it had answered every message"


class DecodeSequence:
    """One streamed sequence: builds its messages and reads their answers; the decoders add the transport.

    Attributes:
        ended: Whether the sequence is over; then no more text comes.
        end_reason: END, STOP or ERROR once it is over; None before.
        stop: The stop string that was found; None if none was.
        total_tokens: How many ids were taken, the prompt's not counted.
        pending_bytes: How much the server holds back, in bytes.
        unknown_id_count: How many unknown ids were skipped or replaced.
        fingerprint: The sha256 of the tokenizer file; empty before the first answer.
    """

    __slots__ = (
        "_error",
        "_finished",
        "_first",
        "_half_closed",
        "end_reason",
        "ended",
        "fingerprint",
        "pending_bytes",
        "stop",
        "total_tokens",
        "unknown_id_count",
    )

    def __init__(
        self, *, prompt_ids: Ids, stop: Iterable[str], keywords: DecodeOptions, fingerprint: str | None
    ) -> None:
        options = decode_options(keywords, fingerprint=fingerprint)
        if options.include_bytes:
            raise ValueError("include_bytes is not for streams, which send text alone; use decode")
        stops = checked_strings(stop, "stop")
        if "" in stops:
            raise ValueError(f"stop[{stops.index('')}] is empty; a stop string has at least one character")
        self._first: types_pb2.SequenceInput | None = types_pb2.SequenceInput(
            options=options, prompt_ids=unpacked_ids(packed_ids(prompt_ids, "prompt_ids")), stop=stops
        )
        self.ended = False
        self.end_reason: str | None = None
        self.stop: str | None = None
        self.total_tokens = 0
        self.pending_bytes = 0
        self.unknown_id_count = 0
        self.fingerprint = ""
        self._finished = False
        self._half_closed = False
        self._error: errors.TokendError | None = None

    def _takes_ids(self) -> bool:
        """Whether ids still make text; raises for a sequence that failed or was finished."""
        if self._error is not None:
            raise self._error
        if self._finished:
            raise ValueError("the decoder is finished; open a new one for the next sequence")
        return not self.ended

    def _request(self, packed: bytes) -> service_pb2.StreamDecodeRequest:
        """The message that brings the next ids; the first one brings the options too."""
        sequence = self._take_first() or types_pb2.SequenceInput()
        sequence.packed_ids = packed
        return service_pb2.StreamDecodeRequest(sequences=[sequence])

    def _take_first(self) -> types_pb2.SequenceInput | None:
        """What only the first message carries; None after that."""
        first, self._first = self._first, None
        return first

    def _take(self, answer: service_pb2.StreamDecodeResponse | None) -> str:
        """Reads the answer of a stream of one sequence and returns its text."""
        if answer is None:
            raise errors.InternalError(ENDED_TOO_SOON)
        if len(answer.sequences) != 1:
            raise errors.InternalError(f"the server answered one sequence with {len(answer.sequences)}")
        self.fingerprint = answer.fingerprint or self.fingerprint
        return self._take_output(answer.sequences[0])

    def _take_output(self, output: types_pb2.SequenceOutput) -> str:
        """Reads the answer to the sequence's last message and returns its text.

        Raises:
            TokendError: The sequence failed; `text_before_error` has the text of the ids before the bad one.
        """
        self.total_tokens = output.total_tokens
        self.pending_bytes = output.pending_bytes
        self.unknown_id_count += output.unknown_id_count
        if output.ended:
            self.ended = True
            self.end_reason = types_pb2.EndReason.Name(output.end_reason).removeprefix("END_REASON_")
            self.stop = output.stop or None
            if output.end_reason == types_pb2.END_REASON_END and not self._half_closed:
                # Not what was asked for, and what follows would be lost without a word.
                raise errors.UnavailableError(
                    "the server ended the sequence before its ids did; it is shutting down",
                    reason="SHUTTING_DOWN",
                    text_before_error=output.text,
                )
        if output.HasField("error"):
            raise error_of_answer(output.error, text_before_error=output.text)
        return output.text

    def _fail(self, error: errors.TokendError) -> None:
        """Keeps the error that ended the sequence, for whoever goes on with it."""
        if self._error is None:
            self._error = error
