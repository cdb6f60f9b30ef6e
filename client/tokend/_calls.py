"""Every unary call as a program: which messages to send, and what to make of the replies. Pure.

A program is a generator that yields requests, is sent their replies, and returns the result; errors of a
request are thrown into it. `Client` runs programs with blocking calls and `AsyncClient` by awaiting, so what a
method does stands here once.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from tokend import _replies, errors, results
from tokend._arguments import (
    Ids,
    checked_count,
    checked_strings,
    checked_text,
    packed_ids,
)
from tokend._batches import Batch, BatchCutter
from tokend._known_limits import KnownLimits
from tokend._requests import EncodeSettings, decode_options, encode_settings
from tokend.options import DecodeOptions, EncodeOptions
from tokend.v1 import tokenizer_service_pb2 as service_pb2
from tokend.v1 import types_pb2

__all__ = ["Program", "UnaryRequest"]

Result = TypeVar("Result")

# What one message holds at most, well under the default limits (4,096 texts, 48 MiB, 4 million ids): at one id
# a byte the ids of a full batch still fit, and so does a reply with offsets and tokens.
BATCH_TEXTS = 1024
BATCH_BYTES = 2 << 20
_BATCH_IDS = 1 << 18


@dataclass(frozen=True, slots=True)
class UnaryRequest:
    """One message to send, and the method to send it to."""

    method: str
    message: Message


@dataclass(slots=True)
class _IdBatch:
    start: int
    sequences: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.sequences)


Program = Generator[UnaryRequest, Any, Result]
Answer = TypeVar("Answer")
Part = TypeVar("Part", Batch, _IdBatch)


def encode(
    text: str, pair: str | None, keywords: EncodeOptions, fingerprint: str | None
) -> Program[results.Encoded]:
    """Encode."""
    settings = encode_settings(keywords, fingerprint=fingerprint, pairs=pair is not None)
    checked_text(text, "text")
    if pair is not None:
        checked_text(pair, "pair")
    return (yield from encode_checked(text, pair, settings))


def encode_checked(text: str, pair: str | None, settings: EncodeSettings) -> Program[results.Encoded]:
    """Encode, for arguments that were checked."""
    request = service_pb2.EncodeRequest(text=text, pair=pair, options=settings.options)
    reply: service_pb2.EncodeResponse = yield UnaryRequest("Encode", request)
    return _replies.read_encoded(reply.encoding, settings, reply.fingerprint)


def encode_batch(batch: Batch, settings: EncodeSettings) -> Program[list[results.Encoded]]:
    """BatchEncode, for what fits into one message."""
    request = service_pb2.BatchEncodeRequest(texts=batch.texts, pairs=batch.pairs, options=settings.options)
    reply: service_pb2.BatchEncodeResponse = yield UnaryRequest("BatchEncode", request)
    return _complete(_replies.read_batch(reply, settings), len(batch), "texts")


def count(
    texts: str | Iterable[str],
    stop_after: int,
    keywords: EncodeOptions,
    fingerprint: str | None,
    known: KnownLimits,
) -> Program[results.Counts]:
    """CountTokens, in as many messages as it takes."""
    settings = count_settings(keywords, fingerprint)
    limit = checked_count(stop_after, "stop_after", least=0, greatest=2**64 - 1)
    all_texts = [texts] if isinstance(texts, str) else checked_list(texts)
    return (yield from count_checked(all_texts, limit, settings, known))


def count_settings(keywords: EncodeOptions, fingerprint: str | None) -> EncodeSettings:
    """The options of CountTokens."""
    settings = encode_settings(keywords, fingerprint=fingerprint)
    if settings.has_offsets or settings.has_tokens:
        raise ValueError("count gives numbers only: offsets and include_tokens belong to encode")
    return settings


def count_together(texts: list[str], settings: EncodeSettings) -> Program[results.Counts]:
    """CountTokens, for what fits into one message, to its end."""
    request = service_pb2.CountTokensRequest(texts=texts, options=settings.options)
    reply: service_pb2.CountTokensResponse = yield UnaryRequest("CountTokens", request)
    counts = _complete(list(reply.counts), len(texts), "texts")
    return results.Counts(counts=counts, total=reply.total, fingerprint=reply.fingerprint)


def count_checked(
    all_texts: list[str], limit: int, settings: EncodeSettings, known: KnownLimits
) -> Program[results.Counts]:
    """CountTokens, for options that were checked; the texts are checked as they are cut into messages."""
    counts: list[int] = []
    total = 0
    served = ""

    def request(batch: Batch) -> UnaryRequest:
        # At exactly 0 left the server counts the whole batch, since 0 means no limit; take() stops in time.
        left = limit - total if limit else 0
        message = service_pb2.CountTokensRequest(texts=batch.texts, options=settings.options, stop_after=left)
        return UnaryRequest("CountTokens", message)

    def take(reply: service_pb2.CountTokensResponse) -> bool:
        nonlocal total, served
        served = reply.fingerprint
        for n_tokens in reply.counts:
            counts.append(n_tokens)
            total += n_tokens
            if limit and total > limit:
                return True
        return False

    yield from _in_parts(lambda: cut(all_texts, None, known), request, take, known)
    stopped = bool(limit) and total > limit
    return results.Counts(counts=counts, total=total, stopped=stopped, fingerprint=served)


def decode(ids: Ids, keywords: DecodeOptions, fingerprint: str | None) -> Program[results.Decoded]:
    """Decode."""
    options = decode_options(keywords, fingerprint=fingerprint)
    return (yield from decode_checked(packed_ids(ids), options))


def decode_checked(packed: bytes, options: types_pb2.DecodeOptions) -> Program[results.Decoded]:
    """Decode, for arguments that were checked."""
    request = service_pb2.DecodeRequest(packed_ids=packed, options=options)
    reply: service_pb2.DecodeResponse = yield UnaryRequest("Decode", request)
    return _replies.read_decoded(reply, options, reply.fingerprint)


def decode_together(
    packed: Sequence[bytes], options: types_pb2.DecodeOptions
) -> Program[list[results.Decoded]]:
    """BatchDecode, for what fits into one message."""
    request = service_pb2.BatchDecodeRequest(
        sequences=[types_pb2.IdList(packed_ids=ids) for ids in packed], options=options
    )
    reply: service_pb2.BatchDecodeResponse = yield UnaryRequest("BatchDecode", request)
    decoded = [_replies.read_decoded(one, options, reply.fingerprint) for one in reply.results]
    return _complete(decoded, len(packed), "id lists")


def decode_batch(
    sequences: Iterable[Ids], keywords: DecodeOptions, fingerprint: str | None, known: KnownLimits
) -> Program[list[results.Decoded]]:
    """BatchDecode, in as many messages as it takes."""
    options = decode_options(keywords, fingerprint=fingerprint)
    packed = _packed_sequences(sequences)
    decoded: list[results.Decoded] = []

    def request(batch: _IdBatch) -> UnaryRequest:
        lists = [types_pb2.IdList(packed_ids=ids) for ids in batch.sequences]
        return UnaryRequest("BatchDecode", service_pb2.BatchDecodeRequest(sequences=lists, options=options))

    def take(reply: service_pb2.BatchDecodeResponse) -> bool:
        decoded.extend(_replies.read_decoded(one, options, reply.fingerprint) for one in reply.results)
        return False

    yield from _in_parts(lambda: _cut_sequences(packed, known), request, take, known)
    return decoded


def tokenizer_info() -> Program[results.TokenizerInfo]:
    """GetTokenizer."""
    reply = yield UnaryRequest("GetTokenizer", service_pb2.GetTokenizerRequest())
    return _replies.read_tokenizer(cast("service_pb2.GetTokenizerResponse", reply))


def lookup(ids: Ids, tokens: Iterable[str], fingerprint: str | None) -> Program[list[results.TokenInfo]]:
    """LookupTokens."""
    request = service_pb2.LookupTokensRequest(
        ids=results.unpacked_ids(packed_ids(ids)),
        tokens=checked_strings(tokens, "tokens"),
        expected_fingerprint=fingerprint or "",
    )
    reply: service_pb2.LookupTokensResponse = yield UnaryRequest("LookupTokens", request)
    return [_replies.read_token(token) for token in reply.tokens]


def download_request(fingerprint: str | None) -> service_pb2.DownloadTokenizerRequest:
    """The request of DownloadTokenizer."""
    return service_pb2.DownloadTokenizerRequest(expected_fingerprint=fingerprint or "")


def downloaded(replies: Sequence[service_pb2.DownloadTokenizerResponse]) -> results.TokenizerFile:
    """Joins the chunks of a download and checks them against the sha256 at its end."""
    file = results.TokenizerFile(data=b"".join(reply.chunk for reply in replies))
    stated = replies[-1].fingerprint if replies else ""
    if file.fingerprint != stated:
        raise errors.InternalError(
            f"the download is damaged or incomplete: {len(file.data)} bytes with another sha256 than the server states"
        )
    return file


def checked_list(texts: Iterable[str]) -> list[str]:
    """A list of texts, where one lone str is a mistake."""
    if isinstance(texts, str | bytes):
        raise TypeError(
            f"texts is a list of str, not one {type(texts).__name__}; for a single text there is encode"
        )
    if not isinstance(texts, Iterable):
        raise TypeError(f"texts is a list of str, not {type(texts).__name__}")
    return list(texts)


def checked_pairs(pairs: Iterable[str] | None, n_texts: int) -> list[str] | None:
    """A list of second texts, one for each text."""
    if pairs is None:
        return None
    seconds = checked_strings(pairs, "pairs")
    if len(seconds) != n_texts:
        raise ValueError(
            f"pairs has {len(seconds)} texts and texts has {n_texts}; they go together one by one"
        )
    return seconds


def cut(texts: list[str], pairs: list[str] | None, known: KnownLimits) -> list[Batch]:
    """Checks all texts and cuts them into batches.

    At least one batch comes out, if an empty one, so that the server gets to check the options.

    Args:
        texts: The texts.
        pairs: Their second texts, as many; None for none.
        known: The server's limits, as far as they are known.
    """
    cutter = BatchCutter(max_texts=known.batch_texts(BATCH_TEXTS), max_bytes=known.batch_bytes(BATCH_BYTES))
    seconds: Iterable[str | None] = [None] * len(texts) if pairs is None else pairs
    batches = [
        full
        for text, pair in zip(texts, seconds, strict=True)
        if (full := cutter.add(text, pair)) is not None
    ]
    rest = cutter.rest()
    if rest is not None:
        batches.append(rest)
    return batches or [Batch(start=0)]


def may_be_cut(error: errors.TooLargeError, n_items: int, known: KnownLimits) -> bool:
    """Whether what was refused may pass in smaller messages, since the server's limits were not known yet."""
    return error.reason in {"BATCH_TOO_LARGE", "TOO_MANY_IDS"} and n_items > 1 and known.limits is None


