"""Every code point of Unicode, in contexts in which a tokenizer may treat it differently."""

import unicodedata
from collections.abc import Iterator, Sequence

__all__ = ["RICH_CODE_POINTS", "alone", "code_points", "groups", "plain_probe", "rich_probe", "whitespace"]

_SURROGATES = range(0xD800, 0xE000)
RICH_CODE_POINTS = (range(0x20000), range(0xE0000, 0xE1000))
"""Those that also get the contexts of `rich_probe`: the planes of letters and signs, and the tags."""

_GROUP = 128


def code_points(ranges: Sequence[range] = (range(0x110000),)) -> Iterator[int]:
    """Yields the code points of some ranges that can stand in a text, so all but the surrogates."""
    for some in ranges:
        yield from (code_point for code_point in some if code_point not in _SURROGATES)


def groups(ranges: Sequence[range] = (range(0x110000),)) -> Iterator[list[int]]:
    """Yields code points by the group, as many as fill a text that is long for an engine."""
    group: list[int] = []
    for code_point in code_points(ranges):
        group.append(code_point)
        if len(group) == _GROUP:
            yield group
            group = []
    if group:
        yield group


def alone(code_point: int) -> str:
    """Returns the code point as a whole text: at its start and at its end."""
    return chr(code_point)


def plain_probe(code_point: int) -> str:
    """Returns it next to a letter, a space, a digit, an apostrophe and itself."""
    c = chr(code_point)
    return f"a{c}a {c} 1{c}1 '{c}' {c}{c}"


def rich_probe(code_point: int) -> str:
    """Returns it next to contractions, other scripts, marks, punctuation and every common kind of white space."""
    c = chr(code_point)
    return (
        f"{c}'s A{c}b é{c}é 中{c}中 '{c}{c}s {c}'ll .{c}. {c}1{c} \t{c}\t  {c}  {c}\u0301{c} "  # noqa: RUF001 (on purpose)
        f"\r\n{c}\n\n{c}\u200d{c} ({c}) /{c}/ B{c}B \u00a0{c}\u00a0 ★{c}★ {c}{c}{c}{c}"
    )


def whitespace() -> list[str]:
    """Returns what an added token with `lstrip` or `rstrip` may take along, and what looks like it."""
    return [
        chr(code_point)
        for code_point in code_points((range(0x3100), range(0xFE00, 0x10000)))
        if unicodedata.category(chr(code_point)) in {"Zs", "Zl", "Zp", "Cc", "Cf"}
    ]
