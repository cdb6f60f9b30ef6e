"""Fast engines with a fault planted in each, for the guards to catch; loaders as `EngineLoader` has them.

They stand in a module of their own, since a child process loads them by name: `loader("wrong_on_a_snowman")`.
"""

import os
import time
from array import array
from collections.abc import Callable
from itertools import accumulate, pairwise

from tokend_server.engine.fast import load_fastokens

SNOWMAN = "☃"
RARE = "zxqvbk wert"
"""A string that no verification thinks of."""
WORD = " the"
"""A token of the small vocabularies, so a string that verification tries."""


class PanicException(BaseException):
    """What a panic of a native library looks like."""


class Planted:
    """The real engine, but for texts that hold a string."""

    name = "planted"
    version = "0"

    def __init__(self, file: str, string: str, fault: Callable[[list[int]], list[int]]) -> None:
        self._real = load_fastokens(file)
        self._string, self._fault = string, fault

    def encode_flat(self, texts, **options):
        packed, bounds = self._real.encode_flat(texts, **options)
        if not any(self._string in text for text in texts):
            return packed, bounds
        ids = array("I", packed)
        each = [ids[start:end].tolist() for start, end in pairwise(bounds)]
        each = [
            self._fault(found) if self._string in text else found
            for text, found in zip(texts, each, strict=True)
        ]
        joined = array("I", [token_id for found in each for token_id in found])
        return joined.tobytes(), [*accumulate(map(len, each), initial=0)]


def _another_id(ids: list[int]) -> list[int]:
    return [*ids[:-1], ids[-1] ^ 1]


def _panic(_ids: list[int]) -> list[int]:
    raise PanicException("byte index 1 is not a char boundary")


def _error(_ids: list[int]) -> list[int]:
    raise ValueError("match limit exceeded")


def _abort(_ids: list[int]) -> list[int]:
    os.abort()


def wrong_on_a_snowman(file):
    return Planted(file, SNOWMAN, _another_id)


def wrong_on_a_letter(file):
    return Planted(file, "q", _another_id)


def wrong_on_a_word(file):
    return Planted(file, WORD, _another_id)


def wrong_on_a_rare_string(file):
    return Planted(file, RARE, _another_id)


def losing_ids_of_a_rare_string(file):
    return Planted(file, RARE, lambda ids: ids[:-1])


def panicking_on_a_word(file):
    return Planted(file, WORD, _panic)


def panicking_on_a_rare_string(file):
    return Planted(file, RARE, _panic)


def failing_on_a_rare_string(file):
    return Planted(file, RARE, _error)


def aborting_on_a_word(file):
    return Planted(file, WORD, _abort)


def printing_at_load(file):
    os.write(1, b'{"outcome": 3}x\n[]\nnot ours\n{"other": 1}\n')
    return load_fastokens(file)


def hanging_at_load(_file):
    time.sleep(3600)


def aborting_at_load(_file):
    os.abort()


def exiting_at_load(_file):
    os._exit(7)


def panicking_at_load(_file):
    raise PanicException("index out of bounds")


def loader(name: str) -> str:
    """The name under which a child process finds a loader of this module."""
    return f"tests.engine.planted_engines:{name}"
