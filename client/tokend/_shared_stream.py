"""The decoders of one AsyncClient share a StreamDecode: what they push while a message is under way goes together.

Each sequence keeps to itself: its options, prompt and stop strings on its first message, its errors, its time limit,
its end. A stream opens with the first sequence that pushes and ends with the last that leaves. If it breaks, each
sequence that was open on it fails; one of which nothing was shown yet starts on another stream.
"""

import asyncio
import copy
import math
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count

from tokend import _calls, errors
from tokend._awaiting import CLOSED, AwaitingTransport
from tokend._calls import KnownLimits
from tokend._decode_sequence import ENDED_TOO_SOON
from tokend._flights import Flights
from tokend._time_limits import TimeLimits
from tokend.v1 import error_reason_pb2, types_pb2
from tokend.v1 import tokenizer_service_pb2 as service_pb2

__all__ = ["SharedSequence", "SharedStreams"]

_IN_FLIGHT = 2
_LEAST_SHARE = 64
_MESSAGE_INPUTS = 512
# Together, unless one sequence alone has more; the server limits the ids of a message (`Limits.max_ids`).
_MESSAGE_IDS = 1 << 16
# The default of `Limits.max_sequences_per_stream`; a lower one is asked for when it matters.
_STREAM_SEQUENCES = 16_384
# A sequence that could not open looks for another stream so often: once as the server leaves, once as one is full.
_MOVES = 2
_LIMITS_WITHIN_S = 5.0
# What says that this stream opened no sequence, and another one may.
_NOT_HERE = frozenset(
    {error_reason_pb2.ERROR_REASON_SHUTTING_DOWN, error_reason_pb2.ERROR_REASON_TOO_MANY_SEQUENCES}
)


class _Input:
    """What one sequence has for the next message."""

    __slots__ = ("end", "first", "n_ids", "packed", "sequence_id")

    def __init__(
        self, sequence_id: int, packed: bytes, *, first: types_pb2.SequenceInput | None, end: bool
    ) -> None:
        self.sequence_id = sequence_id
        self.packed = packed
        self.first = first
        self.end = end
        self.n_ids = len(packed) // 4 + (0 if first is None else len(first.prompt_ids))


