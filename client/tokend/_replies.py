"""From the replies' messages to results.py. Pure."""

from collections.abc import Iterator
from itertools import repeat

from tokend import results
from tokend._arguments import packed_ids
from tokend._requests import EncodeSettings
from tokend.v1 import tokenizer_service_pb2 as service_pb2
from tokend.v1 import types_pb2

__all__ = ["read_batch", "read_decoded", "read_encoded", "read_token", "read_tokenizer"]


def read_encoded(encoding: types_pb2.Encoding, settings: EncodeSettings, fingerprint: str) -> results.Encoded:
    """Reads one encoding, packed or listed."""
    if settings.packed:
        offsets, tokens, type_ids = None, None, None
    else:
        offsets = list(zip(encoding.starts, encoding.ends, strict=True)) if settings.has_offsets else None
        tokens = list(encoding.tokens) if settings.has_tokens else None
        # The wire leaves them out where all are 0.
        type_ids = list(encoding.type_ids) or [0] * encoding.token_count
    return results.Encoded(
        packed_ids=encoding.packed_ids if settings.packed else packed_ids(list(encoding.ids)),
        token_count=encoding.token_count,
        total_token_count=encoding.total_token_count,
        special_text_count=encoding.special_text_count,
        fingerprint=fingerprint,
        offsets=offsets,
        tokens=tokens,
        type_ids=type_ids,
    )


def read_batch(reply: service_pb2.BatchEncodeResponse, settings: EncodeSettings) -> list[results.Encoded]:
    """Reads all encodings of a batch; each is what `read_encoded` gives for its text alone."""
    fingerprint = reply.fingerprint
    if not settings.packed:
        return [read_encoded(encoding, settings, fingerprint) for encoding in reply.encodings]
    return list(_unpacked(reply, fingerprint))


def _unpacked(reply: service_pb2.BatchEncodeResponse, fingerprint: str) -> Iterator[results.Encoded]:
    joined, at = reply.packed_ids, 0
    counts = list(reply.token_counts)
    totals = list(reply.total_token_counts) or counts
    special = list(reply.special_text_counts) or repeat(0, len(counts))
    for count, total, special_text_count in zip(counts, totals, special, strict=True):
        end = at + 4 * count
        yield results.Encoded(
            packed_ids=joined[at:end],
            token_count=count,
            total_token_count=total,
            special_text_count=special_text_count,
            fingerprint=fingerprint,
        )
        at = end


def read_decoded(
    reply: service_pb2.DecodeResponse, options: types_pb2.DecodeOptions, fingerprint: str
) -> results.Decoded:
    """Reads one decoded text."""
    return results.Decoded(
        text=reply.text,
        raw_bytes=reply.raw_bytes if options.include_bytes else None,
        unknown_id_count=reply.unknown_id_count,
        fingerprint=fingerprint,
    )


def read_token(token: types_pb2.TokenInfo) -> results.TokenInfo:
    """Reads one token's description."""
    return results.TokenInfo(
        id=token.id,
        token=token.token,
        token_bytes=token.token_bytes,
        special=token.special,
        added=token.added,
        control=token.control,
        known=token.known,
    )


def read_tokenizer(reply: service_pb2.GetTokenizerResponse) -> results.TokenizerInfo:
    """Reads what the server serves."""
    engine, limits = reply.engine, reply.limits
    return results.TokenizerInfo(
        fingerprint=reply.fingerprint,
        name=reply.name,
        file_bytes=reply.file_bytes,
        vocab_size=reply.vocab_size,
        max_id=reply.max_id,
        model_type=reply.model_type,
        normalizer=reply.normalizer,
        pre_tokenizer=reply.pre_tokenizer,
        post_processor=reply.post_processor,
        decoder=reply.decoder,
        special_tokens=[read_token(token) for token in reply.special_tokens],
        control_tokens=[read_token(token) for token in reply.control_tokens],
        added_token_count=reply.added_token_count,
        ignored_truncation=reply.ignored_truncation,
        ignored_padding=reply.ignored_padding,
        round_trip=results.RoundTrip(exact=reply.round_trip.exact, reason=reply.round_trip.reason),
        streaming=results.Streaming(mode=reply.streaming.mode, reason=reply.streaming.reason),
        engine=results.EngineInfo(
            reference_version=engine.reference_version,
            name=engine.name,
            version=engine.version,
            state=_engine_state(engine),
            reason=engine.reason,
            excluded_code_points=engine.excluded_code_points,
        ),
        limits=results.Limits(
            max_text_bytes=limits.max_text_bytes,
            max_batch_texts=limits.max_batch_texts,
            max_batch_bytes=limits.max_batch_bytes,
            max_ids=limits.max_ids,
            max_sequences_per_stream=limits.max_sequences_per_stream,
            max_streams=limits.max_streams,
            max_message_bytes=limits.max_message_bytes,
            max_stop_strings=limits.max_stop_strings,
            max_stop_bytes=limits.max_stop_bytes,
        ),
        server_version=reply.server_version,
        warnings=list(reply.warnings),
    )


def _engine_state(engine: types_pb2.Engine) -> str:
    try:
        return types_pb2.Engine.State.Name(engine.state).removeprefix("STATE_")
    except ValueError:
        return str(int(engine.state))  # a newer server's state
