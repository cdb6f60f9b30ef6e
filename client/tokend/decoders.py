"""One streamed sequence as a session: ids in, text out, blocking or awaited."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Generator, Iterable
from types import TracebackType
from typing import Self, TypeVar

from tokend._arguments import Ids, id_chunks, packed_item
from tokend._blocking import BlockingStream, BlockingTransport
from tokend._decode_sequence import DecodeSequence
from tokend._ready_ids import ReadyIds, as_async
from tokend._shared_sequence import SharedSequence, SharedStreams
from tokend.errors import CallCancelledError, TokendError
from tokend.options import DecodeOptions
from tokend.v1 import tokenizer_service_pb2 as service_pb2
from tokend.v1 import types_pb2

__all__ = ["AsyncDecoder", "Decoder"]

Answer = TypeVar("Answer")


class Decoder(DecodeSequence):
    """One streamed sequence: ids in, text out. Made by `Client.decoder`; for one thread at a time.

    The call opens with the first ids. Leaving the context without `finish` ends it at once.
    """

    __slots__ = ("_stream", "_timeout_s", "_transport")

    def __init__(
        self,
        transport: BlockingTransport,
        *,
        timeout_s: float | None,
        prompt_ids: Ids,
        stop: Iterable[str],
        keywords: DecodeOptions,
        fingerprint: str | None,
    ) -> None:
        super().__init__(prompt_ids=prompt_ids, stop=stop, keywords=keywords, fingerprint=fingerprint)
        self._transport = transport
        self._timeout_s = timeout_s
        self._stream: BlockingStream[service_pb2.StreamDecodeResponse] | None = None

    def push(self, ids: int | Ids) -> str:
        """Sends an id, or a list of ids, and returns the text that they complete; often the empty text.

        After a stop string nothing is sent and the empty text returned.

        Raises:
            TypeError, ValueError: A bad id, with its place, or a decoder that is finished; nothing was sent.
            TokendError: The sequence or its stream failed; `text_before_error` is text that came with it.
        """
        return self._push(packed_item(ids, 0))

    def finish(self) -> str:
        """Ends the sequence and returns the text that was held back; the empty text if there is none."""
        if self._finished:
            return ""
        is_open, text = self._takes_ids(), ""
        if self._stream is not None:
            self._half_closed = True
            self._stream.half_close()
            if is_open:
                text = self._receive(self._stream)
            self._stream.wait_for_end(self._timeout_s)
        self.close()
        return text

    def close(self) -> None:
        """Ends the call at once, without the text that is held back; may be repeated."""
        self._finished = True
        if self._stream is not None:
            self._stream.close()

    def _push(self, packed: bytes) -> str:
        if not self._takes_ids():
            return ""
        if self._stream is None:
            self._stream = self._transport.open_stream("StreamDecode")
        self._stream.send(self._request(packed))
        return self._receive(self._stream)

    def _receive(self, stream: BlockingStream[service_pb2.StreamDecodeResponse]) -> str:
        try:
            return self._take(stream.receive(self._timeout_s))
        except TokendError as error:
            self._fail(error)
            raise

    def pieces(self, ids: Iterable[int] | Iterable[Ids]) -> Generator[str, None, None]:
        """Goes through an iterable of ids to its end and yields their text; see `Client.decode_stream`."""
        with self:
            for packed in id_chunks(ids):
                try:
                    text = self._push(packed)
                except TokendError as error:
                    if error.text_before_error:
                        yield error.text_before_error
                    raise
                if text:
                    yield text
                if self.ended:
                    break
            text = self.finish()
            if text:
                yield text

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncDecoder(DecodeSequence):
    """One streamed sequence: ids in, text out. Made by `AsyncClient.decoder`; for one task at a time.

    The decoders of a client share their calls: what several push at a time travels together. The sequence opens with
    the first ids. Leaving the context without `finish` ends it at once, and so does cancelling a push: its text
    would be missing.
    """

    __slots__ = ("_sequence", "_timeout_s")

    def __init__(
        self,
        streams: SharedStreams,
        *,
        timeout_s: float | None,
        prompt_ids: Ids,
        stop: Iterable[str],
        keywords: DecodeOptions,
        fingerprint: str | None,
    ) -> None:
        super().__init__(prompt_ids=prompt_ids, stop=stop, keywords=keywords, fingerprint=fingerprint)
        self._sequence = SharedSequence(streams)
        self._timeout_s = timeout_s

    async def push(self, ids: int | Ids) -> str:
        """Sends an id, or a list of ids, and returns the text that they complete; see `Decoder.push`."""
        return await self._push(packed_item(ids, 0))

    async def finish(self) -> str:
        """Ends the sequence and returns the text that was held back; the empty text if there is none."""
        if self._finished:
            return ""
        is_open, text = self._takes_ids(), ""
        self._half_closed = True
        output = await self._answer(self._sequence.finish(self._timeout_s, is_open=is_open))
        if output is not None:
            text = self._text(output)
        await self.close()
        return text

    async def close(self) -> None:
        """Ends the sequence at once, without the text that is held back; may be repeated."""
        self._finished = True
        self._sequence.leave(ended=self.ended)

    async def _push(self, packed: bytes) -> str:
        if not self._takes_ids():
            return ""
        first = self._take_first()
        if first is None:
            return self._text(await self._answer(self._sequence.push(packed, self._timeout_s)))
        return self._text(await self._answer(self._sequence.open(first, packed, self._timeout_s)))

    async def _answer(self, answer: Awaitable[Answer]) -> Answer:
        try:
            return await answer
        except TokendError as error:
            self._give_up(error)
            raise
        except asyncio.CancelledError:
            self._give_up(
                CallCancelledError("a push was cancelled, and its text is missing; open a new decoder")
            )
            raise

    def _text(self, output: types_pb2.SequenceOutput) -> str:
        self.fingerprint = self._sequence.fingerprint or self.fingerprint
        try:
            return self._take_output(output)
        except TokendError as error:
            self._give_up(error)
            raise

    def _give_up(self, error: TokendError) -> None:
        self._fail(error)
        self._sequence.leave(ended=self.ended)

    async def pieces(
        self, ids: Iterable[int] | Iterable[Ids] | AsyncIterable[int] | AsyncIterable[Ids]
    ) -> AsyncGenerator[str, None]:
        """Goes through an iterable of ids to its end and yields their text; see `AsyncClient.decode_stream`."""
        ready = ReadyIds(ids) if isinstance(ids, AsyncIterable) else None
        try:
            async for packed in as_async(id_chunks(ids)) if ready is None else ready:
                try:
                    text = await self._push(packed)
                except TokendError as error:
                    if error.text_before_error:
                        yield error.text_before_error
                    raise
                if text:
                    yield text
                if self.ended:
                    break
            text = await self.finish()
            if text:
                yield text
        finally:
            await self.close()
            if ready is not None:
                await ready.close()

    def __del__(self) -> None:
        # A decoder that was dropped in the middle: its client lives on, and the server should forget the sequence.
        # A constructor that raised leaves no sequence.
        sequence: SharedSequence | None = getattr(self, "_sequence", None)
        if sequence is not None:
            sequence.abandon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
