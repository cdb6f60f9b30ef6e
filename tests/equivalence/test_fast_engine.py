"""The fast engine against the reference on the zoo's files and texts, as a server with a verdict uses it.

`TOKEND_ZOO_SET=full` verifies each file in full as well, which takes a minute a file.
"""

import os
from array import array
from itertools import chain

import pytest

from tests.engine.fast_for_tests import QUICK, Subject
from tests.zoo.catalogue import ENTRIES, names, require
from tests.zoo.texts import texts
from tokend_server.engine.encode_options import EncodeOptions
from tokend_server.engine.feature_gate import unsupported_feature
from tokend_server.engine.special_tokens import SpecialTokenPolicy
from tokend_server.engine.verification.fuzz import fuzz_strings
from tokend_server.engine.verification.run import FULL, run_verification

IS_FULL = os.environ.get("TOKEND_ZOO_SET") == "full"
CUTS = (40, 200, 2_000, 30_000)
CHARACTERS_A_LANGUAGE = 20_000 if not IS_FULL else 500_000


@pytest.fixture(
    scope="module", params=[name for name in names("full") if ENTRIES[name].set == "core" or IS_FULL]
)
def subject(request):
    made = Subject.of(require(request.param))
    reason = unsupported_feature(made.artifact.spec, made.reference)
    if reason is not None:
        pytest.skip(f"{request.param} stays on the reference: {reason}")
    return made


def pieces() -> list[str]:
    """Each language's text, cut into pieces of several lengths."""
    made = []
    for text in texts().values():
        start, n = 0, 0
        while start < min(len(text), CHARACTERS_A_LANGUAGE):
            made.append(text[start : start + CUTS[n % len(CUTS)]])
            start, n = start + CUTS[n % len(CUTS)], n + 1
    return made


@pytest.mark.parametrize("policy", [SpecialTokenPolicy.TEXT, SpecialTokenPolicy.PARSE])
@pytest.mark.parametrize("add", [True, False])
def test_packed_ids_of_text_in_many_languages_are_the_references(subject, policy, add):
    encoder, options = subject.encoder(), EncodeOptions(policy=policy, add_special_tokens=add)
    made = pieces()
    assert len(texts()) >= 12
    for start in range(0, len(made), 256):
        batch = made[start : start + 256]
        expected = [each.ids for each in subject.reference.encode(batch, None, options)]
        packed = encoder.encode_packed(batch, None, options)
        assert packed.packed_ids == array("I", chain.from_iterable(expected)).tobytes()
        assert packed.token_counts == list(map(len, expected))


def test_packed_ids_of_fuzz_strings_that_verification_has_not_seen_are_the_references(subject):
    encoder = subject.encoder()
    literals = [token.content for token in subject.artifact.added_tokens]
    batch = list(fuzz_strings(4_000, literals=literals, words=(), seed=int.from_bytes(os.urandom(4))))
    expected = [each.ids for each in subject.reference.encode(batch)]
    found = [each.ids for each in encoder.encode(batch)]
    wrong = [text for text, ids, other in zip(batch, expected, found, strict=True) if ids != other]
    assert not wrong


def test_verification_excludes_nothing_on_a_real_file(subject):
    outcome = run_verification(
        subject.artifact, subject.reference, subject.engine(), lambda _p, _s: None, FULL if IS_FULL else QUICK
    )
    assert (outcome.reason, outcome.excluded) == ("", frozenset())
