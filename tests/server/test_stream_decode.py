"""Which inputs of a StreamDecode are one packed id and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokend.v1 import types_pb2
from tokend_server.transport.stream_decode import _only_id

NAMES = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))


@given(NAMES, st.integers(0, 2**32 - 1))
def test_one_packed_id_is_read(sequence_id, token_id):
    given_input = types_pb2.SequenceInput(sequence_id=sequence_id, packed_ids=token_id.to_bytes(4, "little"))
    assert _only_id(given_input, sequence_id) == token_id


MORE = [
    {"ids": [1]},
    {"prompt_ids": [1]},
    {"stop": [""]},
    {"end": True},
    {"options": {}},
    {"options": {"include_bytes": True}},
    {"packed_ids": b""},
    {"packed_ids": bytes(3)},
    {"packed_ids": bytes(8)},
]


@given(NAMES, st.sampled_from(MORE))
def test_any_other_input_is_not(sequence_id, more):
    fields = {"sequence_id": sequence_id, "packed_ids": bytes(4)} | more
    assert _only_id(types_pb2.SequenceInput(**fields), sequence_id) is None


@pytest.mark.parametrize("sequence_id", [0, 1, 2**63])
def test_a_field_that_this_server_does_not_know_counts(sequence_id):
    known = types_pb2.SequenceInput(sequence_id=sequence_id, packed_ids=bytes(4))
    unknown = types_pb2.SequenceInput.FromString(known.SerializeToString() + b"\xf8\x3f\x01")
    assert _only_id(unknown, sequence_id) is None
