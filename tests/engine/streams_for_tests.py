"""Decoders and streams for the tests of decoding: the two byte kinds, and text push by push."""

import json

from hypothesis import strategies as st

from tests.tokenizers_for_tests import BF, BL, byte_fallback_decoder, load
from tokend_server.engine.decoding import TextDecoder, build_decoder
from tokend_server.engine.vocabulary import Vocabulary

BYTES = st.lists(
    st.integers(0, 255) | st.sampled_from([0xED, 0xA0, 0xBF, 0xE4, 0xBD, 0xF0, 0x9F, 0xF4, 0x90])
)
"""Byte values, many of them at the edges of UTF-8."""


def decoder_for(file: str) -> TextDecoder:
    tokenizer, spec = load(file), json.loads(file)
    return build_decoder(tokenizer, spec, Vocabulary(tokenizer, spec))


BL_DECODER = decoder_for(BL())
BF_DECODER = decoder_for(BF())
GEMMA_DECODER = decoder_for(BF(decoder=byte_fallback_decoder(strip=False)))
"""BF without the Strip."""


def by_push(decoder, chunks, *, skip=True, hold=False, prompt=()):
    """The text of each push, and of the end."""
    sequence = decoder.open(skip_special_tokens=skip, hold_byte_runs=hold, prompt_ids=prompt)
    return [*(sequence.push(chunk) for chunk in chunks), sequence.finish()]


def one_each(ids):
    return [[token_id] for token_id in ids]


def byte_ids(data: bytes) -> list[int]:
    """Ids of BF's byte tokens."""
    return [3 + byte for byte in data]
