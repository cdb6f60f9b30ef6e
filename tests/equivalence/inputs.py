"""Texts and ids that hurt: a seeded generator for the real files, strategies of hypothesis for the small ones.

Every text is a row of pieces, and each kind of piece is there because tokenizers were seen to differ on it.
"""

import random
from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from tests.zoo.texts import texts as texts_by_language

COMBINING = ("\u0301", "\u0308", "\u0323", "\u20dd", "\u0489", "\u3099", "\u093c", "\u064b", "\u1ab0")
WHITE_SPACE = (
    *(chr(n) for n in (0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x1C, 0x1D, 0x1E, 0x1F, 0x20, 0x85, 0xA0, 0x1680)),
    *(chr(n) for n in range(0x2000, 0x200B)),
    *("\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\r\n", "\n\n", "  ", " \n", "\t\t", "   \n  "),
)
INVISIBLE = (
    "\u200b",
    "\u200c",
    "\u200d",
    "\u2060",
    "\ufeff",
    "\u180e",
    "\u00ad",
    "\ufe0f",
    "\u034f",
    "\u115f",
)
DIRECTIONS = ("\u200e", "\u200f", "\u202b", "\u202c", "\u202e", "\u2067", "\u2069", "\u061c")
CONTROLS = ("\x00", "\x01", "\x07", "\x08", "\x1b[0m", "\x7f", "\x80", "\x9f", "\x00\x00\x00")
EMOJI = (
    *(
        "🙂",
        "👍🏽",
        "👨\u200d👩\u200d👧\u200d👦",
        "🏳\ufe0f\u200d🌈",
        "🇩🇪🇫🇷",
        "1\ufe0f\u20e3",
        "❤\ufe0f",
        "🧑🏿\u200d🚀",
        "☺",
        "🫠",
    ),
    *("👩🏻\u200d❤\ufe0f\u200d💋\u200d👨🏾", "🏴\U000e0067\U000e0062\U000e007f", "\u200d👧", "🏽", "🇩"),
)
RIGHT_TO_LEFT = ("שלום", "עִבְרִית", "مرحبا", "العَرَبِيّة", "۱۲۳", "פ\u05b0", "ﷺ", "ܫܠܡܐ")
SCRIPTS = (
    *(
        "naïve",
        "Straße",
        "ǅ",
        "ŉ",
        "ﬁﬂ",
        "Ｗｉｄｅ",
        "½²ⅷ",
        "Ωmega",
        "Привет",
        "ёЁ",
        "日本語",
        "漢字かな",
        "カﾞ",
        "한국어",
    ),
    *(
        "\u1112\u1161\u11ab",
        "ไทย",
        "हिन्दी",
        "தமிழ்",
        "မြန်မာ",
        "ქართული",
        "አማርኛ",
        "ᎣᏏᏲ",
        "𝔘𝔫𝔦",
        "𒀀𒁀",
        "İıſK",
        "Å",
    ),
)
CONTRACTIONS = tuple(
    mark + ending
    for mark in ("'", "\u2019", " '", "n'")
    for ending in (
        "s",
        "S",
        "\u017f",
        "t",
        "T",
        "re",
        "Re",
        "RE",
        "ve",
        "vE",
        "m",
        "d",
        "D",
        "ll",
        "Ll",
        "LL",
        "x",
    )
)
DIGITS = ("0", "7", "12", "345", "1234567", "3.14", "1,000", "٣٤", "१२३", "Ⅳ", "²³", "𝟙𝟚", "0x1F", "1e-9")
MARKS = (
    *(
        "▁",
        "▁▁",
        " ▁",
        "▁ ",
        "▁a",
        "a▁b",
        "▁▁▁▁▁",
        "\u2581\u0301",
        "Ġ",
        "Ċ",
        "Ġthe",
        "</w>",
        "a</w>",
        "##",
        "##ing",
        "Ö",
        "Ń",
    ),
    *(
        "<0x41>",
        "<0xE4><0xBD><0xA0>",
        "<0xFF>",
        "<0x0a>",
        "<0x+A>",
        "<0x4",
        "0x41>",
        "<0x>",
        "<unk>",
        "<s>",
        "[UNK]",
    ),
)
ODD = (
    "\ufffd",
    "\ufffd\ufffd",
    "\ufffe",
    "\uffff",
    "\ue000",
    "\u0378",
    "\U0001fbff",
    "\U000e1000",
    "\U0010ffff",
    "\ufdd0",
)
CODE = (
    *(
        "def f(x):\n    return x\n",
        "{'a': [1, 2]}",
        "https://ex.org/a?b=c&d#e",
        "a_b-c.d/e\\f",
        '<div class="x">',
        "!=",
        "->",
    ),
    *(
        "::",
        "();",
        "...",
        "…",
        "!!!",
        "```py\n",
        "#\t",
        "$x+=1;",
        "@@",
        "--",
        "~/.a",
        "%20",
        "/* */",
        "\\n",
        "«—»",
        "??",
    ),
)
WORDS = (
    "the",
    "The",
    "THE",
    "hello",
    "world",
    "don",
    "I",
    "a",
    "strawberry",
    "lower",
    "newer",
    "hi",
    "cafe",
    "x",
    "camelCase",
)
KINDS = (
    *(
        WORDS,
        WORDS,
        COMBINING,
        WHITE_SPACE,
        WHITE_SPACE,
        INVISIBLE,
        DIRECTIONS,
        CONTROLS,
        EMOJI,
        RIGHT_TO_LEFT,
    ),
    *(SCRIPTS, SCRIPTS, CONTRACTIONS, DIGITS, MARKS, ODD, CODE),
)
ALL_PIECES = tuple(sorted({piece for kind in KINDS for piece in kind}))


