"""The client for asyncio: the same methods as `Client`, awaited."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self, Unpack

from tokend import _calls
from tokend._arguments import Ids, checked_flag
from tokend._awaiting import AwaitingTransport
from tokend._batches import Batch, cut_async_batches
from tokend._channel import Tls
from tokend._joined_calls import CallKinds
from tokend._joining import Joiner
from tokend._ready_ids import as_async
from tokend._requests import EncodeSettings
from tokend._settings import ClientSettings
from tokend._shared_sequence import SharedStreams
from tokend._time_limits import TimeLimits
from tokend.decoders import AsyncDecoder
from tokend.errors import TooLargeError
from tokend.options import DecodeOptions, EncodeOptions
from tokend.results import Counts, Decoded, Encoded, TokenInfo, TokenizerFile, TokenizerInfo

__all__ = ["AsyncClient", "AsyncDecoder"]


class AsyncClient:
    """Calls a tokend server from one event loop; arguments, results and errors are those of `Client`.

    It connects at its first call, in the event loop of that call. Close it, or use `async with`.

    Calls of `encode`, `count` and `decode` that run at the same time with the same options travel together, as one
    batch: many times as many get through. A call that comes while none is under way is sent at once, and none waits
    for a timer. Results, errors and time limits are those of single calls, and cancelling one leaves the others.
    Decoders share their streams in the same way. See docs/client.md.

    Args:
        join_calls: False: each call and each decoder travels alone.
        target, connections, timeout_s, expected_fingerprint, token, tls, wait_for_ready, channel_options: See
            `Client`.

    >>> AsyncClient("127.0.0.1:50051")
    AsyncClient('127.0.0.1:50051')
    """

    def __init__(
        self,
        target: str | Sequence[str] = "127.0.0.1:50051",
        *,
        connections: int = 1,
        timeout_s: float = 30.0,
        expected_fingerprint: str | None = None,
        token: str | None = None,
        tls: Tls | bool | None = None,
        allow_plaintext_token: bool = False,
        wait_for_ready: bool = False,
        join_calls: bool = True,
        channel_options: Sequence[tuple[str, int | str]] = (),
    ) -> None:
        self._settings = ClientSettings(
            target,
            connections=connections,
            timeout_s=timeout_s,
            expected_fingerprint=expected_fingerprint,
            token=token,
            tls=tls,
            allow_plaintext_token=allow_plaintext_token,
            wait_for_ready=wait_for_ready,
            channel_options=channel_options,
        )
        known = self._settings.known
        self._transport = AwaitingTransport(self._settings.connection, wait_for_ready=wait_for_ready)
        self._limits = TimeLimits()
        self._kinds = CallKinds(self._settings.fingerprint, known)
        self._joiner = Joiner(
            self._transport,
            known,
            self._limits,
            connections=connections,
            joins=checked_flag(join_calls, "join_calls"),
        )
        self._streams = SharedStreams(
            self._transport, known, self._limits, connections=connections, shared=join_calls
        )

    async def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[EncodeOptions],
    ) -> Encoded:
        """Turns one text, or one pair of texts, into ids; see `Client.encode`."""
        timeout = self._settings.timeout(timeout_s)
        return await self._joiner.run(self._kinds.encode(text, pair, options), timeout)

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
    ) -> AsyncGenerator[Encoded, None]:
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
    ) -> AsyncGenerator[Encoded, None]:
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
        timeout = self._settings.timeout(timeout_s)
        all_texts = [texts] if isinstance(texts, str) else _calls.checked_list(texts)
        joinable = None if stop_after else self._kinds.count(all_texts, options)
        if joinable is not None:
            return await self._joiner.run(joinable, timeout)
        program = _calls.count(
            all_texts, stop_after, options, self._settings.fingerprint, self._settings.known
        )
        return await self._transport.run(program, timeout)

    async def decode(
        self, ids: Ids, *, timeout_s: float | None = None, **options: Unpack[DecodeOptions]
    ) -> Decoded:
        """Turns ids into text; see `Client.decode`."""
        timeout = self._settings.timeout(timeout_s)
        return await self._joiner.run(self._kinds.decode(ids, options), timeout)

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
    ) -> AsyncGenerator[str, None]:
        """Turns ids into text as they come; see `Client.decode_stream`.

        The ids may come from a plain iterable or an async one. An async one is drawn from in a task of its own, up
        to 1,024 items ahead: what has come while a message was on its way goes into the next one, together.
        """
        decoder = self.decoder(prompt_ids=prompt_ids, stop=stop, timeout_s=timeout_s, **options)
        return decoder.pieces(ids)

    def decoder(
        self,
        *,
        prompt_ids: Ids = (),
        stop: Iterable[str] = (),
        timeout_s: float | None = None,
        **options: Unpack[DecodeOptions],
    ) -> AsyncDecoder:
        """Opens a session that takes ids and gives their text; the arguments are those of `decode_stream`."""
        return AsyncDecoder(
            self._streams,
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
        self._joiner.close()
        self._limits.close()
        await self._transport.close()
        await self._streams.wait_for_end()

    async def _learn_limits(self, timeout: float | None) -> None:  # noqa: ASYNC109 (gRPC keeps it)
        self._settings.known.limits = (await self._transport.run(_calls.tokenizer_info(), timeout)).limits

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self._settings.connection.target.shown!r})"
