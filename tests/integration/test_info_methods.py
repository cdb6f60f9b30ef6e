"""GetTokenizer, LookupTokens and DownloadTokenizer on the wire."""

import hashlib
import json

import pytest
from tokenizers import __version__ as reference_version

from tests.integration.conftest import SMALL_LIMITS
from tests.integration.wire import Wire, refused
from tests.tokenizers_for_tests import byte_fallback_bpe, byte_level_bpe, word_piece
from tokend._version import __version__
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2 as types
from tokend_server.data import default_tokenizer_path

TRUNCATION = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
PADDING = {
    "strategy": "BatchLongest",
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "<|end|>",
}


@pytest.fixture
def info(wire: Wire) -> pb.GetTokenizerResponse:
    return wire.stub.GetTokenizer(pb.GetTokenizerRequest())


def test_the_fingerprint_is_the_sha256_of_the_file(info):
    data = byte_level_bpe().encode()
    assert (info.fingerprint, info.file_bytes) == (hashlib.sha256(data).hexdigest(), len(data))


def test_the_sizes_of_the_vocabulary(info):
    assert (info.vocab_size, info.max_id, info.added_token_count) == (265, 264, 3)


def test_the_parts_of_the_file(info):
    assert (info.model_type, info.pre_tokenizer, info.post_processor, info.decoder) == (
        "BPE",
        "ByteLevel",
        "TemplateProcessing",
        "ByteLevel",
    )
    assert info.normalizer == ""
    assert info.name


def test_parts_in_sequence_are_named_in_order(wire_to, server_for):
    info = wire_to(server_for(byte_fallback_bpe())).stub.GetTokenizer(pb.GetTokenizerRequest())
    assert info.normalizer == "Sequence[Prepend, Replace]"
    assert info.decoder == "Sequence[Replace, ByteFallback, Fuse, Strip]"
    assert info.pre_tokenizer == ""
    assert info.streaming.mode == "byte-runs"


def test_special_and_control_tokens_by_id(info):
    facts = {"special": True, "added": True, "control": True, "known": True}
    tokens = [
        types.TokenInfo(id=262, token="<|bos|>", token_bytes=b"<|bos|>", **facts),
        types.TokenInfo(id=263, token="<|end|>", token_bytes=b"<|end|>", **facts),
    ]
    assert list(info.special_tokens) == tokens
    assert list(info.control_tokens) == tokens


def test_control_tokens_that_the_operator_named_are_listed(wire_to, server_for):
    server = server_for(byte_level_bpe(), "--control-tokens", "<tool>", "--default-special-tokens", "REJECT")
    info = wire_to(server).stub.GetTokenizer(pb.GetTokenizerRequest())
    assert [token.token for token in info.control_tokens] == ["<|bos|>", "<|end|>", "<tool>"]
    assert [token.token for token in info.special_tokens] == ["<|bos|>", "<|end|>"]


def test_how_it_streams_which_engine_computes_and_the_versions(info):
    assert info.streaming.mode == "bytes"
    assert (info.engine.reference_version, info.engine.name) == (reference_version, "reference")
    assert info.engine.version == reference_version
    assert info.engine.state == types.Engine.STATE_DISABLED
    assert info.engine.reason
    assert info.server_version == __version__


def test_the_round_trip_and_why_not(wire_to, server_for, info):
    assert info.round_trip == types.RoundTrip(exact=True)
    lossy = wire_to(server_for(word_piece())).stub.GetTokenizer(pb.GetTokenizerRequest()).round_trip
    assert not lossy.exact
    assert lossy.reason


def test_the_default_limits(info):
    limits = info.limits
    assert (limits.max_text_bytes, limits.max_batch_texts, limits.max_batch_bytes) == (
        16 << 20,
        4096,
        48 << 20,
    )
    assert (limits.max_ids, limits.max_sequences_per_stream, limits.max_streams) == (4_000_000, 16_384, 8192)
    assert (limits.max_message_bytes, limits.max_stop_strings, limits.max_stop_bytes) == (64 << 20, 64, 1024)


def test_limits_that_the_operator_set(limited: Wire):
    limits = limited.stub.GetTokenizer(pb.GetTokenizerRequest()).limits
    assert {
        f"--{field.name.replace('_', '-')}": value for field, value in limits.ListFields()
    } == SMALL_LIMITS


