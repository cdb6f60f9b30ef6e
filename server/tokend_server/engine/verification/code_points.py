"""Every code point of Unicode, in contexts in which a tokenizer may treat it differently."""

import unicodedata
from collections.abc import Iterator, Sequence

__all__ = [
    "COMMON_CODE_POINTS",
    "OTHER_CODE_POINTS",
    "RICH_CODE_POINTS",
    "code_points",
    "groups",
    "plain_probe",
    "rich_probe",
    "whitespace",
]

_SURROGATES = range(0xD800, 0xE000)
RICH_CODE_POINTS = (range(0x3400), range(0xA000, 0xAC00), range(0xD7A4, 0x20000), range(0xE0000, 0xE1000))
"""Letters, marks, signs and tags of every sort: these get the contexts of `rich_probe`, and stand alone too."""
COMMON_CODE_POINTS = (range(0x3400, 0xA000), range(0xAC00, 0xD7A4), range(0x20000, 0x40000))
"""Ideographs and syllables of the same few kinds: these get the contexts of `plain_probe`, and stand alone too."""
OTHER_CODE_POINTS = (range(0x40000, 0xE0000), range(0xE1000, 0x110000))
"""What is private or not assigned: these get the contexts of `plain_probe`."""

_GROUP = 128


def code_points(ranges: Sequence[range]) -> Iterator[int]:
    """Yields the code points of some ranges that can stand in a text, so all but the surrogates."""
    for some in ranges:
        yield from (code_point for code_point in some if code_point not in _SURROGATES)


def groups(ranges: Sequence[range]) -> Iterator[list[int]]:
    """Yields code points by the group, as many as fill a text that is long for an engine."""
    group: list[int] = []
    for code_point in code_points(ranges):
        group.append(code_point)
        if len(group) == _GROUP:
            yield group
            group = []
    if group:
        yield group


def plain_probe(code_point: int) -> str:
    """Returns it next to a letter, a space, a digit, itself, and an apostrophe behind a letter."""
    c = chr(code_point)
    return f"a{c}1 {c}{c}a'{c}"


def rich_probe(code_point: int) -> str:
    """Returns it between letters, digits, itself, contractions, punctuation, marks, and white space of every kind."""
    c = chr(code_point)
    return (
        f"a{c}a {c} 1{c}1 '{c}' a'{c} A'{c}a {c}'s {c}'ll '{c}{c}s é{c}é 中{c}中 .{c}. {c}1{c} \t{c}\t  {c}  "
        f"{c}\u0301{c} \r\n{c}\n\n{c}\u200d{c} ({c}) /{c}/ A{c}B b{c}C \u00a0{c}\u00a0 ★{c}★ {c}{c}{c}{c}"
    )


def whitespace() -> list[str]:
    """Returns what an added token with `lstrip` or `rstrip` may take along, and what looks like it."""
    return [
        chr(code_point)
        for code_point in code_points((range(0x3100), range(0xFE00, 0x10000)))
        if unicodedata.category(chr(code_point)) in {"Zs", "Zl", "Zp", "Cc", "Cf"}
    ]
