"""One StreamDecode that several sequences share: what they push while a message is under way goes together."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from tokend import errors
from tokend._awaiting import CLOSED, AwaitingTransport
from tokend._decode_sequence import ENDED_TOO_SOON
from tokend._flights import Flights
from tokend._known_limits import KnownLimits
from tokend.v1 import tokenizer_service_pb2 as service_pb2
from tokend.v1 import types_pb2

__all__ = ["Input", "SharedStream"]

_IN_FLIGHT = 2
_LEAST_SHARE = 64
_MESSAGE_INPUTS = 512
# Together, unless one sequence alone has more; the server limits the ids of a message (`Limits.max_ids`).
_MESSAGE_IDS = 1 << 16


class Input:
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


class Passenger(Protocol):
    """What a stream knows of a sequence on it."""

    def take(self, output: types_pb2.SequenceOutput) -> None:
        """An answer to this sequence has come, or the end that nobody asked for."""

    def fail(self, error: errors.TokendError) -> None:
        """The stream is gone."""


class SharedStream:
    """One StreamDecode and the sequences on it, each under a number of its own."""

    def __init__(
        self,
        transport: AwaitingTransport,
        connection: int,
        known: KnownLimits,
        on_end: Callable[["SharedStream"], None],
    ) -> None:
        self._known = known
        self._on_end = on_end
        self._sequences: dict[int, Passenger] = {}
        self._next_number = 0
        self._inputs: deque[Input] = deque()
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
        """How many sequences are on it."""
        return len(self._sequences)

    def takes_more(self, most_sequences: int) -> bool:
        """Whether a sequence may join that opens now."""
        return not (self.is_full or self.is_closing) and len(self._sequences) < most_sequences

    def is_alone(self, number: int) -> bool:
        """Whether a sequence is the only one on it."""
        return len(self._sequences) == 1 and number in self._sequences

    def join(self, sequence: Passenger) -> int:
        """Takes a sequence on, and gives its number."""
        number = self._next_number
        self._next_number += 1
        self._sequences[number] = sequence
        return number

    def remove(self, number: int, *, ended: bool, forgotten: bool) -> None:
        """Lets a sequence go; the last one takes the stream along.

        Args:
            number: Its number.
            ended: It ended, so that the stream may end in peace.
            forgotten: The server knows nothing of it any more.
        """
        del self._sequences[number]
        if self._sequences:
            if not forgotten:
                self.add(Input(number, b"", first=None, end=True))
        elif ended:
            self.half_close()
        else:
            self.is_closing = True
            self._call.close()

    def add(self, given: Input) -> None:
        """Takes what goes into the next message."""
        self._inputs.append(given)
        if self._flights.next_size(len(self._inputs)):
            self._wake()

    def half_close(self) -> None:
        """Ends the stream once all is sent; the server ends what is open."""
        self.is_closing = True
        self._wake()

    async def wait_for_end(self, timeout_s: float | None = None) -> None:
        """Waits until the call is over; cancels it where it does not end in time."""
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
        most_ids = self._known.ids(_MESSAGE_IDS)
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
        self._on_end(self)
        self.is_closing = True
        self._call.close()
        self._inputs.clear()
        self._wake()
        sequences, self._sequences = self._sequences, {}
        for sequence in sequences.values():
            sequence.fail(error)