def test_truncation_and_padding_of_the_file_are_told_and_not_applied(wire_to, server_for):
    server = server_for(byte_level_bpe(truncation=TRUNCATION, padding=PADDING))
    stub = wire_to(server).stub
    info = stub.GetTokenizer(pb.GetTokenizerRequest())
    assert json.loads(info.ignored_truncation) == TRUNCATION
    # How the strategy is spelled is the file's business.
    assert json.loads(info.ignored_padding)["pad_token"] == "<|end|>"
    assert any("truncation" in warning for warning in info.warnings)
    assert any("padding" in warning for warning in info.warnings)
    answer = stub.BatchEncode(pb.BatchEncodeRequest(texts=["abcdefgh", "a"]))
    assert [encoding.token_count for encoding in answer.encodings] == [9, 2]
    assert sum("WARNING" in line for line in server.stderr_lines) == 2


def test_a_file_without_surprises_has_no_warnings(info):
    assert (info.ignored_truncation, info.ignored_padding, list(info.warnings)) == ("", "", [])


def test_tokens_are_looked_up_by_id_and_then_by_string(wire: Wire):
    request = pb.LookupTokensRequest(ids=[258, 264, 9999], tokens=["<|end|>", "Ġthe", "no such token"])
    assert list(wire.stub.LookupTokens(request).tokens) == [
        types.TokenInfo(id=258, token="Ġthe", token_bytes=b" the", known=True),
        types.TokenInfo(id=264, token="<tool>", token_bytes=b"<tool>", added=True, known=True),
        types.TokenInfo(id=9999),
        types.TokenInfo(
            id=263,
            token="<|end|>",
            token_bytes=b"<|end|>",
            special=True,
            added=True,
            control=True,
            known=True,
        ),
        types.TokenInfo(id=258, token="Ġthe", token_bytes=b" the", known=True),
        types.TokenInfo(token="no such token"),
    ]


def test_token_bytes_need_not_be_whole_characters(wire: Wire, wire_to, server_for):
    [token] = wire.stub.LookupTokens(pb.LookupTokensRequest(ids=[259])).tokens
    assert token.token_bytes == b"\xf0\x9f"
    fallback = wire_to(server_for(byte_fallback_bpe())).stub
    [token] = fallback.LookupTokens(pb.LookupTokensRequest(tokens=["<0xE4>"])).tokens
    assert (token.id, token.token_bytes) == (3 + 0xE4, b"\xe4")


def test_a_look_up_of_nothing_gives_nothing_but_the_fingerprint(wire: Wire, info):
    assert wire.stub.LookupTokens(pb.LookupTokensRequest()) == pb.LookupTokensResponse(
        fingerprint=info.fingerprint
    )


@pytest.mark.parametrize("method", ["LookupTokens", "DownloadTokenizer"])
def test_another_fingerprint_is_refused(wire: Wire, method):
    request = getattr(pb, method + "Request")(expected_fingerprint="0" * 64)

    def call(timeout: float) -> object:
        answer = getattr(wire.stub, method)(request, timeout=timeout)
        return list(answer) if method == "DownloadTokenizer" else answer

    assert refused(call).reason == "TOKENIZER_MISMATCH"


def test_ids_and_strings_of_a_look_up_share_the_limit(limited: Wire):
    request = pb.LookupTokensRequest(ids=[1] * 999, tokens=["a", "b"])
    failure = refused(limited.stub.LookupTokens, request)
    assert (failure.reason, failure.metadata) == ("TOO_MANY_IDS", {"size": "1001", "limit": "1000"})


def test_the_file_comes_in_chunks_with_its_size_first_and_its_sha256_last(wire_to, server):
    stub = wire_to(server).stub
    pinned = stub.GetTokenizer(pb.GetTokenizerRequest()).fingerprint
    answers = list(stub.DownloadTokenizer(pb.DownloadTokenizerRequest(expected_fingerprint=pinned)))
    data = b"".join(answer.chunk for answer in answers)
    assert data == default_tokenizer_path().read_bytes()
    assert len(answers) > 1
    assert all(len(answer.chunk) <= 1 << 20 for answer in answers)
    assert [answer.total_bytes for answer in answers] == [len(data)] + [0] * (len(answers) - 1)
    assert [answer.fingerprint for answer in answers[:-1]] == [""] * (len(answers) - 1)
    assert answers[-1].fingerprint == hashlib.sha256(data).hexdigest() == pinned


def test_a_downloaded_file_that_is_served_again_is_the_same_tokenizer(wire: Wire, wire_to, server_for, info):
    data = b"".join(each.chunk for each in wire.stub.DownloadTokenizer(pb.DownloadTokenizerRequest()))
    again = wire_to(server_for(data.decode(), "--log-format", "json"))
    served = again.stub.GetTokenizer(pb.GetTokenizerRequest())
    served.name = info.name
    assert served == info
