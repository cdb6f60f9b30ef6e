"""The client for asyncio: the same methods as `Client`, awaited."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self, Unpack

from tokend import _calls
from tokend._arguments import Ids, id_chunks, packed_item
from tokend._awaiting import AwaitingStream, AwaitingTransport, ReadyIds, as_async
from tokend._batches import Batch, cut_async_batches
from tokend._channel import Tls
from tokend._decode_sequence import DecodeSequence
from tokend._requests import EncodeSettings
from tokend._settings import ClientSettings
from tokend.errors import TokendError, TooLargeError
from tokend.options import DecodeOptions, EncodeOptions
from tokend.results import Counts, Decoded, Encoded, TokenInfo, TokenizerFile, TokenizerInfo
from tokend.v1 import tokenizer_service_pb2 as service_pb2

__all__ = ["AsyncClient", "AsyncDecoder"]


class AsyncClient:
    """Calls a tokend server from one event loop; arguments, results and errors are those of `Client`.

    It connects at its first call, in the event loop of that call. Close it, or use `async with`.

    >>> AsyncClient("127.0.0.1:50051")
    AsyncClient('127.0.0.1:50051')
    """

    def __init__(
        self,
        target: str = "127.0.0.1:50051",
        *,
        connections: int = 1,
        timeout_s: float = 30.0,
        expected_fingerprint: str | None = None,
        token: str | None = None,
        tls: Tls | bool | None = None,
        wait_for_ready: bool = False,
        channel_options: Sequence[tuple[str, int | str]] = (),
    ) -> None:
        self._settings = ClientSettings(
            target,
            connections=connections,
            timeout_s=timeout_s,
            expected_fingerprint=expected_fingerprint,
            token=token,
            tls=tls,
            wait_for_ready=wait_for_ready,
            channel_options=channel_options,
        )
        self._transport = AwaitingTransport(self._settings.connection, wait_for_ready=wait_for_ready)

    async def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[EncodeOptions],
    ) -> Encoded:
        """Turns one text, or one pair of texts, into ids; see `Client.encode`."""
        program = _calls.encode(text, pair, options, self._settings.fingerprint)
        return await self._transport.run(program, self._settings.timeout(timeout_s))

    async def encode_batch(
        self,
        texts: Iterable[str],
        pairs: Iterable[str] | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[EncodeOptions],
    ) -> list[Encoded]:
        """Turns many texts, or pairs, into ids, all or nothing; see `Client.encode_batch`."""
        timeout = self._settings.timeout(timeout_s)
        encoding = self._settings.encoding(options, pairs=pairs is not None)
        all_texts = _calls.checked_list(texts)
        seconds = _calls.checked_pairs(pairs, len(all_texts))
        batches = _calls.cut(all_texts, seconds, self._settings.known)
        if len(batches) == 1:
            try:
                return await self._transport.run(_calls.encode_batch(batches[0], encoding), timeout)
            except TooLargeError as error:
                if not _calls.may_be_cut(error, len(batches[0]), self._settings.known):
                    raise
        if self._settings.known.limits is None:
            await self._learn_limits(timeout)
            batches = _calls.cut(all_texts, seconds, self._settings.known)
        window = self._settings.window(encoding)
        return [
            encoded async for encoded in self._transport.encode_batches(as_async(batches), window, timeout)
        ]

    def encode_stream(
        self,
        texts: Iterable[str] | AsyncIterable[str],
        *,
        batch_texts: int = 256,
        batch_bytes: int = 1 << 20,
        in_flight: int = 8,
        timeout_s: float | None = None,
        **options: Unpack[EncodeOptions],
    ) -> AsyncIterator[Encoded]:
        """Turns any amount of text into ids: one `Encoded` a text, in order; see `Client.encode_stream`.

        The texts may come from a plain iterable or an async one.
        """
        timeout = self._settings.timeout(timeout_s)
        encoding = self._settings.encoding(options)
        self._settings.check_stream(texts, batch_texts, batch_bytes, in_flight)
        return self._encode_stream(texts, encoding, (batch_texts, batch_bytes, in_flight), timeout)

    async def _encode_stream(
        self,
        texts: Iterable[str] | AsyncIterable[str],
        encoding: EncodeSettings,
        sizes: tuple[int, int, int],
        timeout: float | None,  # noqa: ASYNC109 (of each answer, not of the whole)
    ) -> AsyncIterator[Encoded]:
        if self._settings.known.limits is None:
            await self._learn_limits(timeout)
        batch_texts, batch_bytes, in_flight = sizes
        cutter = self._settings.cutter(batch_texts, batch_bytes)
        batches: AsyncIterator[Batch] = cut_async_batches(as_async(texts), cutter)
        window = self._settings.window(encoding, in_flight)
        # Closed with this generator and not whenever it is collected: the call ends at once.
        async with aclosing(self._transport.encode_batches(batches, window, timeout)) as encodings:
            async for encoded in encodings:
                yield encoded

    async def count(
        self,
        texts: str | Iterable[str],
        *,
        stop_after: int = 0,
        timeout_s: float | None = None,
        **options: Unpack[EncodeOptions],
    ) -> Counts:
        """Counts ids without fetching them; see `Client.count`."""
        program = _calls.count(texts, stop_after, options, self._settings.fingerprint, self._settings.known)
        return await self._transport.run(program, self._settings.timeout(timeout_s))

    async def decode(
        self, ids: Ids, *, timeout_s: float | None = None, **options: Unpack[DecodeOptions]
    ) -> Decoded:
        """Turns ids into text; see `Client.decode`."""
        program = _calls.decode(ids, options, self._settings.fingerprint)
        return await self._transport.run(program, self._settings.timeout(timeout_s))

    async def decode_batch(
        self, sequences: Iterable[Ids], *, timeout_s: float | None = None, **options: Unpack[DecodeOptions]
    ) -> list[Decoded]:
        """Turns many id lists into texts, all or nothing; see `Client.decode_batch`."""
        program = _calls.decode_batch(sequences, options, self._settings.fingerprint, self._settings.known)
        return await self._transport.run(program, self._settings.timeout(timeout_s))

    def decode_stream(
        self,
        ids: Iterable[int] | Iterable[Ids] | AsyncIterable[int] | AsyncIterable[Ids],
        *,
        prompt_ids: Ids = (),
        stop: Iterable[str] = (),
        timeout_s: float | None = None,
        **options: Unpack[DecodeOptions],
    ) -> AsyncIterator[str]:
        """Turns ids into text as they come; see `Client.decode_stream`.

        The ids may come from a plain iterable or an async one. An async one is drawn from in a task of its own, up
        to 1,024 items ahead: what has come while a message was on its way goes into the next one, together.
        """
        decoder = self.decoder(prompt_ids=prompt_ids, stop=stop, timeout_s=timeout_s, **options)
        return decoder._pieces(ids)  # noqa: SLF001 (one module)

    def decoder(
        self,
        *,
        prompt_ids: Ids = (),
        stop: Iterable[str] = (),
        timeout_s: float | None = None,
        **options: Unpack[DecodeOptions],
    ) -> "AsyncDecoder":
        """Opens a session that takes ids and gives their text; the arguments are those of `decode_stream`."""
        return AsyncDecoder(
            self._transport,
            timeout_s=self._settings.timeout(timeout_s),
            prompt_ids=prompt_ids,
            stop=stop,
            keywords=options,
            fingerprint=self._settings.fingerprint,
        )

    async def tokenizer_info(self, *, timeout_s: float | None = None) -> TokenizerInfo:
        """Describes what is served; see `Client.tokenizer_info`."""
        return await self._transport.run(_calls.tokenizer_info(), self._settings.timeout(timeout_s))

    async def lookup(
        self, ids: Ids = (), tokens: Iterable[str] = (), *, timeout_s: float | None = None
    ) -> list[TokenInfo]:
        """Describes tokens by id or by string; see `Client.lookup`."""
        program = _calls.lookup(ids, tokens, self._settings.fingerprint)
        return await self._transport.run(program, self._settings.timeout(timeout_s))

    async def download(self, *, timeout_s: float | None = None) -> TokenizerFile:
        """Fetches the tokenizer file itself, and checks it against its sha256."""
        request = _calls.download_request(self._settings.fingerprint)
        timeout = self._settings.timeout(timeout_s)
        return _calls.downloaded(await self._transport.read_all("DownloadTokenizer", request, timeout))

    async def close(self) -> None:
        """Closes the connections; calls in flight end with CallCancelledError, later ones with RuntimeError."""
        await self._transport.close()

    async def _learn_limits(self, timeout: float | None) -> None:  # noqa: ASYNC109 (gRPC keeps it)
        self._settings.known.limits = (await self._transport.run(_calls.tokenizer_info(), timeout)).limits

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self._settings.connection.target!r})"


class AsyncDecoder(DecodeSequence):
    """One streamed sequence: ids in, text out. Made by `AsyncClient.decoder`; for one task at a time.

    The call opens with the first ids. Leaving the context without `finish` ends it at once.
    """

    def __init__(
        self,
        transport: AwaitingTransport,
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
        self._stream: AwaitingStream[service_pb2.StreamDecodeResponse] | None = None

    async def push(self, ids: int | Ids) -> str:
        """Sends an id, or a list of ids, and returns the text that they complete; see `Decoder.push`."""
        return await self._push(packed_item(ids, 0))

    async def finish(self) -> str:
        """Ends the sequence and returns the text that was held back; the empty text if there is none."""
        if self._finished:
            return ""
        is_open, text = self._takes_ids(), ""
        if self._stream is not None:
            self._half_closed = True
            self._stream.half_close()
            if is_open:
                text = await self._receive(self._stream)
            await self._stream.wait_for_end(self._timeout_s)
        await self.close()
        return text

    async def close(self) -> None:
        """Ends the call at once, without the text that is held back; may be repeated."""
        self._finished = True
        if self._stream is not None:
            self._stream.close()

    async def _push(self, packed: bytes) -> str:
        if not self._takes_ids():
            return ""
        if self._stream is None:
            self._stream = self._transport.open_stream("StreamDecode")
        self._stream.send(self._request(packed))
        return await self._receive(self._stream)

    async def _receive(self, stream: AwaitingStream[service_pb2.StreamDecodeResponse]) -> str:
        try:
            return self._take(await stream.receive(self._timeout_s))
        except TokendError as error:
            self._fail(error)
            raise

    async def _pieces(
        self, ids: Iterable[int] | Iterable[Ids] | AsyncIterable[int] | AsyncIterable[Ids]
    ) -> AsyncIterator[str]:
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
