"""Blocking transport: runs programs and streams on grpc channels, for `Client`."""

import queue
import threading
import time
from collections.abc import Iterator
from itertools import count, islice
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from tokend import errors
from tokend._answer_watch import AnswerWatch
from tokend._batches import Batch
from tokend._calls import Program
from tokend._channel import ConnectionSettings
from tokend._encode_window import EncodeWindow
from tokend._status import error_of_call
from tokend._trace import trace_metadata
from tokend.results import Encoded
from tokend.v1 import tokenizer_service_pb2 as service_pb2
from tokend.v1 import tokenizer_service_pb2_grpc

__all__ = ["BlockingStream", "BlockingTransport"]

Result = TypeVar("Result")
Answer = TypeVar("Answer")


class BlockingStream(Generic[Answer]):
    """One bidirectional call: messages go in at any time, answers are waited for."""

    def __init__(
        self,
        method: Any,  # noqa: ANN401 (any stream method)
        *,
        watch: AnswerWatch,
        client_closed: threading.Event,
        **call: Any,  # noqa: ANN401 (what gRPC takes)
    ) -> None:
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._watch = watch
        self._client_closed = client_closed
        self._expired = False
        self._closed = False
        # gRPC pulls the messages in a thread of its own; the caller's iterators never run there, so that their
        # exceptions stay theirs.
        self._call = method(iter(self._messages.get, None), **call)

    def send(self, message: Message) -> None:
        """Hands a message over; it leaves as flow control allows."""
        self._messages.put(message)

    def half_close(self) -> None:
        """Says that no message follows."""
        self._messages.put(None)

    def receive(self, timeout_s: float | None) -> Answer | None:
        """Waits for the next answer; None at the end of the call.

        Raises:
            DeadlineExceededError: It did not come in time; the call is cancelled.
            TokendError: The call failed.
        """
        wait = None if timeout_s is None else self._watch.begin(timeout_s, self._expire)
        try:
            answer: Answer | None = next(self._call, None)
        except grpc.RpcError as error:
            if self._expired:
                raise errors.DeadlineExceededError(f"no answer within {timeout_s:g} s") from error
            ended_here = self._closed or self._client_closed.is_set()
            raise error_of_call(error, ended_here=ended_here) from error
        finally:
            if wait is not None:
                self._watch.end(wait)
        return answer

    def wait_for_end(self, timeout_s: float | None) -> None:
        """Lets the call end by itself after its last answer; how it ends is then nobody's trouble any more."""
        try:
            self.receive(timeout_s)
        except errors.TokendError:
            return

    def close(self) -> None:
        """Ends the call, at once if it is not over; may be repeated."""
        self._closed = True
        self._call.cancel()
        self._messages.put(None)

    def _expire(self) -> None:
        self._expired = True
        self._call.cancel()


class BlockingTransport:
    """The channels of one client, opened at the first call, and what runs on them."""

    def __init__(self, connection: ConnectionSettings, *, wait_for_ready: bool) -> None:
        self._connection = connection
        self._metadata = connection.metadata()
        # None leaves it to the channel; gRPC takes False for an explicit wish.
        self._wait_for_ready = wait_for_ready or None
        self._lock = threading.Lock()
        self._channels: list[grpc.Channel] = []
        self._stubs: list[tokenizer_service_pb2_grpc.TokenizerServiceStub] = []
        self._turns = count()
        self._watch = AnswerWatch()
        self._closed = threading.Event()

    def _call_options(self) -> dict[str, Any]:
        """What each call gets besides its message and time limit."""
        return {"metadata": self._metadata + trace_metadata(), "wait_for_ready": self._wait_for_ready}

    def run(self, program: Program[Result], timeout_s: float | None) -> Result:
        """Runs a program: each of its requests has the time limit for itself."""
        try:
            request = next(program)
            while True:
                method = getattr(self._stub(), request.method)
                try:
                    reply = method(request.message, timeout=timeout_s, **self._call_options())
                except grpc.RpcError as error:
                    failure = error_of_call(error, ended_here=self._closed.is_set())
                    failure.__cause__ = error
                    request = program.throw(failure)
                else:
                    request = program.send(reply)
        except StopIteration as done:
            result: Result = done.value
            return result

    def open_stream(self, method: str) -> BlockingStream[Any]:
        """Opens a bidirectional call."""
        return BlockingStream(
            getattr(self._stub(), method),
            watch=self._watch,
            client_closed=self._closed,
            **self._call_options(),
        )

    def read_all(self, method: str, request: Message, timeout_s: float | None) -> list[Any]:
        """Reads a server stream to its end."""
        try:
            return list(getattr(self._stub(), method)(request, timeout=timeout_s, **self._call_options()))
        except grpc.RpcError as error:
            raise error_of_call(error, ended_here=self._closed.is_set()) from error

    def encode_batches(
        self, batches: Iterator[Batch], window: EncodeWindow, timeout_s: float | None
    ) -> Iterator[Encoded]:
        """Sends batches ahead of their answers and yields the encodings in order.

        Batches are drawn in the caller's thread, and only while the window has room. An exception of the iterator
        is raised as it is, after the answers to the batches before it.
        """
        feed = _Feed(self, batches, window)
        try:
            feed.top_up()
            while window.unanswered:
                answer = feed.receive(timeout_s)
                yield from window.take(answer)
                feed.top_up()
            if feed.stream is not None:
                feed.stream.half_close()
                feed.stream.wait_for_end(timeout_s)
        finally:
            if feed.stream is not None:
                feed.stream.close()
        if feed.failure is not None:
            raise feed.failure

    def close(self) -> None:
        """Closes the channels; calls in flight are cancelled."""
        with self._lock:
            self._closed.set()
            channels, self._channels, self._stubs = self._channels, [], []
        for channel in channels:
            channel.close()

    def _stub(self) -> tokenizer_service_pb2_grpc.TokenizerServiceStub:
        stubs = self._stubs
        if not stubs:
            stubs = self._open()
        return stubs[next(self._turns) % len(stubs)]

    def _open(self) -> list[tokenizer_service_pb2_grpc.TokenizerServiceStub]:
        with self._lock:
            if self._closed.is_set():
                raise RuntimeError("the client is closed")
            if not self._stubs:
                self._channels = [
                    self._connection.open_channel() for _ in range(self._connection.connections)
                ]
                self._stubs = [tokenizer_service_pb2_grpc.TokenizerServiceStub(one) for one in self._channels]
            return self._stubs


class _Feed:
    """Keeps the window of one encode stream full, and the stream alive."""

    def __init__(self, transport: BlockingTransport, batches: Iterator[Batch], window: EncodeWindow) -> None:
        self._transport = transport
        self._batches = batches
        self._window = window
        self._has_more = True
        self._resuming = False
        self.stream: BlockingStream[service_pb2.StreamEncodeResponse] | None = None
        self.failure: Exception | None = None

    def top_up(self) -> None:
        """Draws and sends batches while the window has room; keeps an exception of the iterator for the end."""
        while self._has_more and not self._window.is_full:
            try:
                batch = next(self._batches, None)
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

    def receive(self, timeout_s: float | None) -> service_pb2.StreamEncodeResponse:
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
                answer = self.stream.receive(timeout_s)
            except errors.UnavailableError as error:
                self.stream.close()
                self.stream = None
                time.sleep(self._window.pause_s(error))
                continue
            if answer is None:
                raise errors.InternalError("the server ended the stream before it had answered every batch")
            if self._resuming:
                self._resuming = False
                for batch in islice(self._window.unanswered, 1, None):
                    self.stream.send(self._window.request(batch))
            return answer
