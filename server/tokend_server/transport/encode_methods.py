"""Encode, BatchEncode, StreamEncode and CountTokens: proto to domain and back, nothing else."""

from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2
from tokend_server.engine.offsets import OffsetUnit
from tokend_server.engine.packed import PackedBatch, pack_ids
from tokend_server.engine.reference import Encoded, EncodeOptions
from tokend_server.errors import InvalidOption
from tokend_server.service.encode import EncodedPack, EncodeService
from tokend_server.service.usage import Usage
from tokend_server.transport.calls import Call
from tokend_server.transport.options import EncodeOptionsReader
from tokend_server.transport.status import error_message

__all__ = ["EncodeMethods"]


class EncodeMethods:
    """The methods that turn text into ids."""

    def __init__(self, service: EncodeService, options: EncodeOptionsReader) -> None:
        self._service = service
        self._options = options
        self._fingerprint = service.tokenizer.fingerprint

    def encode(self, request: pb.EncodeRequest) -> tuple[pb.EncodeResponse, Usage]:
        """Answer Encode."""
        asked = self._options.read(request.options)
        options, fingerprint = asked.encode, asked.expected_fingerprint
        texts, pairs = [request.text], [request.pair] if request.HasField("pair") else None
        response = pb.EncodeResponse(fingerprint=self._fingerprint)
        if asked.packed and self._has_ids_alone(options, pairs):
            one = self._service.encode_packed(
                texts, pairs, options, expected_fingerprint=fingerprint, single=True
            )
            _fill_one_packed(response.encoding, one.pack)
            return response, one.usage
        batch = self._service.encode(texts, pairs, options, expected_fingerprint=fingerprint, single=True)
        _fill(response.encoding, batch.encodings[0], options, packed=asked.packed)
        return response, batch.usage

    def _has_ids_alone(self, options: EncodeOptions, pairs: list[str] | None) -> bool:
        """Whether the encoding of one text has nothing but ids and counts."""
        return (
            pairs is None
            and options.offsets is OffsetUnit.NONE
            and not options.include_tokens
            and not self._service.tokenizer.encoder.reference.has_types
        )

    def batch_encode(
        self, request: pb.BatchEncodeRequest | pb.StreamEncodeRequest
    ) -> tuple[pb.BatchEncodeResponse, Usage]:
        """Answer BatchEncode, or one batch of a StreamEncode."""
        asked = self._options.read(request.options)
        options, packed, fingerprint = asked.encode, asked.packed, asked.expected_fingerprint
        if packed and (options.offsets is not OffsetUnit.NONE or options.include_tokens):
            field = "include_tokens" if options.include_tokens else "offsets"
            raise InvalidOption(field, "set", "packed ids come without it in a batch; ask for id_format LIST")
        # Read once: each look at a text in the message makes a new string.
        texts, pairs = list(request.texts), list(request.pairs) or None
        response = pb.BatchEncodeResponse(fingerprint=self._fingerprint)
        if packed:
            encoded_pack = self._service.encode_packed(
                texts, pairs, options, expected_fingerprint=fingerprint
            )
            _fill_packed(response, encoded_pack, truncated=options.truncation is not None)
            return response, encoded_pack.usage
        batch = self._service.encode(texts, pairs, options, expected_fingerprint=fingerprint)
        for encoded in batch.encodings:
            _fill(response.encodings.add(), encoded, options, packed=False)
        return response, batch.usage

    def count_tokens(self, request: pb.CountTokensRequest) -> tuple[pb.CountTokensResponse, Usage]:
        """Answer CountTokens."""
        asked = self._options.read(request.options)
        options = asked.encode
        if options.offsets is not OffsetUnit.NONE or options.include_tokens:
            field = "include_tokens" if options.include_tokens else "offsets"
            raise InvalidOption(field, "set", "counts come alone; ask Encode or BatchEncode for it")
        counted = self._service.count(
            list(request.texts),
            options,
            stop_after=request.stop_after,
            expected_fingerprint=asked.expected_fingerprint,
        )
        response = pb.CountTokensResponse(
            counts=counted.counts, total=counted.total, stopped=counted.stopped, fingerprint=self._fingerprint
        )
        return response, counted.usage

    def open_stream(self, call: Call) -> "StreamEncodeSession":
        """Begin a StreamEncode."""
        return StreamEncodeSession(self, call)


class StreamEncodeSession:
    """One StreamEncode: a batch in, its answer out; what is wrong with a batch is its own answer. Used by several threads."""

    def __init__(self, methods: EncodeMethods, call: Call) -> None:
        self._methods = methods
        self._call = call

    def n_texts(self, request: pb.StreamEncodeRequest) -> int:
        """Count a batch's texts."""
        return len(request.texts)

    def answer(self, request: pb.StreamEncodeRequest) -> pb.StreamEncodeResponse:
        """Encode one batch."""
        response = pb.StreamEncodeResponse(batch_id=request.batch_id)
        try:
            result, usage = self._methods.batch_encode(request)
            response.result.CopyFrom(result)
            self._call.check_reply(response)
        except BaseException as error:  # noqa: BLE001 (a native panic is its batch's error alone)
            response.error.CopyFrom(error_message(self._call.refusal(error, batch_id=request.batch_id)))
        else:
            self._call.observe(usage)
        return response


def _fill(target: types_pb2.Encoding, encoded: Encoded, options: EncodeOptions, *, packed: bool) -> None:
    if packed:
        target.packed_ids = pack_ids(encoded.ids)
    else:
        target.ids.extend(encoded.ids)
    target.token_count = len(encoded.ids)
    target.total_token_count = encoded.total_token_count
    target.special_text_count = encoded.special_text_count
    if encoded.starts is not None and encoded.ends is not None:
        target.starts.extend(encoded.starts)
        target.ends.extend(encoded.ends)
    if encoded.tokens is not None and options.include_tokens:
        target.tokens.extend(encoded.tokens)
    if encoded.type_ids is not None:
        target.type_ids.extend(encoded.type_ids)


def _fill_one_packed(target: types_pb2.Encoding, pack: PackedBatch) -> None:
    target.packed_ids = pack.packed_ids
    target.token_count = pack.token_counts[0]
    target.total_token_count = pack.total_token_counts[0]
    target.special_text_count = pack.special_text_counts[0]


def _fill_packed(target: pb.BatchEncodeResponse, encoded: EncodedPack, *, truncated: bool) -> None:
    pack = encoded.pack
    target.packed_ids = pack.packed_ids
    target.token_counts.extend(pack.token_counts)
    if truncated:
        target.total_token_counts.extend(pack.total_token_counts)
    if encoded.usage.special_texts:
        target.special_text_counts.extend(pack.special_text_counts)
