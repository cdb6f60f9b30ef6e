"""The client for threads: blocking calls."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self, Unpack

from tokend import _calls
from tokend._arguments import Ids
from tokend._batches import Batch, cut_batches
from tokend._blocking import BlockingTransport
from tokend._channel import Tls
from tokend._requests import EncodeSettings
from tokend._settings import ClientSettings
from tokend.decoders import Decoder
from tokend.errors import TooLargeError
from tokend.options import DecodeOptions, EncodeOptions
from tokend.results import Counts, Decoded, Encoded, TokenInfo, TokenizerFile, TokenizerInfo

__all__ = ["Client", "Decoder"]


class Client:
    """Calls a tokend server; one client serves all threads of a process.

    It connects at the first call, keeps its connections, and sends unary calls again, a few times, while the
    server is UNAVAILABLE. Close it, or use it as a context manager.

    Args:
        target: `host:port`, or any name that gRPC resolves (`dns:///tokend:50051`, `unix:/run/tokend.sock`), or several
            addresses, as a list or with commas between. A name's servers, or several addresses, take turns, call by
            call; those that are gone or not SERVING are passed over. The proxies of the environment are not used for
            this machine.
        connections: How many connections to open; calls take turns. More than one helps with several server workers.
        timeout_s: The longest wait for an answer, in seconds, where a call does not say otherwise: of a unary call
            with its retries, of each part of a call that is sent in parts, of each answer of a stream. Infinity: none.
        expected_fingerprint: The sha256 that the served tokenizer file must have, for every call.
        token: Sent as `authorization: Bearer TOKEN`; refused where it would leave this machine unencrypted.
        tls: True for TLS with the usual authorities, or a `tokend.Tls`; None for plain connections.
        allow_plaintext_token: Let the token leave this machine unencrypted, where something else encrypts it.
        wait_for_ready: Let calls wait, within their time limit, for a server that is not reachable yet.
        channel_options: gRPC channel options, which win over the client's own.

    >>> with Client("127.0.0.1:50051", timeout_s=5.0) as client:  # connects at the first call only
    ...     print(client)
    Client('127.0.0.1:50051')
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
        self._transport = BlockingTransport(self._settings.connection, wait_for_ready=wait_for_ready)

    def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[EncodeOptions],
    ) -> Encoded:
        """Turns one text, or one pair of texts, into ids.

        For many texts `encode_batch` and `encode_stream` are far cheaper. Empty text is valid.

        Args:
            text: The text.
            pair: A second text, joined with the first as the tokenizer's post-processor does it.
            timeout_s: The longest wait, in seconds; None: the client's.
            options: See `EncodeOptions`.

        Raises:
            TypeError, ValueError: A bad argument, for example a lone surrogate; nothing was sent.
            TokendError: The call failed; see `tokend.errors`.
        """
        program = _calls.encode(text, pair, options, self._settings.fingerprint)
        return self._transport.run(program, self._settings.timeout(timeout_s))

    def encode_batch(
        self,
        texts: Iterable[str],
        pairs: Iterable[str] | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[EncodeOptions],
    ) -> list[Encoded]:
        """Turns many texts, or pairs, into ids: each as `encode` would, in the same order, all or nothing.

        Any number and size goes: what is more than one message holds is sent in several.

        Args:
            texts: The texts; none gives an empty list.
            pairs: Second texts, as many.
            timeout_s: The longest wait for each part, in seconds; None: the client's.
            options: See `EncodeOptions`.

        Raises:
            TypeError, ValueError: A bad argument, with its place; nothing was sent.
            TokendError: The call failed; `index` is the place of the bad text in `texts`.
        """
        timeout = self._settings.timeout(timeout_s)
        encoding = self._settings.encoding(options, pairs=pairs is not None)
        all_texts = _calls.checked_list(texts)
        seconds = _calls.checked_pairs(pairs, len(all_texts))
        batches = _calls.cut(all_texts, seconds, self._settings.known)
        if len(batches) == 1:
            try:
                return self._transport.run(_calls.encode_batch(batches[0], encoding), timeout)
            except TooLargeError as error:
                if not _calls.may_be_cut(error, len(batches[0]), self._settings.known):
                    raise
        if self._settings.known.limits is None:
            self._learn_limits(timeout)
            batches = _calls.cut(all_texts, seconds, self._settings.known)
        return list(self._transport.encode_batches(iter(batches), self._settings.window(encoding), timeout))

    def encode_stream(
        self,
        texts: Iterable[str],
        *,
        batch_texts: int = 256,
        batch_bytes: int = 1 << 20,
        in_flight: int = 8,
        timeout_s: float | None = None,
        **options: Unpack[EncodeOptions],
    ) -> Generator[Encoded, None, None]:
        """Turns any amount of text into ids: one `Encoded` a text, in order, in bounded memory.

        Texts are drawn from the iterable in the caller's thread, gathered into batches, and `in_flight` batches are
        on their way at a time. If the server goes away the stream takes up with the first batch that was not
        answered, for some seconds. An exception of the iterable comes out as it is, after the results before it.

        Args:
            texts: Any iterable of str. With a slow one, small `batch_texts` and `in_flight` bring results sooner.
            batch_texts: Texts in a message, at most.
            batch_bytes: UTF-8 bytes of text in a message, at most, unless one text is longer.
            in_flight: Messages without an answer, at most.
            timeout_s: The longest wait for one answer, in seconds; None: the client's.
            options: See `EncodeOptions`.

        Raises:
            TypeError, ValueError: A bad argument or text, with its place.
            TokendError: The stream failed; `index` is the place of the bad text in `texts`.
        """
        timeout = self._settings.timeout(timeout_s)
        encoding = self._settings.encoding(options)
        self._settings.check_stream(texts, batch_texts, batch_bytes, in_flight)
        return self._encode_stream(texts, encoding, (batch_texts, batch_bytes, in_flight), timeout)

    def _encode_stream(
        self,
        texts: Iterable[str],
        encoding: EncodeSettings,
        sizes: tuple[int, int, int],
        timeout: float | None,
    ) -> Generator[Encoded, None, None]:
        if self._settings.known.limits is None:
            self._learn_limits(timeout)
        batch_texts, batch_bytes, in_flight = sizes
        batches: Iterator[Batch] = cut_batches(texts, self._settings.cutter(batch_texts, batch_bytes))
        yield from self._transport.encode_batches(
            batches, self._settings.window(encoding, in_flight), timeout
        )

    def count(
        self,
        texts: str | Iterable[str],
        *,
        stop_after: int = 0,
        timeout_s: float | None = None,
        **options: Unpack[EncodeOptions],
    ) -> Counts:
        """Counts ids without fetching them: what `encode_batch` would give, added up.

        Args:
            texts: The texts; one str is one text.
            stop_after: Stop once the total passes this number of ids; 0: no limit.
            timeout_s: The longest wait for each part, in seconds; None: the client's.
            options: See `EncodeOptions`; `offsets` and `include_tokens` have no place here.

        Raises:
            TypeError, ValueError: A bad argument, with its place; nothing was sent.
            TokendError: The call failed; `index` is the place of the bad text in `texts`.
        """
        program = _calls.count(texts, stop_after, options, self._settings.fingerprint, self._settings.known)
        return self._transport.run(program, self._settings.timeout(timeout_s))

    def decode(
        self, ids: Ids, *, timeout_s: float | None = None, **options: Unpack[DecodeOptions]
    ) -> Decoded:
        """Turns ids into text. For ids that come one by one there is `decode_stream`.

        Args:
            ids: A list or array of ids; none gives the empty text.
            timeout_s: The longest wait, in seconds; None: the client's.
            options: See `DecodeOptions`.

        Raises:
            TypeError, ValueError: A bad argument, for example a negative id, with its place; nothing was sent.
            TokendError: The call failed; see `tokend.errors`.
        """
        program = _calls.decode(ids, options, self._settings.fingerprint)
        return self._transport.run(program, self._settings.timeout(timeout_s))

    def decode_batch(
        self, sequences: Iterable[Ids], *, timeout_s: float | None = None, **options: Unpack[DecodeOptions]
    ) -> list[Decoded]:
        """Turns many id lists into texts: each as `decode` would, in the same order, all or nothing.

        Args:
            sequences: Lists or arrays of ids; none gives an empty list.
            timeout_s: The longest wait for each part, in seconds; None: the client's.
            options: See `DecodeOptions`.

        Raises:
            TypeError, ValueError: A bad argument, with its place; nothing was sent.
            TokendError: The call failed; `index` is the place of the bad list in `sequences`.
        """
        program = _calls.decode_batch(sequences, options, self._settings.fingerprint, self._settings.known)
        return self._transport.run(program, self._settings.timeout(timeout_s))

    def decode_stream(
        self,
        ids: Iterable[int] | Iterable[Ids],
        *,
        prompt_ids: Ids = (),
        stop: Iterable[str] = (),
        timeout_s: float | None = None,
        **options: Unpack[DecodeOptions],
    ) -> Generator[str, None, None]:
        """Turns ids into text as they come; the pieces, joined, are what `decode` gives for all ids.

        Each id, or list of ids, that the iterable gives is sent at once and its text awaited before the next is
        drawn; the ids of a list or array go together. The stream ends with the ids or at a stop string. It is never
        sent again after a failure, since its text was shown. Closing the iterator early ends the call.

        Args:
            ids: Any iterable of ids, or of lists of ids; its exceptions come out as they are.
            prompt_ids: The ids before these, which set the decoder's state; their text is not sent.
            stop: Strings at which the text ends; they are not part of it.
            timeout_s: The longest wait for one answer, in seconds; None: the client's.
            options: See `DecodeOptions`.

        Yields:
            Text that is not empty.

        Raises:
            TypeError, ValueError: A bad argument or id, with its place.
            TokendError: The stream failed; the text before it was yielded.
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
    ) -> Decoder:
        """Opens a session that takes ids and gives their text; the arguments are those of `decode_stream`."""
        return Decoder(
            self._transport,
            timeout_s=self._settings.timeout(timeout_s),
            prompt_ids=prompt_ids,
            stop=stop,
            keywords=options,
            fingerprint=self._settings.fingerprint,
        )

    def tokenizer_info(self, *, timeout_s: float | None = None) -> TokenizerInfo:
        """Describes what is served: the tokenizer file and its parts, the engine, the limits, the versions."""
        return self._transport.run(_calls.tokenizer_info(), self._settings.timeout(timeout_s))

    def lookup(
        self, ids: Ids = (), tokens: Iterable[str] = (), *, timeout_s: float | None = None
    ) -> list[TokenInfo]:
        """Describes tokens: first those of the ids, then those of the strings. What is not there has `known` False.

        Args:
            ids: Ids.
            tokens: Token strings as the vocabulary spells them (`Ġthe`, not ` the`).
            timeout_s: The longest wait, in seconds; None: the client's.
        """
        program = _calls.lookup(ids, tokens, self._settings.fingerprint)
        return self._transport.run(program, self._settings.timeout(timeout_s))

    def download(self, *, timeout_s: float | None = None) -> TokenizerFile:
        """Fetches the tokenizer file itself, and checks it against its sha256."""
        request = _calls.download_request(self._settings.fingerprint)
        return _calls.downloaded(
            self._transport.read_all("DownloadTokenizer", request, self._settings.timeout(timeout_s))
        )

    def close(self) -> None:
        """Closes the connections; calls in flight end with CallCancelledError, later ones with RuntimeError."""
        self._transport.close()

    def _learn_limits(self, timeout: float | None) -> None:
        self._settings.known.limits = self._transport.run(_calls.tokenizer_info(), timeout).limits

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._settings.connection.target.shown!r})"
