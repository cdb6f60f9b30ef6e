"""Step 3: pre-tokenizers, which cut a text into pieces, mostly words. No token ever crosses the border of a piece.

The page before this one is `tokenizer.py`.
"""

from typing import Any

import regex

from tests.reference_bpe.byte_letters import LETTERS

Part = dict[str, Any]

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How GPT-2 cuts: endings of English, words and numbers and signs with the space in front of them, other spaces."""


def cut(text: str, pattern: str, behavior: str, *, invert: bool = False) -> list[str]:
    """Cuts a text at the matches of a pattern.

    Args:
        text: The text.
        pattern: A regular expression.
        behavior: What becomes of a match: Isolated, a piece of its own; Removed; MergedWithPrevious or
            MergedWithNext, joined to what stands beside it; Contiguous, joined to matches beside it.
        invert: Take what does not match for the matches.

    >>> cut("a-b--c", "-", "Isolated")
    ['a', '-', 'b', '-', '-', 'c']
    >>> cut("a-b--c", "-", "Removed"), cut("a-b--c", "-", "Contiguous")
    (['a', 'b', 'c'], ['a', '-', 'b', '--', 'c'])
    >>> cut("a-b--c", "-", "MergedWithPrevious"), cut("a-b--c", "-", "MergedWithNext")
    (['a-', 'b-', '-', 'c'], ['a', '-b', '-', '-c'])
    """
    spans, end = [], 0
    for match in regex.finditer(pattern, text):
        spans += [(text[end : match.start()], invert), (match[0], not invert)]
        end = match.end()
    spans.append((text[end:], invert))
    spans = [(piece, is_match) for piece, is_match in spans if piece]
    if behavior == "Removed":
        return [piece for piece, is_match in spans if not is_match]
    pieces: list[str] = []
    before: bool | None = None
    for piece, is_match in spans:
        joins = {
            "Isolated": False,
            "Contiguous": is_match == before,
            "MergedWithPrevious": is_match and before is False,
            "MergedWithNext": before is True and not is_match,
        }[behavior]
        pieces[-1:] = [pieces[-1] + piece] if joins else [*pieces[-1:], piece]
        before = is_match
    return pieces


def same_words(pattern: str) -> str:
    r"""The file's patterns are written for another engine (Oniguruma), which knows other word characters (`\w`).

    >>> same_words(r" ?\w+| ?[^\w\s]+")
    ' ?[\\p{L}\\p{M}\\p{Nd}\\p{Pc}]+| ?[^\\p{L}\\p{M}\\p{Nd}\\p{Pc}\\s]+'
    """
    words = r"\p{L}\p{M}\p{Nd}\p{Pc}"
    in_brackets = regex.sub(r"\[[^\]]*\]", lambda found: found[0].replace(r"\w", words), pattern)
    return str(in_brackets.replace(r"\w", f"[{words}]"))


def pattern_of(part: Part) -> str:
    """The `pattern` of a part: a literal string, or a regular expression."""
    pattern = part["pattern"]
    return regex.escape(pattern["String"]) if "String" in pattern else same_words(pattern["Regex"])


def pre_tokenize(pieces: list[str], part: Part | None) -> list[str]:
    """Cuts each piece further, as one part of the file says.

    >>> pre_tokenize(["Hello wörld!"], {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True})
    ['Hello', 'ĠwÃ¶rld', '!']
    >>> pre_tokenize(["a 12"], {"type": "Digits", "individual_digits": True})
    ['a ', '1', '2']
    """
    if part is None:
        return pieces
    match part["type"]:
        case "Sequence":
            for step in part["pretokenizers"]:
                pieces = pre_tokenize(pieces, step)
            return pieces
        case "Split":
            pattern, behavior, invert = pattern_of(part), part["behavior"], part["invert"]
            return [
                cut_piece for piece in pieces for cut_piece in cut(piece, pattern, behavior, invert=invert)
            ]
        case "Digits":
            behavior = "Isolated" if part["individual_digits"] else "Contiguous"
            return [cut_piece for piece in pieces for cut_piece in cut(piece, r"\p{N}", behavior)]
        case "ByteLevel":
            if part["add_prefix_space"]:
                pieces = [piece if piece.startswith(" ") else " " + piece for piece in pieces]
            if part.get("use_regex", True):
                pieces = [cut_piece for piece in pieces for cut_piece in cut(piece, GPT2_PATTERN, "Isolated")]
            # From here on a letter is a byte.
            return ["".join(LETTERS[byte] for byte in piece.encode()) for piece in pieces]
        case "Metaspace" if part["prepend_scheme"] == "never" and not part["split"]:
            return [piece.replace(" ", part["replacement"]) for piece in pieces]
    raise NotImplementedError(part["type"])