class SharedSequence:
    """One sequence, wherever it is: on no stream yet, on one, or on none any more. For one task at a time."""

    __slots__ = ("_answer", "_early", "_error", "_number", "_stream", "_streams", "_timeout_s", "ends_at")

    def __init__(self, streams: "SharedStreams") -> None:
        self._streams = streams
        self._stream: _SharedStream | None = None
        self._number = 0
        self._answer: asyncio.Future[types_pb2.SequenceOutput] | None = None
        self._early: types_pb2.SequenceOutput | None = None
        self._error: errors.TokendError | None = None
        self._timeout_s: float | None = None
        self.ends_at = math.inf

    @property
    def fingerprint(self) -> str:
        """The sha256 of the tokenizer file that the stream's server serves; empty before its first answer."""
        return "" if self._stream is None else self._stream.fingerprint

    async def open(
        self, first: types_pb2.SequenceInput, packed: bytes, timeout_s: float | None
    ) -> types_pb2.SequenceOutput:
        """Joins a stream with the first message.

        Raises:
            TokendError: The stream broke, or there was no answer in time.
        """
        moves = 0
        while True:
            stream, is_new = await self._streams.choose()
            may_move = not is_new and moves < _MOVES
            self._stream, self._number = stream, stream.join(self)
            try:
                output = await self._exchange(packed, timeout_s, first=first)
            except errors.UnavailableError:
                # A new stream would have had the same chance as a call of its own; an old one may be from before the
                # server went away. Nothing of the sequence was shown.
                if not may_move:
                    raise
                self._error = None
            else:
                if not may_move or output.error.reason not in _NOT_HERE:
                    return output
                stream.is_full = True
                self.leave(ended=True)
            moves += 1

    async def push(self, packed: bytes, timeout_s: float | None) -> types_pb2.SequenceOutput:
        """Sends the next ids and awaits their answer.

        Raises:
            TokendError: The stream broke, or there was no answer in time.
        """
        return await self._exchange(packed, timeout_s)

    async def finish(self, timeout_s: float | None, *, is_open: bool) -> types_pb2.SequenceOutput | None:
        """Ends the sequence; gives its last answer, None if it had ended by itself.

        Raises:
            TokendError: The stream broke, or there was no answer in time.
        """
        stream, output = self._stream, None
        if is_open and (stream is not None or self._early is not None or self._error is not None):
            alone = stream is not None and stream.is_alone(self._number)
            # A sequence that is alone goes with its stream: the server answers a half-close with its end.
            output = await self._exchange(b"", timeout_s, end=not alone, half_close=alone)
        self.leave(ended=True, forgotten=is_open)
        if stream is not None and stream.is_closing:
            await stream.wait_for_end(timeout_s)
        return output

    def leave(self, *, ended: bool, forgotten: bool = False) -> None:
        """Gives up the place on the stream; may be repeated.

        Args:
            ended: The sequence ended, if only in an error; otherwise text may be held back, which nobody wants.
            forgotten: The server knows nothing of the sequence any more.
        """
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.remove(self._number, ended=ended, forgotten=forgotten)

    def abandon(self) -> None:
        """`leave`, from any thread."""
        stream = self._stream
        if stream is not None:
            with suppress(RuntimeError):  # the loop is closed, and the stream with it
                stream.loop.call_soon_threadsafe(lambda: self.leave(ended=False))

    def take(self, output: types_pb2.SequenceOutput) -> None:
        """An answer to this sequence has come, or the end that nobody asked for."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(output)
        elif output.ended:
            self._early = output

    def fail(self, error: errors.TokendError) -> None:
        """The stream is gone."""
        self._stream = None
        own = copy.copy(error)  # each caller adds a traceback of its own
        own.__cause__ = error.__cause__
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(own)
        else:
            self._error = own

    def expire(self) -> None:
        """The time for an answer is over."""
        if self._answer is not None and not self._answer.done():
            if self._stream is not None:
                # It may hang: whoever is new shall not wait for it, too.
                self._stream.is_full = True
            self._answer.set_exception(
                errors.DeadlineExceededError(f"no answer within {self._timeout_s:g} s")
            )

    async def _exchange(
        self,
        packed: bytes,
        timeout_s: float | None,
        *,
        first: types_pb2.SequenceInput | None = None,
        end: bool = False,
        half_close: bool = False,
    ) -> types_pb2.SequenceOutput:
        if self._answer is not None:
            raise RuntimeError("a push of this decoder is under way; a decoder is for one task at a time")
        if self._early is not None:
            return self._early
        stream = self._stream
        if stream is None:
            raise self._error or errors.CallCancelledError(CLOSED)
        answer: asyncio.Future[types_pb2.SequenceOutput] = stream.loop.create_future()
        self._answer = answer
        if half_close:
            stream.half_close()
        else:
            stream.add(_Input(self._number, packed, first=first, end=end))
        if timeout_s is not None:
            self._timeout_s, self.ends_at = timeout_s, stream.loop.time() + timeout_s
            self._streams.limits.add(self)
        try:
            return await answer
        finally:
            self._answer = None
            if timeout_s is not None:
                self._streams.limits.discard(self)


class _SharedStream:
    """One StreamDecode and the sequences on it."""

    def __init__(self, streams: "SharedStreams", transport: AwaitingTransport, connection: int) -> None:
        self._streams = streams
        self._sequences: dict[int, SharedSequence] = {}
        self._next_number = 0
        self._inputs: deque[_Input] = deque()
        self._sent: deque[int] = deque()
        self._flights = Flights(most=_IN_FLIGHT, least_share=_LEAST_SHARE)
        self._wake_up: asyncio.Future[None] | None = None
        self.connection = connection
        self.loop = asyncio.get_running_loop()
        self.is_full = False
        self.is_closing = False
        self.fingerprint = ""
        self._call = transport.open_call("StreamDecode", self._messages(), connection)
        self._reader = self.loop.create_task(self._read())

    @property
    def n_sequences(self) -> int:
        return len(self._sequences)

    def takes_more(self, most_sequences: int) -> bool:
        return not (self.is_full or self.is_closing) and len(self._sequences) < most_sequences

    def is_alone(self, number: int) -> bool:
        return len(self._sequences) == 1 and number in self._sequences

    def join(self, sequence: SharedSequence) -> int:
        number = self._next_number
        self._next_number += 1
        self._sequences[number] = sequence
        return number

    def remove(self, number: int, *, ended: bool, forgotten: bool) -> None:
        del self._sequences[number]
        if self._sequences:
            if not forgotten:
                self.add(_Input(number, b"", first=None, end=True))
        elif ended:
            self.half_close()
        else:
            self.is_closing = True
            self._call.close()

    def add(self, given: _Input) -> None:
        self._inputs.append(given)
        if self._flights.next_size(len(self._inputs)):
            self._wake()

    def half_close(self) -> None:
        self.is_closing = True
        self._wake()

    async def wait_for_end(self, timeout_s: float | None = None) -> None:
        await asyncio.wait([self._reader], timeout=timeout_s)
        self._call.close()

    def _wake(self) -> None:
        if self._wake_up is not None and not self._wake_up.done():
            self._wake_up.set_result(None)

    async def _messages(self) -> AsyncIterator[service_pb2.StreamDecodeRequest]:
        """Gives gRPC the next message whenever it can take one.

        It wakes one turn of the loop after the first push, so that the other pushes of that turn go along.
        """
        while True:
            if n_inputs := self._flights.next_size(len(self._inputs)):
                yield self._message(n_inputs)
            elif self.is_closing and not self._inputs:
                return
            else:
                self._wake_up = self.loop.create_future()
                await self._wake_up

    def _message(self, n_inputs: int) -> service_pb2.StreamDecodeRequest:
        inputs, message = self._inputs, service_pb2.StreamDecodeRequest()
        sequences = message.sequences
        most_ids = self._streams.known.ids(_MESSAGE_IDS)
        n_taken = n_ids = 0
        while inputs and n_taken < min(n_inputs, _MESSAGE_INPUTS):
            given = inputs[0]
            n_ids += given.n_ids
            if n_taken and n_ids > most_ids:
                break
            inputs.popleft()
            n_taken += 1
            if given.first is not None:
                added = sequences.add()
                added.CopyFrom(given.first)
                added.sequence_id, added.packed_ids = given.sequence_id, given.packed
            elif given.end:
                sequences.add(sequence_id=given.sequence_id, packed_ids=given.packed, end=True)
            else:
                sequences.add(sequence_id=given.sequence_id, packed_ids=given.packed)
        self._flights.start(n_taken)
        self._sent.append(n_taken)
        return message

    async def _read(self) -> None:
        error: errors.TokendError = errors.CallCancelledError(CLOSED)
        try:
            while (answer := await self._call.receive()) is not None:
                self._take(answer)
            error = errors.InternalError(ENDED_TOO_SOON)
        except errors.TokendError as failure:
            error = failure
        finally:
            self._break(error)

    def _take(self, answer: service_pb2.StreamDecodeResponse) -> None:
        self.fingerprint = answer.fingerprint or self.fingerprint
        outputs = answer.sequences
        if self._sent:
            n_inputs = self._sent.popleft()
            self._flights.end(n_inputs)
            # A server that shuts down may end all of its sequences instead of answering.
            if len(outputs) != n_inputs and not all(output.ended for output in outputs):
                raise errors.InternalError(
                    f"the server answered {n_inputs} inputs with {len(outputs)} outputs"
                )
        for output in outputs:
            sequence = self._sequences.get(output.sequence_id)
            if sequence is not None:
                sequence.take(output)
        if self._inputs or self.is_closing:
            self._wake()

    def _break(self, error: errors.TokendError) -> None:
        self._streams.discard(self)
        self.is_closing = True
        self._call.close()
        self._inputs.clear()
        self._wake()
        sequences, self._sequences = self._sequences, {}
        for sequence in sequences.values():
            sequence.fail(error)


class SharedStreams:
    """The StreamDecodes of one client: one a connection, and further ones where these are full."""

    def __init__(
        self,
        transport: AwaitingTransport,
        known: KnownLimits,
        limits: TimeLimits,
        *,
        connections: int,
        shared: bool,
    ) -> None:
        self._transport = transport
        self._connections = connections
        self._shared = shared
        self._turns = count()
        self._asking_limits = asyncio.Lock()
        self._asked_limits = False
        self._streams: dict[_SharedStream, None] = {}
        self.known = known
        self.limits = limits

    async def choose(self) -> tuple[_SharedStream, bool]:
        """The stream for a sequence that opens, and whether it is a new one."""
        stream = self._with_room()
        if stream is not None and not self._asked_limits:
            # Together, sequences must not exceed what each alone would not: once, the second one asks.
            await self._learn_limits()
            stream = self._with_room()
        return (self._open(), True) if stream is None else (stream, False)

    def _with_room(self) -> _SharedStream | None:
        if not self._shared:
            return None
        most = self.known.sequences(_STREAM_SEQUENCES)
        open_streams = [stream for stream in self._streams if stream.takes_more(most)]
        if len(open_streams) < self._connections:
            return None
        return min(open_streams, key=lambda stream: stream.n_sequences)

    def _open(self) -> _SharedStream:
        if self._shared:
            used = Counter(stream.connection for stream in self._streams)
            connection = min(range(self._connections), key=lambda connection: used[connection])
        else:
            connection = next(self._turns) % self._connections
        stream = _SharedStream(self, self._transport, connection)
        self._streams[stream] = None
        return stream

    def discard(self, stream: _SharedStream) -> None:
        """Forgets a stream that has ended."""
        self._streams.pop(stream, None)

    async def _learn_limits(self) -> None:
        async with self._asking_limits:
            if self._asked_limits:
                return
            if self.known.limits is None:
                # A failure will show on the stream itself.
                with suppress(errors.TokendError):
                    reply = await self._transport.run(_calls.tokenizer_info(), _LIMITS_WITHIN_S)
                    self.known.limits = reply.limits
            self._asked_limits = True

    async def wait_for_end(self) -> None:
        """Waits until the streams of a closed client have noticed."""
        for stream in list(self._streams):
            await stream.wait_for_end()
