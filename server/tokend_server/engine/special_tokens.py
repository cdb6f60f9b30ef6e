"""Which strings of a text are control tokens, and whether a text may hold one.

The flag `special` of a tokenizer file alone does not protect users: DeepSeek-V3 marks `<｜User｜>` as not special.
So the control tokens, which TEXT keeps as text and REJECT refuses, are the special ones, the added ones that look
like `<|...|>` or `<｜...｜>`, and those that the operator names.
"""  # noqa: RUF002 (DeepSeek's full-width bar)

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import groupby
from types import MappingProxyType
from typing import Any

from tokend_server.engine.tokenizer_file import AddedTokenSpec, TokenizerFile
from tokend_server.errors import TokenizerFileError

__all__ = ["ControlTokens", "SpecialTokenPolicy", "TextFilter", "select_control_tokens"]

_LOOKS_LIKE_CONTROL = re.compile(r"<[|｜].+[|｜]>", re.DOTALL)  # noqa: RUF001 (DeepSeek's full-width bar)
_LOOKS_LIKE_MARKUP = re.compile(r"<.+>|\[.+\]", re.DOTALL)

# A search for literals that share their first character costs 0.7 ns a character, one for several first
# characters 5.6 ns; so there is one search for each first character, up to this many.
_MOST_SEARCHES = 8
_DEEPEST_GROUP = 40

_ASCII_KEEPERS = {"NFC", "NFD", "NFKC", "NFKD"}


class SpecialTokenPolicy(Enum):
    """What becomes of control tokens that stand in a text."""

    PARSE = auto()
    """They become ids, as by the reference's default."""
    TEXT = auto()
    """They stay text, and the answer counts them."""
    REJECT = auto()
    """They are refused, with the token and its position."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlTokens:
    """The control tokens of one file."""

    ids: Mapping[str, int]
    """The id of each control token, by its content, in the file's order."""
    left_out: tuple[str, ...]
    """Added tokens in angle or square brackets that are not control tokens: the start-up line names them."""


def select_control_tokens(file: TokenizerFile, more: Sequence[str] = ()) -> ControlTokens:
    """Selects the control tokens of a file.

    Args:
        file: The tokenizer file.
        more: What `--control-tokens` adds to the special ones and those that look like `<|...|>`. An item is the
            exact content of a token of the file, or `/PATTERN/`: a regular expression of Python that has to match
            the whole content of an added token. An exact item may also name a token of the model's vocabulary.

    Returns:
        The control tokens and the bracketed ones that are left out.

    Raises:
        TokenizerFileError: An item names no token of this file, or is no regular expression.
    """
    contents: dict[str, int] = {
        token.content: token.id
        for token in file.added_tokens
        if token.special or _LOOKS_LIKE_CONTROL.fullmatch(token.content)
    }
    for item in more:
        contents |= _named(file, item)
    left_out = tuple(
        token.content
        for token in file.added_tokens
        if token.content not in contents and _LOOKS_LIKE_MARKUP.fullmatch(token.content)
    )
    return ControlTokens(ids=MappingProxyType(contents), left_out=left_out)


def _named(file: TokenizerFile, item: str) -> dict[str, int]:
    token_id = file.id_of(item)
    if token_id is not None:
        return {item: token_id}
    if len(item) > 2 and item.startswith("/") and item.endswith("/"):
        try:
            pattern = re.compile(item[1:-1], re.DOTALL)
        except re.error as failure:
            raise TokenizerFileError(
                f"{file.path}: the control token pattern {item!r} is no regular expression: {failure}"
            ) from failure
        matches = {token.content: token.id for token in file.added_tokens if pattern.fullmatch(token.content)}
        if matches:
            return matches
        raise TokenizerFileError(f"{file.path}: no added token matches the control token pattern {item!r}")
    raise TokenizerFileError(f"{file.path}: the control token {item!r} is no token of this file")


class TextFilter:
    """Tells at almost no cost that a text holds no control token.

    It may say yes where the reference would parse none (a `single_word` token inside a word), never no where
    the reference's added tokens would match. It does not see strings that only the model's vocabulary reaches:
    those show in the ids.
    """

    __slots__ = ("_ascii_only", "_searches", "_sees_all")

    def __init__(
        self,
        contents: Collection[str],
        *,
        added_tokens: Iterable[AddedTokenSpec],
        normalizer: dict[str, Any] | None,
    ) -> None:
        """Compiles the searches.

        Args:
            contents: The strings to look for.
            added_tokens: The file's added tokens.
            normalizer: The file's normalizer; tokens with `normalized` are looked for in what it makes of the text.
        """
        normalized = [
            token.content for token in added_tokens if token.content in contents and token.normalized
        ]
        keeps_ascii, keeps_all = _what_stays(normalizer, normalized)
        self._sees_all = bool(normalized) and not keeps_ascii
        self._ascii_only = bool(normalized) and not keeps_all
        self._searches = list(_literal_searches(contents))

    def may_hold(self, text: str) -> bool:
        """Whether a control token may stand in the text; False for an empty one without control tokens."""
        if self._sees_all or (self._ascii_only and not text.isascii()):
            return True
        # A loop, since `any` over a generator costs more than the search of a short text.
        for start, search in self._searches:  # noqa: SIM110
            if start in text and search(text):
                return True
        return False


def _what_stays(normalizer: dict[str, Any] | None, contents: Sequence[str]) -> tuple[bool, bool]:
    """Whether these strings stand in the normalized text only where they stand in the text: ASCII text, any text."""
    if normalizer is None:
        return True, True
    kind = normalizer.get("type")
    if kind == "Sequence":
        steps = [_what_stays(step, contents) for step in normalizer.get("normalizers", [])]
        return all(ascii_stays for ascii_stays, _ in steps), all(stays for _, stays in steps)
    if kind in _ASCII_KEEPERS:
        return all(content.isascii() for content in contents), False
    if kind == "Prepend":
        changed = normalizer["prepend"]
    elif kind == "Replace" and normalizer["pattern"].get("String") and normalizer["content"]:
        changed = normalizer["pattern"]["String"] + normalizer["content"]
    else:
        return False, False
    stays = not any(set(changed) & set(content) for content in contents)
    return stays, stays


def _literal_searches(
    contents: Collection[str],
) -> Iterator[tuple[str, Callable[[str], re.Match[str] | None]]]:
    """Yields what a text has to hold before a search is worth its while, and the search."""
    by_first = [list(group) for _, group in groupby(sorted(contents), key=lambda content: content[:1])]
    if len(by_first) > _MOST_SEARCHES:
        by_first = [sorted(contents)]
    for group in by_first:
        # `in` is ten times as fast as a pattern, and most texts do not even hold the common start of the tokens.
        yield _common_start(group), re.compile(_any_of(group, 0)).search


def _common_start(contents: list[str]) -> str:
    """Returns what all sorted strings begin with: what the first and the last share."""
    first, last = contents[0], contents[-1]
    length = next(
        (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
    )
    return first[:length]


def _any_of(contents: list[str], depth: int) -> str:
    """Writes a pattern for sorted literals that shares their common starts, so that thousands stay fast."""
    start = _common_start(contents)
    rest = [content[len(start) :] for content in contents]
    # One of them ends here, so any text that comes this far holds one.
    if "" in rest:
        return re.escape(start)
    if depth == _DEEPEST_GROUP:
        return re.escape(start) + "(?:" + "|".join(map(re.escape, rest)) + ")"
    groups = [list(group) for _, group in groupby(rest, key=lambda content: content[0])]
    return re.escape(start) + "(?:" + "|".join(_any_of(group, depth + 1) for group in groups) + ")"
