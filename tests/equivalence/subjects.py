"""The tokenizers that are compared: the zoo, the two trained ones, the embedded default, the small ones."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.tokenizers_for_tests import (
    BF,
    BFM,
    BL,
    BLO,
    WP,
    added_token,
    bpe_without_unk,
    byte_fallback_bpe,
    byte_level_bpe,
    ctc,
    metaspace_words,
    suffix_bpe,
    unigram,
    word_level,
    word_level_with_rewriting_decoder,
)
from tests.trained_tokenizers import english_russian, sprout
from tests.zoo import catalogue as zoo
from tokend_server.data import default_tokenizer_path


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One tokenizer to compare; `source` gives the path of its file, or its text."""

    name: str
    model: str
    source: Callable[[], Path | str]
    fast: bool = False
    """Served by the fast engine, by a verdict that excludes nothing."""


def from_zoo(name: str) -> Subject:
    return Subject(name=name, model=zoo.ENTRIES[name].model, source=lambda: zoo.require(name))


def by_the_fast_engine(subject: Subject) -> Subject:
    """The same tokenizer; `test_fast_engine` verifies that nothing is to be excluded."""
    return replace(subject, name=f"{subject.name}, fast engine", fast=True)


CORE = tuple(map(from_zoo, zoo.names("core")))
ZOO = tuple(map(from_zoo, zoo.names()))
TRAINED = (
    Subject(
        name="english-russian", model="characters with `<unk>`, trained in the tests", source=english_russian
    ),
    Subject(name="sprout", model="bytes, 8,192 ids, trained in the tests", source=sprout),
    Subject(name="default", model="the embedded default", source=default_tokenizer_path),
)

# Added tokens with every flag, special or not, some with letters of the byte alphabet, one inside another.
_FLAGGED = [
    added_token(262, "<|bos|>"),
    added_token(263, "<l>", lstrip=True),
    added_token(264, "<r>", rstrip=True, special=False),
    added_token(265, "word", single_word=True, special=False),
    added_token(266, "Norm", normalized=True),
    added_token(267, "<|bos|>x", special=False, normalized=False),
    added_token(268, "<|both|>", lstrip=True, rstrip=True, special=False),
]
_LOWER = {"type": "Lowercase"}
SMALL_FILES: dict[str, Callable[[], str]] = {
    "BL": BL,
    "BL, no post-processor": lambda: byte_level_bpe(post=False),
    "BL, NFC": lambda: byte_level_bpe(normalizer={"type": "NFC"}),
    "BL, Lowercase, flagged tokens": lambda: byte_level_bpe(added=_FLAGGED, normalizer=_LOWER),
    "BL, flagged tokens": lambda: byte_level_bpe(added=_FLAGGED, post=False),
    "BL, prefix space, trimmed offsets": lambda: byte_level_bpe(add_prefix_space=True, trim_offsets=True),
    "BL, ignore_merges reaches a special token": lambda: byte_level_bpe(
        ignore_merges=True,
        extra_vocab=["hello", "<|bos|>", "Ġworld"],
        added=[added_token(263, "<|bos|>"), added_token(265, "<|end|>")],
        post=False,
    ),
    "BL, no regex": lambda: byte_level_bpe(use_regex=False),
    "BLO": BLO,
    "BF": BF,
    "BFM": BFM,
    "BF, a merge makes a special token": lambda: byte_fallback_bpe(
        extra_merges=[("a", "b")],
        added=[added_token(0, "<unk>"), added_token(1, "<s>"), added_token(288, "ab")],
    ),
    "WP": WP,
    "WP, no cleanup": lambda: WP(cleanup=False),
    "Unigram": unigram,
    "Unigram, byte fallback": lambda: unigram(byte_fallback=True),
    "suffix": suffix_bpe,
    "CTC": ctc,
    "Metaspace always": metaspace_words,
    "Metaspace first": lambda: metaspace_words("first"),
    "Metaspace never": lambda: metaspace_words("never"),
    "words": word_level,
    "words, special": lambda: word_level(added=[added_token(0, "[UNK]"), added_token(2, "b")]),
    "words, a decoder that rewrites": word_level_with_rewriting_decoder,
    "BPE without unk": bpe_without_unk,
}
SMALL = tuple(Subject(name=name, model="small", source=build) for name, build in SMALL_FILES.items())


def is_full() -> bool:
    """Whether everything is asked for (`make zoo-full`), not the share that CI has time for."""
    return os.environ.get("TOKEND_ZOO_SET") == "full"


def chosen() -> tuple[Subject, ...]:
    """The real and the trained ones of this run."""
    return (*(ZOO if is_full() else CORE), *TRAINED)
