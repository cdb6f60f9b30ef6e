"""Awaiting transport: runs programs and streams on grpc.aio channels, for `AsyncClient`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from itertools import count, islice
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from tokend import errors
from tokend._batches import Batch
from tokend._calls import Program
from tokend._channel import ConnectionSettings
from tokend._encode_window import EncodeWindow
from tokend._status import error_of_call
from tokend._trace import trace_metadata
from tokend.results import Encoded
from tokend.v1 import tokenizer_service_pb2 as service_pb2
from tokend.v1 import tokenizer_service_pb2_grpc

__all__ = ["CLOSED", "AwaitingCall", "AwaitingStream", "AwaitingTransport"]

# What grpc.aio makes of the status when a call ends while a message is being written: the true one is lost. The
# usual cause is a server that goes away.
_LOST_STATUS = "Internal error from Core"
CLOSED = "the client was closed during the call"

Result = TypeVar("Result")
Answer = TypeVar("Answer")


class AwaitingCall(Generic[Answer]):
    """One bidirectional call: an async iterator gives the messages, answers are awaited."""

    def __init__(self, method: Any, messages: AsyncIterator[Message], **call: Any) -> None:  # noqa: ANN401 (any stream method)
        self._call = method(messages, **call)
        self._answers: AsyncIterator[Answer] = aiter(self._call)

    async def receive(self) -> Answer | None:
        """Awaits the next answer; None at the end of the call.

        Raises:
            TokendError: The call failed.
        """
        try:
            return await anext(self._answers, None)
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
        except grpc.aio.AioRpcError as error:
            if error.details() == _LOST_STATUS:
                raise errors.UnavailableError("the stream broke while a message was on its way") from error
            raise error_of_call(error) from error
        raise errors.CallCancelledError(CLOSED)

    def close(self) -> None:
        """Ends the call, at once if it is not over; may be repeated."""
        self._call.cancel()


class AwaitingStream(AwaitingCall[Answer]):
    """One bidirectional call: messages go in at any time, answers are awaited, each up to a time limit."""

    def __init__(self, method: Any, **call: Any) -> None:  # noqa: ANN401 (any stream method)
        # A queue rather than call.write(): a write waits for the server to read, and a server that waits for us
        # to read its answers would wait for ever.
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        super().__init__(method, self._outgoing(), **call)

    async def _outgoing(self) -> AsyncIterator[Message]:
        while (message := await self._messages.get()) is not None:
            yield message

    def send(self, message: Message) -> None:
        """Hands a message over; it leaves as flow control allows."""
        self._messages.put_nowait(message)

    def half_close(self) -> None:
        """Says that no message follows."""
        self._messages.put_nowait(None)

    async def receive_within(self, timeout_s: float | None) -> Answer | None:
        """Awaits the next answer; None at the end of the call.

        Raises:
            DeadlineExceededError: It did not come in time; the call is cancelled.
            TokendError: The call failed.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self.receive()
        except TimeoutError as error:
            self.close()
            raise errors.DeadlineExceededError(f"no answer within {timeout_s:g} s") from error

    async def wait_for_end(self, timeout_s: float | None) -> None:
        """Lets the call end by itself after its last answer; how it ends is then nobody's trouble any more."""
        try:
            await self.receive_within(timeout_s)
        except errors.TokendError:
            return

    def close(self) -> None:
        """Ends the call, at once if it is not over; may be repeated."""
        super().close()
        self._messages.put_nowait(None)


