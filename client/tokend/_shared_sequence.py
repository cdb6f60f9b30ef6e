"""The decoders of one AsyncClient share streams, and each sequence keeps to itself.

Its options, prompt and stop strings are on its first message; its errors, its time limit and its end are its own. A
stream opens with the first sequence that pushes and ends with the last that leaves. If it breaks, each sequence that
was open on it fails; one of which nothing was shown yet starts on another stream.
"""

import asyncio
import copy
import math
from collections import Counter
from contextlib import suppress
from itertools import count

from tokend import _calls, errors
from tokend._awaiting import CLOSED, AwaitingTransport
from tokend._known_limits import KnownLimits
from tokend._shared_stream import Input, SharedStream
from tokend._time_limits import TimeLimits
from tokend.v1 import error_reason_pb2, types_pb2

__all__ = ["SharedSequence", "SharedStreams"]

# The default of `Limits.max_sequences_per_stream`; a lower one is asked for when it matters.
_STREAM_SEQUENCES = 16_384
# A sequence that could not open looks for another stream so often: once as the server leaves, once as one is full.
_MOVES = 2
_LIMITS_WITHIN_S = 5.0
# What says that this stream opened no sequence, and another one may.
_NOT_HERE = frozenset(
    {error_reason_pb2.ERROR_REASON_SHUTTING_DOWN, error_reason_pb2.ERROR_REASON_TOO_MANY_SEQUENCES}
)


class SharedSequence:
    """One sequence, wherever it is: on no stream yet, on one, or on none any more. For one task at a time."""

    __slots__ = ("_answer", "_early", "_error", "_number", "_stream", "_streams", "_timeout_s", "ends_at")

    def __init__(self, streams: "SharedStreams") -> None:
        self._streams = streams
        self._stream: SharedStream | None = None
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
            stream, is_new = await self._streams.choose(timeout_s)
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
            stream.add(Input(self._number, packed, first=first, end=end))
        if timeout_s is not None:
            self._timeout_s, self.ends_at = timeout_s, stream.loop.time() + timeout_s
            self._streams.limits.add(self)
        try:
            return await answer
        finally:
            self._answer = None
            if timeout_s is not None:
                self._streams.limits.discard(self)


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
        self._learning: asyncio.Task[None] | None = None
        self._streams: dict[SharedStream, None] = {}
        self._known = known
        self.limits = limits

    async def choose(self, timeout_s: float | None) -> tuple[SharedStream, bool]:
        """The stream for a sequence that opens, and whether it is a new one.

        Raises:
            DeadlineExceededError: The server's limits had to be asked for, and did not come in time.
        """
        stream = self._with_room()
        if stream is not None and (self._learning is None or not self._learning.done()):
            # Together, sequences must not exceed what each alone would not: once, the second one asks. Whoever waits
            # for it may be cancelled; it goes on for the others.
            if self._learning is None:
                self._learning = asyncio.create_task(self._learn_limits())
            done, _ = await asyncio.wait([self._learning], timeout=timeout_s)
            if not done:
                raise errors.DeadlineExceededError(f"no answer within {timeout_s:g} s")
            stream = self._with_room()
        return (self._open(), True) if stream is None else (stream, False)

    def _with_room(self) -> SharedStream | None:
        if not self._shared:
            return None
        most = self._known.sequences(_STREAM_SEQUENCES)
        open_streams = [stream for stream in self._streams if stream.takes_more(most)]
        if len(open_streams) < self._connections:
            return None
        return min(open_streams, key=lambda stream: stream.n_sequences)

    def _open(self) -> SharedStream:
        if self._shared:
            used = Counter(stream.connection for stream in self._streams)
            connection = min(range(self._connections), key=lambda connection: used[connection])
        else:
            connection = next(self._turns) % self._connections
        stream = SharedStream(self._transport, connection, self._known, self._discard)
        self._streams[stream] = None
        return stream

    def _discard(self, stream: SharedStream) -> None:
        self._streams.pop(stream, None)

    async def _learn_limits(self) -> None:
        if self._known.limits is None:
            # A failure will show on the stream itself, and so will a client that was closed.
            with suppress(errors.TokendError, RuntimeError):
                reply = await self._transport.run(_calls.tokenizer_info(), _LIMITS_WITHIN_S)
                self._known.limits = reply.limits

    async def wait_for_end(self) -> None:
        """Waits until the streams of a closed client have noticed."""
        for stream in list(self._streams):
            await stream.wait_for_end()
