"""Running text: in many scripts from letters of Unicode's blocks, in the vocabulary's own words, and source code.

No network and no packages: everything is made here, or found in the standard library.
"""

import os
import random
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["documents", "script_names", "shared_starts"]

_SCRIPTS = {
    "latin": "a-z A-Z",
    "western": "a-z à-ö ø-ÿ",
    "central european": "a-z ā-ž",
    "vietnamese": "a-z ạ-ỹ",
    "ipa": "ɐ-ʯ",
    "greek": "α-ω ά-ώ Α-Ω",
    "polytonic greek": "ἀ-ῼ",
    "russian": "а-я А-Я",
    "cyrillic": "а-џ ґ-ӿ",
    "armenian": "ա-և",
    "georgian": "ა-ჰ",
    "hebrew": "א-ת \u05b0-\u05bc",
    "arabic": "ا-ي \u064b-\u0652",
    "persian": "ا-ی",
    "syriac": "ܐ-ܬ",
    "thaana": "ހ-ޥ \u07a6-\u07b0",
    "hindi": "अ-ह \u093e-\u094d",
    "bengali": "অ-হ \u09be-\u09cd",
    "punjabi": "ਅ-ਹ \u0a3e-\u0a4d",
    "gujarati": "અ-હ \u0abe-\u0acd",
    "oriya": "ଅ-ହ \u0b3e-\u0b4d",
    "tamil": "அ-ஹ \u0bbe-\u0bcd",
    "telugu": "అ-హ \u0c3e-\u0c4d",
    "kannada": "ಅ-ಹ \u0cbe-\u0ccd",
    "malayalam": "അ-ഹ \u0d3e-\u0d4d",
    "sinhala": "අ-ෆ \u0dcf-\u0ddf",
    "thai": "ก-ฮ \u0e31-\u0e3a \u0e40-\u0e4e",
    "lao": "ກ-ຮ \u0eb0-\u0eb9 \u0ec0-\u0ecd",
    "tibetan": "ཀ-ཬ \u0f71-\u0f84",
    "burmese": "က-အ \u102b-\u103e",
    "khmer": "ក-អ \u17b6-\u17d3",
    "mongolian": "ᠠ-ᡂ",
    "amharic": "ሀ-ፚ",
    "cherokee": "Ꭰ-Ᏼ ꭰ-ꮿ",
    "inuktitut": "ᐁ-ᙶ",
    "hiragana": "ぁ-ん",
    "katakana": "ァ-ヶ",
    "chinese": "一-龥",
    "rare chinese": "㐀-䶿 𠀀-𠿿",
    "bopomofo": "ㄅ-ㄩ",
    "korean": "가-힣",
    "jamo": "ᄀ-ᇿ",
    "yi": "ꀀ-ꒌ",
    "javanese": "ꦄ-ꦲ \ua9b4-\ua9bd",
    "mathematical": "𝐀-𝟋",
    "full width": "！-ｚ",
    "half width": "ｦ-ﾟ",
    "symbols": "←-⇿ ∀-⋿ ■-◿ ☀-⛿ ✀-➿",
    "emoji": "🌀-🙏 🚀-🛅 🤐-🧿",
    "gothic": "𐌰-𐍊",
    "deseret": "𐐀-𐑏",
    "hieroglyphs": "𓀀-𓐮",
}
# Scripts that write words without spaces between them.
_JOINED = {
    "thai",
    "lao",
    "tibetan",
    "burmese",
    "khmer",
    "hiragana",
    "katakana",
    "chinese",
    "rare chinese",
    "yi",
}
_ENDINGS = {
    "chinese": "，。！？、", "rare chinese": "，。", "hiragana": "、。", "katakana": "、。「」", "hindi": "।,?", "bengali": "।,",
    "arabic": "،؟.", "persian": "،؟.", "greek": ".,;·", "armenian": "։,", "amharic": "።፣", "khmer": "។", "tibetan": "།་",
    "burmese": "။၊", "thai": " ",
}  # fmt: skip
_BYTES_A_SCRIPT = 24_000
_PIECE_CHARACTERS = (60, 200, 500, 1000, 2000, 4000)
_SOURCE_BYTES = 1_200_000
_OWN_WORDS = 220_000
_LARGE_CHARACTERS = (20_000, 70_000, 300_000, 900_000)


