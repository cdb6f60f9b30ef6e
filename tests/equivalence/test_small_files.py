"""hypothesis on the small files: it looks for texts and ids that break a law, and makes them small."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.equivalence.comparison import named_tokens
from tests.equivalence.decode_laws import DecodeLaws
from tests.equivalence.encode_laws import EncodeLaws
from tests.equivalence.inputs import text_strategy
from tests.equivalence.served import Served
from tests.equivalence.subjects import SMALL
from tests.equivalence.tally import Tally

EXAMPLES = 6
"""Of each law and file: a share for CI; `make fuzz` runs as long as it is told."""
SEEDS = st.integers(0, 2**32 - 1)


def check_encoding(served: Served, texts: list[str], seed: int, tally: Tally | None = None) -> None:
    """Every law of encoding, and that what comes back is what the verdict says."""
    tally = Tally() if tally is None else tally
    EncodeLaws(served, tally).check(texts, random.Random(seed))
    DecodeLaws(served, tally).texts(texts)
    tally.demand_none()


def check_decoding(served: Served, sequences: list[list[int]], seed: int, tally: Tally | None = None) -> None:
    """Every law of decoding."""
    tally = Tally() if tally is None else tally
    DecodeLaws(served, tally).check(sequences, random.Random(seed))
    tally.demand_none()


def texts_of(served: Served) -> st.SearchStrategy[list[str]]:
    return st.lists(text_strategy(named_tokens(served.reference)), min_size=1, max_size=5)


def ids_of(served: Served) -> st.SearchStrategy[list[list[int]]]:
    """Lists of ids: any, special ones, parts of characters, now and then one that is unknown."""
    reference = served.reference
    pools = (reference.known_ids, reference.special_ids, reference.partial_ids, [*reference.byte_ids])
    one = st.one_of(*(st.sampled_from(pool) for pool in pools if pool), st.just(reference.known_ids[-1] + 1))
    return st.lists(st.lists(one, max_size=30), min_size=1, max_size=6)


@pytest.mark.parametrize("subject", SMALL, ids=lambda subject: subject.name)
def test_any_text_gives_what_the_library_gives(subject, served_of):
    served = served_of(subject)

    @settings(max_examples=EXAMPLES)
    @given(texts=texts_of(served), seed=SEEDS)
    def law(texts, seed):
        check_encoding(served, texts, seed)

    law()


@pytest.mark.parametrize("subject", SMALL, ids=lambda subject: subject.name)
def test_any_ids_give_what_the_library_gives_streamed_or_not(subject, served_of):
    served = served_of(subject)

    @settings(max_examples=EXAMPLES * 2)
    @given(sequences=ids_of(served), seed=SEEDS)
    def law(sequences, seed):
        check_decoding(served, sequences, seed)

    law()
