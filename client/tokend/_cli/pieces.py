r"""How tokens look to people: the pieces of a text with their ids, coloured or listed.

A piece is what its token took from the text. Where a token holds only a part of a character it is the token's
bytes; what no token took (a normalizer or the truncation dropped it) is a piece without an id.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tokend.results import TokenInfo

__all__ = ["Piece", "coloured", "cut_pair", "cut_text", "listed", "quoted"]

_BACKGROUNDS = (153, 157, 223, 217, 183)
# Light ones of the 256 colours, each unlike its neighbours, under black letters.
_RESET = "\x1b[0m"
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}
_SIGNS = {" ": "·", "\n": "↵", "\t": "→", "\r": "␍"}
_LONGEST_GAP = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A token's share of the text, or a share that no token has."""

    id: int | None
    content: bytes
    """UTF-8, or a part of a character."""
    is_special: bool = False


def cut_text(text: str, tokens: Sequence[TokenInfo], offsets: Sequence[tuple[int, int]]) -> Iterator[Piece]:
    """Cuts one text into its tokens' pieces.

    Args:
        text: The text.
        tokens: What each id is, in the encoding's order.
        offsets: Where each token stands in the text, in code points.
    """
    covered = 0
    spans = [*offsets, (len(text), len(text))]
    for index, (token, (start, end)) in enumerate(zip(tokens, offsets, strict=True)):
        if start == end:
            # The post-processor's own, or a mark that stands for nothing in the text.
            yield _whole(token)
            continue
        own = token.token_bytes.decode("utf-8", "surrogateescape")
        next_start = next((s for s, e in spans[index + 1 :] if s != e), len(text))
        if start < covered or next_start < end:
            # It shares a character with a neighbour.
            content = token.token_bytes
            gap = text[covered:start]
            if gap and not own.startswith(gap):
                yield Piece(id=None, content=gap.encode())
        elif len(own) == end - covered and text.startswith(own, covered):
            # Some tokenizers leave the space that a token begins with out of its offsets.
            content = token.token_bytes
        else:
            if start > covered:
                yield Piece(id=None, content=text[covered:start].encode())
            content = text[start:end].encode()
        covered = max(covered, end)
        yield Piece(id=token.id, content=content, is_special=token.special or token.control)
    if covered < len(text):
        yield Piece(id=None, content=text[covered:].encode())


def cut_pair(tokens: Iterable[TokenInfo]) -> Iterator[Piece]:
    """The pieces of a pair of texts, by the tokens' own bytes."""
    return map(_whole, tokens)


def listed(pieces: Iterable[Piece]) -> Iterator[str]:
    """One line a piece: id, content in quotes with escapes, and what is odd about it."""
    for piece in pieces:
        remark = _remark(piece)
        number = "-" if piece.id is None else str(piece.id)
        yield f"{number:>8}  {quoted(_shortened(piece))}{f'  {remark}' if remark else ''}"


def coloured(pieces: Iterable[Piece], *, columns: int) -> Iterator[str]:
    """Pairs of lines: the pieces on alternating backgrounds, and under each its id.

    Args:
        pieces: The pieces.
        columns: How wide a line may be.
    """
    above, below, used, n_tokens = "", "", 0, 0
    for piece in pieces:
        shown = _visible(_shortened(piece))
        number = "" if piece.id is None else str(piece.id)
        width = max(_columns(shown), len(number))
        if used and used + width > columns:
            yield from (above, below)
            above, below, used = "", "", 0
        if piece.id is None:
            paint = "\x1b[2m"
        else:
            bold = "1;" if piece.is_special else ""
            paint = f"\x1b[{bold}30;48;5;{_BACKGROUNDS[n_tokens % len(_BACKGROUNDS)]}m"
            n_tokens += 1
        above += f"{paint}{shown}{' ' * (width - _columns(shown))}{_RESET}"
        below += f"{paint}{number:<{width}}{_RESET}"
        used += width
        if piece.content.endswith(b"\n"):
            yield from (above, below)
            above, below, used = "", "", 0
    if used:
        yield from (above, below)


def _whole(token: TokenInfo) -> Piece:
    return Piece(
        id=token.id,
        content=token.token_bytes or token.token.encode(),
        is_special=token.special or token.control,
    )


def _remark(piece: Piece) -> str:
    if piece.id is None:
        return f"in no token ({len(piece.content.decode())} characters)"
    if piece.is_special:
        return "special"
    try:
        piece.content.decode()
    except UnicodeDecodeError:
        return "part of a character"
    return ""


def _shortened(piece: Piece) -> str:
    # Bytes of parted characters become lone surrogates here, which cannot stand in a text otherwise.
    content = piece.content.decode("utf-8", "surrogateescape")
    if piece.id is None and len(content) > _LONGEST_GAP:
        return f"{content[:_LONGEST_GAP]}…"
    return content


def quoted(content: str) -> str:
    r"""A string in quotes, with nothing in it that cannot be seen.

    >>> print(quoted("a\n\u200b"))
    "a\n\u200b"
    """
    return f'"{"".join(_ESCAPES.get(each) or _printable(each) for each in content)}"'


def _visible(content: str) -> str:
    return "".join(_SIGNS.get(each) or _printable(each) for each in content)


def _printable(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code & 0xFF:02x}"
    if character.isprintable():
        return character
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _columns(shown: str) -> int:
    """How many columns of a terminal a string takes."""
    return sum(
        0
        if unicodedata.category(each) in {"Mn", "Me"}
        else 2
        if unicodedata.east_asian_width(each) in "WF"
        else 1
        for each in shown
    )
