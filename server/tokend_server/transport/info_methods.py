"""GetTokenizer, LookupTokens and DownloadTokenizer: proto to domain and back, nothing else."""

from collections.abc import Iterator

from tokend._version import __version__
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2
from tokend_server.engine.engine_status import EngineState
from tokend_server.engine.frozen import FrozenTokenizer
from tokend_server.service.info import InfoService, TokenDescription
from tokend_server.service.usage import Usage

__all__ = ["InfoMethods"]

_NO_USAGE = Usage()
_STATES = {
    EngineState.DISABLED: types_pb2.Engine.STATE_DISABLED,
    EngineState.UNSUPPORTED: types_pb2.Engine.STATE_UNSUPPORTED,
    EngineState.PENDING: types_pb2.Engine.STATE_PENDING,
    EngineState.VERIFIED: types_pb2.Engine.STATE_VERIFIED,
    EngineState.QUARANTINED: types_pb2.Engine.STATE_QUARANTINED,
}


class InfoMethods:
    """The methods that tell what is served."""

    def __init__(self, service: InfoService) -> None:
        self._service = service
        self._fingerprint = service.tokenizer.fingerprint
        # Nothing of it changes while the server runs, but for the engine.
        self._described = self._describe()

    def get_tokenizer(self, _request: pb.GetTokenizerRequest) -> tuple[pb.GetTokenizerResponse, Usage]:
        """Answer GetTokenizer."""
        response = pb.GetTokenizerResponse()
        response.CopyFrom(self._described)
        response.engine.CopyFrom(_engine(self._service.tokenizer))
        return response, _NO_USAGE

    def lookup_tokens(self, request: pb.LookupTokensRequest) -> tuple[pb.LookupTokensResponse, Usage]:
        """Answer LookupTokens."""
        described = self._service.lookup(request.ids, request.tokens, request.expected_fingerprint)
        response = pb.LookupTokensResponse(tokens=map(_token_info, described), fingerprint=self._fingerprint)
        return response, _NO_USAGE

    def download_tokenizer(
        self, request: pb.DownloadTokenizerRequest
    ) -> Iterator[pb.DownloadTokenizerResponse]:
        """Answer DownloadTokenizer: the size first, the sha256 last."""
        total_bytes = len(self._service.tokenizer.file_data)
        sent_bytes = 0
        for chunk in self._service.chunks(request.expected_fingerprint):
            response = pb.DownloadTokenizerResponse(chunk=chunk)
            if not sent_bytes:
                response.total_bytes = total_bytes
            sent_bytes += len(chunk)
            if sent_bytes == total_bytes:
                response.fingerprint = self._fingerprint
            yield response

    def _describe(self) -> pb.GetTokenizerResponse:
        tokenizer = self._service.tokenizer
        limits = self._service.limits
        return pb.GetTokenizerResponse(
            fingerprint=tokenizer.fingerprint,
            # A file's name need not be text.
            name=tokenizer.name.encode(errors="backslashreplace").decode(),
            file_bytes=len(tokenizer.file_data),
            vocab_size=tokenizer.vocabulary.size,
            max_id=tokenizer.vocabulary.max_id,
            model_type=tokenizer.pipeline.model_type,
            normalizer=_part(tokenizer.pipeline.normalizer),
            pre_tokenizer=_part(tokenizer.pipeline.pre_tokenizer),
            post_processor=_part(tokenizer.pipeline.post_processor),
            decoder=_part(tokenizer.pipeline.decoder),
            special_tokens=self._infos(tokenizer.special_token_ids),
            control_tokens=self._infos(tokenizer.control_token_ids),
            added_token_count=len(tokenizer.vocabulary.added),
            ignored_truncation=tokenizer.ignored_truncation,
            ignored_padding=tokenizer.ignored_padding,
            round_trip=types_pb2.RoundTrip(
                exact=tokenizer.round_trip.exact, reason=tokenizer.round_trip.reason
            ),
            streaming=types_pb2.Streaming(mode=tokenizer.decoder.mode, reason=tokenizer.decoder.reason),
            limits=types_pb2.Limits(
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
            server_version=__version__,
            warnings=tokenizer.warnings,
        )

    def _infos(self, token_ids: frozenset[int]) -> list[types_pb2.TokenInfo]:
        return [_token_info(self._service.describe(token_id)) for token_id in sorted(token_ids)]


def _part(kind: str) -> str:
    """Name a part of the file as the proto does: not at all where there is none."""
    return "" if kind == "none" else kind


def _engine(tokenizer: FrozenTokenizer) -> types_pb2.Engine:
    status = tokenizer.encoder.status
    return types_pb2.Engine(
        reference_version=tokenizer.reference_version,
        name=status.name,
        version=status.version,
        state=_STATES[status.state],
        reason=status.reason,
        excluded_code_points=status.excluded_code_points,
    )


def _token_info(described: TokenDescription) -> types_pb2.TokenInfo:
    return types_pb2.TokenInfo(
        id=described.token_id,
        token=described.token,
        token_bytes=described.token_bytes,
        special=described.special,
        added=described.added,
        control=described.control,
        known=described.known,
    )
