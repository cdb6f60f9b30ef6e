"""Fresh text in many scripts: slices of the zoo's texts (`make zoo`), or of the tests' own text without it."""

import lzma
import random
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

from tests.zoo import texts as zoo_texts

__all__ = ["distinct", "fresh", "take", "take_bytes"]

_SMALL_TEXT = Path(__file__).parents[1] / "tests" / "data" / "english_russian.txt.xz"
# The words that no text has yet: one in so many characters, so that a cache of words has always something to grow by.
_NEW_WORD_EVERY = 200


@cache
def _pieces() -> tuple[str, ...]:
    if zoo_texts.place().exists():
        return tuple(zoo_texts.texts().values())
    return (lzma.decompress(_SMALL_TEXT.read_bytes()).decode(),)


def fresh(n_characters: int, seed: int) -> Iterator[str]:
    """Endless slices of real text, each from another place; other seeds cut at other places.

    Args:
        n_characters: Length of each.
        seed: 0 and up; where to cut, and in which order.
    """
    # A step that shares no factor with usual lengths meets every place before one comes again.
    shift = 9973 * (seed + 1)
    while True:
        places = [
            (text, at)
            for text in _pieces()
            for at in range(shift % n_characters, len(text) - n_characters, n_characters)
        ]
        random.Random(shift).shuffle(places)
        for text, at in places:
            yield text[at : at + n_characters]
        shift += 101


def take(n_texts: int, n_characters: int, seed: int) -> list[str]:
    """Some fresh texts."""
    return list(islice(fresh(n_characters, seed), n_texts))


def take_bytes(n_bytes: int, n_characters: int, seed: int) -> list[str]:
    """Fresh texts until their UTF-8 is so long."""
    taken, total = [], 0
    for text in fresh(n_characters, seed):
        taken.append(text)
        total += len(text.encode())
        if total >= n_bytes:
            break
    return taken


def distinct(n_bytes: int, n_characters: int, seed: int) -> Iterator[str]:
    """So much text in all, in which words that never came before stand between real ones."""
    chance, total = random.Random(seed), 0
    for text in fresh(n_characters, seed):
        parts = [text[at : at + _NEW_WORD_EVERY] for at in range(0, len(text), _NEW_WORD_EVERY)]
        made = "".join([f"{part} {chance.getrandbits(60):x} " for part in parts])
        total += len(made.encode())
        yield made
        if total >= n_bytes:
            return