class AwaitingTransport:
    """The channels of one client, opened at the first call in its event loop, and what runs on them."""

    def __init__(self, connection: ConnectionSettings, *, wait_for_ready: bool) -> None:
        self._connection = connection
        self._metadata = connection.metadata()
        self._wait_for_ready = wait_for_ready or None
        self._channels: list[grpc.aio.Channel] = []
        self._stubs: list[tokenizer_service_pb2_grpc.TokenizerServiceAsyncStub] = []
        self._turns = count()
        self._closed = False

    def _call_options(self) -> dict[str, Any]:
        """What each call gets besides its message and time limit."""
        return {"metadata": self._metadata + trace_metadata(), "wait_for_ready": self._wait_for_ready}

    async def run(self, program: Program[Result], timeout_s: float | None) -> Result:
        """Runs a program: each of its requests has the time limit for itself."""
        try:
            request = next(program)
            while True:
                method = getattr(self._stub(), request.method)
                try:
                    reply = await method(request.message, timeout=timeout_s, **self._call_options())
                except asyncio.CancelledError as error:
                    if _cancelled_from_outside():
                        raise
                    raise errors.CallCancelledError(CLOSED) from error
                except grpc.RpcError as error:
                    failure = error_of_call(error)
                    failure.__cause__ = error
                    request = program.throw(failure)
                else:
                    request = program.send(reply)
        except StopIteration as done:
            result: Result = done.value
            return result

    def open_stream(self, method: str) -> AwaitingStream[Any]:
        """Opens a bidirectional call."""
        return AwaitingStream(getattr(self._stub(), method), **self._call_options())

    def open_call(self, method: str, messages: AsyncIterator[Message], connection: int) -> AwaitingCall[Any]:
        """Opens a bidirectional call on one of the connections, which are counted from 0."""
        return AwaitingCall(getattr(self._stub(connection), method), messages, **self._call_options())

    async def read_all(self, method: str, request: Message, timeout_s: float | None) -> list[Any]:
        """Reads a server stream to its end."""
        try:
            call = getattr(self._stub(), method)(request, timeout=timeout_s, **self._call_options())
            return [reply async for reply in call]
        except grpc.RpcError as error:
            raise error_of_call(error) from error

    async def encode_batches(
        self, batches: AsyncIterator[Batch], window: EncodeWindow, timeout_s: float | None
    ) -> AsyncGenerator[Encoded, None]:
        """Sends batches ahead of their answers and yields the encodings in order.

        Batches are drawn only while the window has room. An exception of the iterator is raised as it is, after the
        answers to the batches before it.
        """
        feed = _Feed(self, batches, window)
        try:
            await feed.top_up()
            while window.unanswered:
                answer = await feed.receive(timeout_s)
                for encoded in window.take(answer):
                    yield encoded
                await feed.top_up()
            if feed.stream is not None:
                feed.stream.half_close()
                await feed.stream.wait_for_end(timeout_s)
        finally:
            if feed.stream is not None:
                feed.stream.close()
        if feed.failure is not None:
            raise feed.failure

    async def close(self) -> None:
        """Closes the channels; calls in flight are cancelled."""
        self._closed = True
        channels, self._channels, self._stubs = self._channels, [], []
        for channel in channels:
            await channel.close()

    def _stub(self, connection: int | None = None) -> "tokenizer_service_pb2_grpc.TokenizerServiceAsyncStub":
        if self._closed:
            raise RuntimeError("the client is closed")
        if not self._stubs:
            self._channels = [
                self._connection.open_aio_channel() for _ in range(self._connection.connections)
            ]
            self._stubs = [tokenizer_service_pb2_grpc.TokenizerServiceStub(one) for one in self._channels]
        return self._stubs[next(self._turns) % len(self._stubs) if connection is None else connection]


class _Feed:
    """Keeps the window of one encode stream full, and the stream alive."""

    def __init__(
        self, transport: AwaitingTransport, batches: AsyncIterator[Batch], window: EncodeWindow
    ) -> None:
        self._transport = transport
        self._batches = batches
        self._window = window
        self._has_more = True
        self._resuming = False
        self.stream: AwaitingStream[service_pb2.StreamEncodeResponse] | None = None
        self.failure: Exception | None = None

    async def top_up(self) -> None:
        """Draws and sends batches while the window has room; keeps an exception of the iterator for the end."""
        while self._has_more and not self._window.is_full:
            try:
                batch = await anext(self._batches, None)
            except Exception as error:  # noqa: BLE001 (the caller's own, whatever it is)
                self.failure, batch = error, None
            if batch is None:
                self._has_more = False
                return
            self._window.unanswered.append(batch)
            if self.stream is None:
                self.stream = self._transport.open_stream("StreamEncode")
            if not self._resuming:
                self.stream.send(self._window.request(batch))

    async def receive(self, timeout_s: float | None) -> service_pb2.StreamEncodeResponse:
        """Waits for the next answer, on a new call if the old one broke.

        A new call gets the oldest batch alone, and the others once that one is answered: a server that just came
        back is not flooded, and one that refuses the call is heard.
        """
        while True:
            if self.stream is None:
                self.stream = self._transport.open_stream("StreamEncode")
                self._resuming = True
                self.stream.send(self._window.request(self._window.unanswered[0]))
            try:
                answer = await self.stream.receive_within(timeout_s)
            except errors.UnavailableError as error:
                self.stream.close()
                self.stream = None
                await asyncio.sleep(self._window.pause_s(error))
                continue
            if answer is None:
                raise errors.InternalError("the server ended the stream before it had answered every batch")
            if self._resuming:
                self._resuming = False
                for batch in islice(self._window.unanswered, 1, None):
                    self.stream.send(self._window.request(batch))
            return answer


def _cancelled_from_outside() -> bool:
    # gRPC raises CancelledError for a call that close() ended, too; only a task that someone cancels may see it.
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
