"""One tokenizer, compared whole: every law on fuzz, on real text and on ids of every sort."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tokend
from tests.equivalence import inputs
from tests.equivalence.decode_laws import DecodeLaws
from tests.equivalence.encode_laws import EncodeLaws
from tests.equivalence.reference import Reference
from tests.equivalence.served import Served, serving
from tests.equivalence.subjects import Subject
from tests.equivalence.tally import Tally

SEED = 20_261_129
UNKNOWN_BEYOND = 5
"""How far above the greatest id the unknown ids are that are mixed in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """How much is compared."""

    n_fuzz: int
    n_excerpts: int
    """Of each language."""
    longest: int = 400
    """Characters of an excerpt."""
    long_runs: bool = False


SHARE = Size(n_fuzz=150, n_excerpts=1, longest=200)
"""For CI."""
WHOLE = Size(n_fuzz=1_000, n_excerpts=4, longest=600, long_runs=True)
SMALL_SHARE = Size(n_fuzz=80, n_excerpts=0)
SMALL_WHOLE = Size(n_fuzz=800, n_excerpts=0)


@dataclass(kw_only=True, slots=True)
class Outcome:
    """What came of it."""

    subject: Subject
    tally: Tally
    info: tokend.TokenizerInfo
    n_changed: int
    """Texts that encode-then-decode changes."""
    n_texts: int
    seconds: float


def compare(subject: Subject, size: Size, folder: Path, seed: int = SEED) -> Outcome:
    """Serve one tokenizer and compare it with the reference."""
    start = time.monotonic()
    tally = Tally()
    with serving(subject.source(), folder) as served:
        texts = texts_for(served.reference, size, seed)
        n_changed = check_texts(served, tally, texts, random.Random(seed))
        return Outcome(
            subject=subject,
            tally=tally,
            info=served.info,
            n_changed=n_changed,
            n_texts=len(texts),
            seconds=time.monotonic() - start,
        )


def texts_for(reference: Reference, size: Size, seed: int) -> list[str]:
    """Fuzz with the file's own tokens in it, excerpts of real text, and long runs."""
    return [
        *inputs.fuzz_texts(seed, size.n_fuzz, named_tokens(reference)),
        *(inputs.excerpts(seed, size.n_excerpts, size.longest) if size.n_excerpts else ()),
        *(inputs.long_texts() if size.long_runs else ()),
    ]


def named_tokens(reference: Reference) -> list[str]:
    """Added tokens to put into texts: the control tokens first, and a share of the others."""
    others = [content for content in reference.added if content not in reference.control]
    return [*reference.control][:40] + random.Random(len(others)).sample(others, min(20, len(others)))


def check_texts(served: Served, tally: Tally, texts: Sequence[str], rng: random.Random) -> int:
    """Every law of encoding on the texts, and every law of decoding on their ids and on others.

    Returns:
        How many texts came back changed.
    """
    EncodeLaws(served, tally).check(texts, rng)
    laws = DecodeLaws(served, tally)
    n_changed = laws.texts(texts)
    laws.check(id_lists(served.reference, texts, rng), rng)
    return n_changed


def id_lists(reference: Reference, texts: Sequence[str], rng: random.Random) -> list[list[int]]:
    """The ids of the texts, spoiled and whole, and as many lists of random ids, unknown ones among them."""
    encoded = [encoding.ids for encoding in reference.tokenizer.encode_batch(texts)]
    found = [*map(reference.known_ids[-1].__add__, range(1, UNKNOWN_BEYOND))]
    pools = [reference.known_ids, reference.special_ids, [*reference.byte_ids], reference.partial_ids, found]
    pools = [pool for pool in pools if pool]
    return [
        *(inputs.spoiled_ids(rng, ids, reference.special_ids) for ids in encoded),
        *(ids for ids in encoded[::4] if len(ids) < 5_000),
        *(inputs.random_ids(rng, pools, rng.randint(0, 60)) for _ in texts),
    ]