def script_names() -> tuple[str, ...]:
    """Returns the names of the scripts that are written."""
    return tuple(_SCRIPTS)


def documents(words: Sequence[str], *, seed: int) -> Iterator[str]:
    """Yields texts of some dozens of characters to a million, 4 MB and more together.

    Args:
        words: Words of the vocabulary, commonest first.
        seed: Of the generator.
    """
    rng = random.Random(seed)  # noqa: S311 (the same texts each time are the point)
    parts = [_script_text(rng, name) for name in _SCRIPTS]
    parts.append(_own_text(rng, words))
    parts.extend(_sources())
    for part in parts:
        yield from _cut(rng, part)
    # Long texts are split at other places, over threads and in blocks: in one script, in many, without line ends.
    everything = "".join(parts)
    for length in _LARGE_CHARACTERS:
        start = rng.randrange(max(1, len(everything) - length))
        yield everything[start : start + length]
    mixed = "".join(rng.sample([part[:2000] for part in parts], len(parts)))
    yield mixed
    yield mixed.replace("\n", " ").replace("\r", " ")


def shared_starts(words: Sequence[str], *, seed: int) -> Iterator[str]:
    """Yields texts that begin alike and go on differently: an engine may remember what it has cut before."""
    rng = random.Random(seed)  # noqa: S311 (as above)
    start = _own_text(rng, words)[:9000] + _script_text(rng, "greek")[:3000]
    for _ in range(40):
        length = rng.randrange(len(start))
        yield (
            start[:length]
            + rng.choice(words or ("x",)) * 3
            + _script_text(rng, rng.choice(script_names()))[:300]
        )
        yield start[:length]


def _script_text(rng: random.Random, name: str) -> str:
    letters = _letters(_SCRIPTS[name])
    rng.shuffle(letters)
    # A script with thousands of letters uses a few hundred of them most of the time.
    common = letters[: max(12, len(letters) // 8)]
    endings = _ENDINGS.get(name, ".,!?;:")
    between = "" if name in _JOINED else " "
    pieces: list[str] = []
    n_bytes = 0
    while n_bytes < _BYTES_A_SCRIPT:
        pool = common if rng.random() < 0.7 else letters
        piece = "".join(rng.choices(pool, k=rng.randint(1, 9)))
        if rng.random() < 0.1:
            piece = piece.capitalize()
        piece += _after(rng, between, endings)
        pieces.append(piece)
        n_bytes += len(piece.encode())
    return "".join(pieces)


def _after(rng: random.Random, between: str, endings: str) -> str:
    chance = rng.random()
    if chance < 0.8:
        return between
    if chance < 0.92:
        return rng.choice(endings) + between
    if chance < 0.95:
        return "\n" * rng.randint(1, 3)
    if chance < 0.97:
        return f" {rng.randrange(10 ** rng.randint(1, 8))} "
    return rng.choice(("  ", "\t", " - ", " (", ") ", "…", '"', "\u00a0", "'", "'s ", "\r\n", "    "))


def _letters(ranges: str) -> list[str]:
    letters = []
    for pair in ranges.split():
        first, last = pair[0], pair[-1]
        letters += [chr(n) for n in range(ord(first), ord(last) + 1) if unicodedata.category(chr(n)) != "Cn"]
    return letters


def _own_text(rng: random.Random, words: Sequence[str]) -> str:
    """Writes the vocabulary's words, common ones more often: text in whatever the tokenizer was trained on."""
    if not words:
        return ""
    # Ids are given in the order in which merges were learned, so low ones are common.
    picked = [words[int(len(words) * rng.random() ** 3)] for _ in range(_OWN_WORDS)]
    return "".join(word + "\n" if rng.random() < 0.01 else word for word in picked)


def _sources() -> Iterator[str]:
    """Yields the standard library's own sources, where they are on this machine."""
    left = _SOURCE_BYTES
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        yield text[:60_000]
        left -= min(len(text), 60_000)
        if left < 0:
            return


def _cut(rng: random.Random, text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        length = rng.choice(_PIECE_CHARACTERS)
        yield text[start : start + length]
        start += length
