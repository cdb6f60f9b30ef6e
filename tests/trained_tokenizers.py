"""The two trained tokenizers of the mission, trained when a test first asks for one and kept for the session.

Both learn from text that is in the repository: `tests/data/english_russian.txt.xz` (licences beside it).
"""

import json
import lzma
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tokend_server.data.train_default import with_byte_ids

CORPUS = Path(__file__).with_name("data") / "english_russian.txt.xz"

ENGLISH_RUSSIAN_SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")
ENGLISH_RUSSIAN_SIZE = 16_000
"""Entries at most: the corpus has enough pairs of frequency 2 for all of them (a test says so)."""

SPROUT_SPECIALS = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>")
SPROUT_SIZE = 8_192
SPROUT_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def corpus() -> list[str]:
    """The lines of the committed English and Russian text."""
    return lzma.decompress(CORPUS.read_bytes()).decode("utf-8").splitlines()


def _replace(pattern: str, content: str) -> normalizers.Replace:
    return normalizers.Replace(Regex(pattern), content)


@cache
def english_russian() -> str:
    """Characters with `<unk>`: NFKC, one kind of quote and dash, single spaces, words with `▁`.

    Any character that the corpus lacks becomes `<unk>` (1); `<pad>`, `<bos>` and `<eos>` are 0, 2 and 3.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            _replace(r"\p{Mn}", ""),
            _replace("[«»„“”]", '"'),
            _replace("[‘’]", "'"),
            _replace("–", "—"),
            _replace(r"\s+-\s+", " — "),
            _replace(r"\s+", " "),
            normalizers.Strip(),
            normalizers.Prepend(" "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?\w+| ?[^\w\s]+"), "isolated"),
            pre_tokenizers.Metaspace(prepend_scheme="never", split=False),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(
        vocab_size=ENGLISH_RUSSIAN_SIZE,
        min_frequency=2,
        special_tokens=list(ENGLISH_RUSSIAN_SPECIALS),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer.to_str()


@cache
def sprout() -> str:
    """Bytes: ids 0..255 are the byte values, 256..8187 merges, 8188..8191 the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPROUT_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SPROUT_SIZE - len(SPROUT_SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    renumbered = Tokenizer.from_str(json.dumps(with_byte_ids(json.loads(tokenizer.to_str()))))
    renumbered.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in SPROUT_SPECIALS]
    )
    return renumbered.to_str()
