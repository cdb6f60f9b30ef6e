"""Train the default tokenizer again, bit for bit: `python -m tokend_server.data.train_default [--check]`.

Byte-level BPE in the manner of GPT-4o: a Split by `PATTERN`, bytes as letters, no normalizer, so that any text
comes back from its ids exactly. Ids 0..255 are the byte values, then the merges in the order in which they
were learned, then the special tokens.

Source: Sennrich et al. 2016 (BPE); Radford et al. 2019 (byte level). The training itself is the library's.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tokend_server.data import default_tokenizer_path
from tokend_server.data.default_corpus import REPEATS, SOURCES, corpus
from tokend_server.data.packages import FetchError
from tokend_server.engine.byte_alphabet import byte_level_bytes

__all__ = ["PATTERN", "SPECIAL_TOKENS", "main", "train", "with_byte_ids"]

VOCABULARY_SIZE = 40_960
"""Ids in all, special tokens included."""

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|pad|>",
)

LONGEST_TOKEN = 32
"""Bytes; keeps rulers of dashes and indentation from filling the vocabulary."""

SIGN_RANGES = ((0x2010, 0x2027), (0x2030, 0x205E), (0x20A0, 0x20C0), (0x2190, 0x22FF), (0x2500, 0x25FF))
"""Code points of punctuation, money, arrows, mathematics, boxes and shapes: rare in the sources, so each is added."""

SIGN_REPEATS = 60

_UPPER = r"[\p{Lu}\p{Lt}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"  # letters without case too, and the marks that belong to them
# Spelled out instead of a case-insensitive group: engines disagree on whether that one takes U+017F for an s.
_CONTRACTION = r"(?:'(?:[sdmtSDMT]|ll|ve|re|LL|VE|RE)(?![\p{L}\p{M}]))?"
_START = r"[^\r\n\p{L}\p{M}\p{N}]?"  # one space, bracket, dot, ... goes with the word that follows

PATTERN = "|".join(
    [
        rf"{_START}{_UPPER}*{_LOWER}+{_CONTRACTION}",
        rf"{_START}{_UPPER}+{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
"""How text is cut before the merges; alternatives in order: words, numbers by three, signs, white space."""


def with_byte_ids(spec: dict[str, Any]) -> dict[str, Any]:
    """Renumber a trained byte-level BPE so that ids 0..255 are the byte values and merges follow from 256.

    The library numbers the byte alphabet by its letters. Merges are pairs of strings, ranked by their order, so
    a new numbering changes no segmentation.

    Args:
        spec: A tokenizer file, byte-level BPE with the whole alphabet, without added tokens.

    Returns:
        The same file with other ids; `spec` itself is left as it is.
    """
    old: dict[str, int] = spec["model"]["vocab"]
    # Tokens of one letter are the byte alphabet and nothing else; merges keep the order in which they came.
    letters = sorted((token for token in old if len(token) == 1), key=byte_level_bytes)
    longer = sorted((token for token in old if len(token) > 1), key=old.__getitem__)
    vocab = {token: token_id for token_id, token in enumerate([*letters, *longer])}
    return {**spec, "model": {**spec["model"], "vocab": vocab}}


def train(texts: dict[str, str]) -> str:
    """Train on the text of each language and return the tokenizer file, in its most compact form."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(SPECIAL_TOKENS),
        min_frequency=3,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=LONGEST_TOKEN,
        show_progress=False,
    )
    pieces = [text for language, text in texts.items() for _ in range(REPEATS.get(language, 1))]
    pieces += ["\n".join(f"{sign} {sign}{sign}" for sign in _signs())] * SIGN_REPEATS
    # In pieces of some lines: the library counts the words of a piece at a time.
    tokenizer.train_from_iterator((part for text in pieces for part in _parts(text)), trainer)
    renumbered = Tokenizer.from_str(json.dumps(with_byte_ids(json.loads(tokenizer.to_str()))))
    renumbered.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS]
    )
    return json.dumps(json.loads(renumbered.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n"


def _signs() -> list[str]:
    return [chr(code) for first, last in SIGN_RANGES for code in range(first, last + 1)]


def _parts(text: str, n_characters: int = 20_000) -> list[str]:
    parts, start = [], 0
    while start < len(text):
        end = text.find("\n", start + n_characters) + 1 or len(text)
        parts.append(text[start:end])
        start = end
    return parts


def sources_page(texts: dict[str, str], taken: Counter[str], made: str) -> str:
    """The record of what the tokenizer was made of, as `default/SOURCES.md`."""
    lines = [
        "# What the default tokenizer was trained on",
        "",
        "Written by `python -m tokend_server.data.train_default`; do not edit. No file of these packages is part of tokend:",
        "what is kept of them is which byte strings are frequent.",
        "",
        f"- `tokenizer.json`: {len(made.encode())} bytes, sha256 `{hashlib.sha256(made.encode()).hexdigest()}`",
        f"- made with: tokenizers {tokenizers.__version__}",
        "",
        "| package | version | licence | what is taken | bytes | sha256 of the package |",
        "|---|---|---|---|---|---|",
    ]
    for source in SOURCES:
        package = source.package
        row = [f"{package.registry} {package.name}", package.version, package.licence, source.what]
        lines.append("| " + " | ".join([*row, f"{taken[package.label]:,}", f"`{package.sha256}`"]) + " |")
    sizes = {language: len(text.encode()) for language, text in texts.items()}
    large = sorted((size, language) for language, size in sizes.items() if size >= 100_000)
    small = [language for language, size in sizes.items() if size < 100_000]
    lines += [
        "",
        f"{sum(sizes.values()):,} bytes in {len(sizes)} languages (code and emoji count as one each):",
        "",
    ]
    lines += ["| language | bytes | counted |", "|---|---|---|"]
    lines += [
        f"| {language} | {size:,} | {REPEATS.get(language, 1)} x |" for size, language in reversed(large)
    ]
    lines += ["", f"Less than 100,000 bytes each: {', '.join(small)}.", ""]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Train, then write the file and its record, or compare with what is there; 0 done, 1 different or failed."""
    parser = argparse.ArgumentParser(prog="python -m tokend_server.data.train_default", description=__doc__)
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "tokend-zoo", help="folder of the packages"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file would differ")
    options = parser.parse_args(arguments)
    try:
        texts, taken = corpus(options.cache)
    except FetchError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    made = train(texts)
    path = default_tokenizer_path()
    if options.check:
        same = path.read_text(encoding="utf-8") == made
        sys.stdout.write("identical\n" if same else "DIFFERENT\n")
        return 0 if same else 1
    path.write_text(made, encoding="utf-8")
    path.with_name("SOURCES.md").write_text(sources_page(texts, taken, made), encoding="utf-8")
    sys.stdout.write(f"{path}: {len(made.encode())} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