def _any_character(rng: random.Random) -> str:
    # Half of them where the scripts are, the rest anywhere: unassigned, private, beyond the first plane.
    number = rng.randrange(0x3000) if rng.random() < 0.5 else rng.randrange(0x110000)
    return "\ufffd" if 0xD800 <= number < 0xE000 else chr(number)


def special_piece(rng: random.Random, specials: Sequence[str]) -> str:
    """A special token's string: whole, cut at either end, in another case, inside another one, among spaces."""
    token = rng.choice(specials)
    cut = rng.randrange(len(token) + 1)
    other = rng.choice(specials)
    return rng.choice(
        (
            *(token, token, token, token + token, f" {token} ", f"\n{token}\n", f"a{token}b", f"  {token}  "),
            *(token[:cut], token[cut:], token[:cut] + " " + token[cut:], token.upper(), token.swapcase()),
            *(token[:cut] + other + token[cut:], token + other, token[:cut] + "\u0301" + token[cut:]),
        )
    )


def fuzz_text(rng: random.Random, specials: Sequence[str], longest_run: int = 400) -> str:
    """One text of 0 to about 20 pieces."""
    pieces = []
    for _ in range(rng.choice((0, 1, 1, 2, 3, 3, 5, 8, 12, 20))):
        chance = rng.random()
        if chance < 0.12 and specials:
            pieces.append(special_piece(rng, specials))
        elif chance < 0.2:
            pieces.append("".join(_any_character(rng) for _ in range(rng.randint(1, 6))))
        elif chance < 0.24:
            pieces.append(rng.choice(rng.choice(KINDS))[:1] * rng.randint(2, longest_run))
        else:
            pieces.append(rng.choice(rng.choice(KINDS)))
            if rng.random() < 0.3:
                pieces.append(" ")
    return "".join(pieces)


def fuzz_texts(seed: int, n_texts: int, specials: Sequence[str]) -> list[str]:
    """Texts from one seed: the same ones each time, all of them different."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < n_texts:
        found[fuzz_text(rng, specials)] = None
    return list(found)


def long_texts() -> list[str]:
    """Long runs, for what costs more than linear time or overflows."""
    return [
        *(
            character * 20_000
            for character in ("a", " ", "\n", "0", "é", "漢", "🙂", "\x00", "!", "▁", "\u0301")
        ),
        *(
            "ab" * 10_000,
            "a " * 10_000,
            " a" * 10_000,
            "'s" * 5_000,
            "\r\n" * 5_000,
            "<|" * 5_000,
            "<s>" * 3_000,
        ),
    ]


def excerpts(seed: int, n_each: int, longest: int) -> list[str]:
    """Pieces of real text: `n_each` of every language, of source code and of emoji, cut anywhere."""
    rng = random.Random(seed)
    found = []
    for _, text in sorted(texts_by_language().items()):
        for _ in range(n_each):
            start = rng.randrange(len(text))
            found.append(text[start : start + rng.randint(20, longest)])
    return found


def random_ids(rng: random.Random, pools: Sequence[Sequence[int]], n_ids: int) -> list[int]:
    """Ids drawn from pools (known, special, byte tokens, ...), in stretches of one pool each."""
    ids: list[int] = []
    while len(ids) < n_ids:
        pool = rng.choice(pools)
        ids += [rng.choice(pool) for _ in range(rng.randint(1, 6))]
    return ids[:n_ids]


def spoiled_ids(rng: random.Random, ids: Sequence[int], specials: Sequence[int]) -> list[int]:
    """The ids of a text, cut at both ends and sometimes with a special one or a gap inside."""
    start = rng.randrange(len(ids) + 1)
    spoiled = list(ids[start : start + rng.randint(0, 200)])
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(spoiled) + 1)
        spoiled[at : at + rng.randrange(2)] = (
            [rng.choice(specials)] if specials and rng.random() < 0.6 else []
        )
    return spoiled


def chunks(rng: random.Random, ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """The ids in pieces: one by one, in small or large pieces, now and then an empty one."""
    at, largest = 0, rng.choice((1, 1, 2, 5, 50))
    while at < len(ids):
        size = 0 if rng.random() < 0.05 else rng.randint(1, largest)
        yield ids[at : at + size]
        at += size


def text_strategy(specials: Sequence[str]) -> st.SearchStrategy[str]:
    """Texts of the same pieces and of any characters, which hypothesis can make small again."""
    cuts = sorted({token[:n] for token in specials for n in (1, 2, len(token) - 1, len(token))} - {""})
    piece = st.one_of(
        st.sampled_from(ALL_PIECES),
        st.sampled_from(cuts or ["<"]),
        st.text(max_size=4),
        st.builds(lambda piece, n: piece * n, st.sampled_from(ALL_PIECES), st.integers(2, 40)),
    )
    return st.lists(piece, max_size=8).map("".join)
