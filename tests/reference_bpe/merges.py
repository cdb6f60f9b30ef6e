"""Step 4: byte pair encoding, which joins the symbols of a piece, two at a time, in the order it was taught.

The page before this one is `tokenizer.py`.

Source: Gage, "A New Algorithm for Data Compression" (1994); Sennrich, Haddow, Birch, "Neural Machine Translation of
Rare Words with Subword Units" (2016).
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any


def join(symbols: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Joins neighbours until no pair is left that was ever learned.

    Training counted which two neighbours stood together most often, made one symbol of them, and counted again;
    the file lists those pairs in the order in which they were learned. To encode is to replay that: of all the
    pairs that are here, the one that was learned first is joined, at its first place; and again.

    Args:
        symbols: A piece, cut into its smallest symbols.
        ranks: When each pair was learned: 0 for the first.

    >>> merges = [("t", "h"), ("th", "e"), ("h", "e")]
    >>> ranks = {pair: rank for rank, pair in enumerate(merges)}
    >>> join(list("the"), ranks)
    ['the']
    >>> join(list("hethe"), ranks)  # `th` was learned before `he`, so the second h goes to its t
    ['he', 'the']
    >>> join(list("tthh"), ranks)
    ['t', 'th', 'h']
    >>> join(["x"], ranks), join([], ranks)
    (['x'], [])
    """
    symbols = list(symbols)
    while True:
        pairs = [(ranks[pair], place) for place, pair in enumerate(pairwise(symbols)) if pair in ranks]
        if not pairs:
            return symbols
        _, place = min(pairs)
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


class Bpe:
    """The `model` of the file: a vocabulary, the merges, and what to do with a character that is in neither."""

    def __init__(self, model: dict[str, Any]) -> None:
        self.ids: dict[str, int] = model["vocab"]
        # Older files write a merge as one string, "t h", newer ones as a list.
        merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.unk: str | None = model.get("unk_token")
        self.fuse_unk = bool(model.get("fuse_unk"))
        self.byte_fallback = bool(model.get("byte_fallback"))
        self.whole_words_first = bool(model.get("ignore_merges"))

    def tokens(self, piece: str) -> list[str]:
        """Cuts one piece into strings of the vocabulary."""
        if self.whole_words_first and piece in self.ids:
            return [piece]
        return join(list(self.symbols(piece)), self.ranks)

    def symbols(self, piece: str) -> Iterator[str]:
        """The smallest symbols of a piece: its characters, or what stands for those that the vocabulary lacks.

        >>> vocab = {"<unk>": 0, "a": 1, **{f"<0x{byte:02X}>": 2 + byte for byte in range(256)}}
        >>> list(Bpe({"vocab": vocab, "merges": [], "byte_fallback": True}).symbols("aé"))
        ['a', '<0xC3>', '<0xA9>']
        >>> list(Bpe({"vocab": vocab, "merges": [], "unk_token": "<unk>", "fuse_unk": True}).symbols("aéüa"))
        ['a', '<unk>', 'a']
        """
        before_is_unk = False
        for character in piece:
            is_unk = False
            byte_tokens = [f"<0x{byte:02X}>" for byte in character.encode()]
            if character in self.ids:
                yield character
            elif self.byte_fallback and all(token in self.ids for token in byte_tokens):
                yield from byte_tokens
            elif self.unk is not None:
                is_unk = True
                if not (before_is_unk and self.fuse_unk):
                    yield self.unk
            # Without unk the character is gone, and nobody says so.
            before_is_unk = is_unk
