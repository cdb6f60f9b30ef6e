"""tiktoken's own engine on the zoo's vocabularies, without a network."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tiktoken

from tests.equivalence.comparison import SEED, Size, texts_for
from tests.equivalence.reference import BYTE_OF_LETTER, Reference
from tests.equivalence.served import serving
from tests.equivalence.subjects import Subject
from tests.equivalence.tally import Tally
from tests.zoo import catalogue as zoo

NAMES = ("gpt2", "cl100k", "o200k")
# As tiktoken has it for GPT-2; its own loader of that vocabulary wants the network.
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
RANK_FILES = {"cl100k": "cl100k_base", "o200k": "o200k_base"}


def engine(name: str, reference: Reference) -> tiktoken.Encoding:
    """tiktoken for gpt2, cl100k or o200k; skips where the rank files are not there."""
    if name in RANK_FILES:
        with _cache(str(zoo.require("tiktoken-ranks"))):
            return tiktoken.get_encoding(RANK_FILES[name])
    special = {content: entry["id"] for content, entry in reference.added.items()}
    vocab = reference.spec["model"]["vocab"]
    ranks = {
        bytes(BYTE_OF_LETTER[letter] for letter in string): token_id
        for string, token_id in vocab.items()
        if string not in special
    }
    return tiktoken.Encoding(
        name=name,
        pat_str=GPT2_PATTERN,
        mergeable_ranks=ranks,
        special_tokens=special,
        explicit_n_vocab=50_257,
    )


@contextmanager
def _cache(folder: str) -> Iterator[None]:
    before = os.environ.get("TIKTOKEN_CACHE_DIR")
    os.environ["TIKTOKEN_CACHE_DIR"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["TIKTOKEN_CACHE_DIR"]
        else:
            os.environ["TIKTOKEN_CACHE_DIR"] = before


def compare_with_tiktoken(subject: Subject, size: Size, folder: Path) -> Tally:
    """The service's ids under TEXT and PARSE against tiktoken's ordinary and special ones."""
    tally = Tally()
    with serving(subject.source(), folder) as served:
        other = engine(subject.name, served.reference)
        # Other specials than tiktoken's would stand in the way of PARSE, not of TEXT.
        assert other.special_tokens_set == set(served.reference.added)
        texts = texts_for(served.reference, size, SEED)
        tally.n_strings += len(texts)
        ways = (
            ("TEXT", other.encode_ordinary_batch(texts)),
            ("PARSE", other.encode_batch(texts, allowed_special="all")),
        )
        for policy, expected in ways:
            answers = served.client.encode_batch(texts, special_tokens=policy, add_special_tokens=False)
            for text, ids, got in zip(texts, expected, answers, strict=True):
                tally.n_ids += len(ids)
                tally.same(f"tiktoken, {policy}", text, ids, got.ids)
    return tally
