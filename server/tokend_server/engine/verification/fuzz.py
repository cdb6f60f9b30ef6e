"""Strings that trip tokenizers over, made of fragments by a seeded generator."""

import random
from collections.abc import Iterator, Sequence

__all__ = ["aligned", "fuzz_strings", "runs"]

# fmt: off
_APOSTROPHES = ("'", "’", "ʼ")
_ENDINGS = ("s", "S", "t", "T", "re", "RE", "rE", "ve", "Ve", "m", "M", "ll", "lL", "LL", "d", "D", "\u017f", "x")
_CONTRACTIONS = [apostrophe + ending for apostrophe in _APOSTROPHES for ending in _ENDINGS]
_SPACES = (
    " ", "  ", "   ", "\t", "\n", "\r", "\r\n", "\n\n", " \n", "\n ", "\v", "\f", "\u0085", "\u00a0", "\u1680",
    "\u180e", "\u2000", "\u2003", "\u2009", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff",
)
_SIGNS = (
    "!", "?", ".", ",", "...", "…", "/", "//", "\\", "-", "--", "—", "_", "(", ")", "[", "]", "{", "}", "<", ">", "#",
    "##", "@", "$", "%", "&", "*", "+", "=", "==", "~", "`", '"', "'", "^", "|", ";", ":", "·", "«", "▁", "▁▁", " ▁",
    "Ġ", "Ċ", "</w>", "\x00", "\x01", "\x7f", "\ufffd", "\ue000", "\U0010ffff", "\ufffe",
)
_NUMBERS = ("0", "1", "12", "123", "1234", "1234567", "3.14", "1e9", "٣٤", "१२३", "²", "½", "Ⅷ", "①", "0x41", "1,000")
_WORDS = (
    "a", "I", "the", " the", "Hello", "WORLD", "camelCase", "HTTPServer", "naïve", "café", "e\u0301", "a\u0308o\u0308",
    "don't", "İstanbul", "straße", "ﬁne", "ǅ", "ʰ", "Привет", "Ёлка", "γειά", "ς", "שלום", "مرحبا", "नमस्ते", "สวัสดี",
    "日本語", "ひらがな", "カタカナ", "한국어", "\u1112\u1161\u11ab", "中文", "𠮷", "ქართული", "አማርኛ", "ខ្មែរ", "བོད", "မြန်မာ",
    "𝔘𝔫𝔦", "Ｗｉｄｅ",
)
_PICTURES = (
    "🙂", "👍🏽", "👨\u200d👩\u200d👧", "🇩🇪", "❤\ufe0f", "1\ufe0f\u20e3", "☃", "🏴\U000e0067\U000e0062\U000e007f", "♥",
    "\u0301", "\u0300\u0301", "\u200d", "\u200c", "\u202e", "\u2066", "\u20dd", "\u0e33", "\u093f", "\U000e0101",
)
_BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in (0, 0x0A, 0x20, 0x41, 0x7F, 0x80, 0xC3, 0xE2, 0xF0, 0xFF))
_CUT_TOKENS = ("<0x", "<0x4", "x41>", "<s", "s>", "[", "]", "<unk", "▁<", "<|", "|>")
_RUNS = (
    " ", "\n", "\r\n", "\t", "\u00a0", "a", "A", "aB", "Ab ", "1", "12 ", "é", "中", "中1", "!", "!a", "'s", "' ", "…",
    "🙂", "\u0301", "e\u0301", "▁", "\x00", "ab1 ", "-", "/", "Б", "ば", "한", " \n", "\n ", "=\n", "0x",
)
# fmt: on
_RUN_LENGTHS = (2, 3, 7, 16, 31, 63, 64, 65, 200, 1023, 1025, 3000)

_SENTENCE = (
    "The quick brown fox jumps over 12 lazy dogs, and they don't mind; see https://a.bc/d?e=1 (or not). " * 2
)
_INSERTS = ("é", "'s", "'\u017f", "\n", "  ", "中", "7", "🙂", "\u0301", "A", "\x00", "/", "\u00a0", "<")
# Where a character that no list foresees is taken from: mostly from the blocks that text is written in.
_BLOCK_ENDS = ((0, 0x250), (0, 0x3100), (0, 0xD800), (0x1E000, 0x20000))


def fuzz_strings(n: int, *, literals: Sequence[str], words: Sequence[str], seed: int) -> Iterator[str]:
    """Yields strings of one fragment to some dozens; the same arguments give the same strings.

    Args:
        n: How many.
        literals: Contents of added tokens: they come whole, cut, and glued to other text.
        words: Words of the vocabulary.
        seed: Of the generator.
    """
    rng = random.Random(seed)  # noqa: S311 (the same strings each time are the point)
    pools: list[Sequence[str]] = [
        *(_CONTRACTIONS, _SPACES, _SIGNS, _NUMBERS, _WORDS, _PICTURES, _BYTE_TOKENS, _CUT_TOKENS)
    ]
    weights = [3, 5, 4, 3, 5, 3, 1, 1]
    if words:
        pools.append(words)
        weights.append(8)
    if literals:
        pools.append(literals)
        weights.append(2)
    for _ in range(n):
        length = rng.choice((1, 2, 2, 3, 3, 4, 5, 6, 8, 12, 20, 40))
        pieces = [_piece(rng, rng.choices(pools, weights)[0]) for _ in range(length)]
        yield "".join(pieces)


def _piece(rng: random.Random, pool: Sequence[str]) -> str:
    fragment = rng.choice(pool)
    chance = rng.random()
    if chance < 0.05:
        return fragment[: rng.randint(0, len(fragment))]
    if chance < 0.1:
        return fragment[rng.randint(0, len(fragment)) :]
    if chance < 0.13:
        return fragment.swapcase()
    if chance < 0.16:
        return fragment * rng.randint(2, 9)
    if chance < 0.22:
        other = chr(rng.randrange(*rng.choice(_BLOCK_ENDS)))
        return other if rng.random() < 0.5 else fragment + other
    return fragment


def runs() -> Iterator[str]:
    """Yields long runs of one thing, around the lengths at which engines change their ways, alone and in a text."""
    for unit in _RUNS:
        for length in _RUN_LENGTHS:
            run = (unit * (length // len(unit) + 1))[:length]
            yield run
            yield f"a {run} b.\n"


def aligned() -> Iterator[str]:
    """Yields ASCII text with something else at every place: engines read it by blocks of 64 bytes."""
    for place in range(140):
        for insert in _INSERTS:
            yield _SENTENCE[:place] + insert + _SENTENCE[place:]