def _complete(answers: list[Answer], n_items: int, what: str) -> list[Answer]:
    if len(answers) != n_items:
        raise errors.InternalError(f"the server answered {n_items} {what} with {len(answers)} results")
    return answers


def _in_parts(
    cut_all: Callable[[], list[Part]],
    request: Callable[[Part], UnaryRequest],
    take: Callable[[Any], bool],
    known: KnownLimits,
) -> Program[None]:
    """Sends parts until `take` says that it is enough; asks for the server's limits before there are several."""
    parts = cut_all()
    if len(parts) == 1:
        try:
            take((yield request(parts[0])))
        except errors.TooLargeError as error:
            if not may_be_cut(error, len(parts[0]), known):
                raise
        else:
            return
    if known.limits is None:
        known.limits = (yield from tokenizer_info()).limits
        parts = cut_all()
    for part in parts:
        try:
            reply = yield request(part)
        except errors.TokendError as error:
            error.renumber(part.start)
            raise
        if take(reply):
            return


def _packed_sequences(sequences: object) -> list[bytes]:
    if isinstance(sequences, str | bytes) or not isinstance(sequences, Iterable):
        raise TypeError(f"sequences is a list of id lists, not {type(sequences).__name__}")
    return [packed_ids(ids, f"sequences[{index}]") for index, ids in enumerate(sequences)]


def _cut_sequences(packed: list[bytes], known: KnownLimits) -> list[_IdBatch]:
    max_lists, max_ids = known.batch_texts(BATCH_TEXTS), known.ids(_BATCH_IDS)
    batches = [_IdBatch(start=0)]
    n_ids = 0
    for index, ids in enumerate(packed):
        n_ids += len(ids) // 4
        if batches[-1].sequences and (n_ids > max_ids or len(batches[-1].sequences) >= max_lists):
            batches.append(_IdBatch(start=index))
            n_ids = len(ids) // 4
        batches[-1].sequences.append(ids)
    return batches
