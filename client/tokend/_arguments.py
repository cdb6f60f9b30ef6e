"""Checks of the caller's arguments, made before anything is sent.

What is wrong is a `TypeError` or `ValueError` that names the argument and the place in it, never its content.
"""

import operator
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Protocol, TypeVar, cast

__all__ = [
    "Ids",
    "SupportsIds",
    "checked_choice",
    "checked_count",
    "checked_flag",
    "checked_strings",
    "checked_text",
    "checked_timeout",
    "id_chunks",
    "packed_ids",
    "packed_item",
]

ID_BYTES = 4
_MAX_ID = 0xFFFFFFFF
_CHUNK_IDS = 512
_LONGEST_TIMEOUT_S = 1e9
_Choice = TypeVar("_Choice", bound=StrEnum)


class SupportsIds(Protocol):
    """What is read of an array of ids, numpy's or another library's."""

    def tolist(self) -> Any:  # noqa: ANN401 (what an array gives is checked, not believed)
        """The numbers as a list."""


Ids = Sequence[int] | SupportsIds
"""Token ids: a list, tuple, range or array (numpy too) of integers from 0 to 2**32 - 1."""


def checked_text(text: object, name: str, index: int | None = None) -> int:
    r"""Checks one text and returns its length in UTF-8 bytes.

    >>> checked_text("naïve", "text")
    6
    >>> checked_text("a\ud83d", "texts", 3)
    Traceback (most recent call last):
    ValueError: texts[3] has a lone surrogate at position 1, which no UTF-8 can hold
    """
    if not isinstance(text, str):
        raise TypeError(f"{_place(name, index)} is a str, not {type(text).__name__}")
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        where = error.start
    # Outside of the handler, so that the text does not travel in the exception's context.
    raise ValueError(
        f"{_place(name, index)} has a lone surrogate at position {where}, which no UTF-8 can hold"
    )


def checked_strings(strings: object, name: str) -> list[str]:
    """Checks a list of strings, where a lone str is a mistake rather than a list of its characters.

    >>> checked_strings("abc", "stop")
    Traceback (most recent call last):
    TypeError: stop is a list of str, not one str
    """
    if isinstance(strings, str | bytes):
        raise TypeError(f"{name} is a list of str, not one {type(strings).__name__}")
    if not isinstance(strings, Iterable):
        raise TypeError(f"{name} is a list of str, not {type(strings).__name__}")
    checked = list(strings)
    for index, text in enumerate(checked):
        checked_text(text, name, index)
    return checked


def checked_flag(value: object, name: str) -> bool:
    """Checks a bool; 0, 1 and None are no bools."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is a bool, not {type(value).__name__}")
    return value


def checked_count(value: object, name: str, *, least: int, greatest: int = _MAX_ID) -> int:
    """Checks a whole number within bounds."""
    number = _integer(value)
    if number is None:
        raise TypeError(f"{name} is an int, not {type(value).__name__}")
    if not least <= number <= greatest:
        raise ValueError(f"{name} is {number}; it must be between {least} and {greatest}")
    return number


def checked_choice(value: object, name: str, choices: type[_Choice]) -> _Choice:
    """Reads a member of an enum, or its name in any case.

    >>> from tokend.options import TruncationSide
    >>> checked_choice("left", "truncation_side", TruncationSide).name
    'LEFT'
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {type(value).__name__}")
    try:
        return choices[value.upper()]
    except KeyError:
        pass
    raise ValueError(f"{name} must be one of {', '.join(choices.__members__)}")


def checked_timeout(timeout_s: object, default: float | None) -> float | None:
    """Reads a time limit: None is the default, and infinity, or what is as good as that, is no limit (None)."""
    if timeout_s is None:
        return default
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise TypeError(f"timeout_s is a number of seconds, not {type(timeout_s).__name__}")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is {timeout_s}; it must be above 0 (infinity for no limit)")
    # Some 200 years from now are more nanoseconds than gRPC counts: it would end the call at once.
    return None if timeout_s > _LONGEST_TIMEOUT_S else float(timeout_s)


def packed_ids(ids: object, name: str = "ids", *, start: int = 0) -> bytes:
    """Checks ids and packs them as the wire has them: 4 bytes an id, little-endian.

    Args:
        ids: A list, tuple, range or array of integers.
        name: The argument's name, for errors.
        start: The position of the first id within a longer list, for errors.

    >>> packed_ids([1, 256]).hex(" ", 4)
    '01000000 00010000'
    >>> packed_ids([104, -1])
    Traceback (most recent call last):
    ValueError: ids[1] is -1; an id is between 0 and 4294967295
    """
    kind = getattr(getattr(ids, "dtype", None), "kind", None)
    if kind is not None:
        return _packed_array(ids, kind, name, start)
    if isinstance(ids, str | bytes | bytearray | memoryview):
        raise TypeError(f"{name} is a list of ints, not {type(ids).__name__}")
    if not isinstance(ids, list | tuple | range | array):
        tolist = getattr(ids, "tolist", None)
        if tolist is None and not isinstance(ids, Iterable):
            raise TypeError(f"{name} is a list of ints, not {type(ids).__name__}")
        ids = tolist() if tolist is not None else list(cast("Iterable[object]", ids))
    items = cast("Sequence[object]", ids)
    # array() takes bools for ints, so the types are looked at first; one pass in C.
    if set(map(type, items)) <= {int}:
        try:
            return _little_endian(array("I", cast("Sequence[int]", items)))
        except OverflowError:
            pass
    return _little_endian(array("I", (_checked_id(item, name, start + i) for i, item in enumerate(items))))


def id_chunks(ids: object) -> Iterator[bytes]:
    """Cuts any iterable of ids, or of lists of ids, into packed messages.

    Ids that are all there already (a list, an array) go together, up to 512 a message; what a generator gives is
    passed on item by item, since waiting for more would delay what has come.
    """
    if isinstance(ids, str | bytes | bytearray):
        raise TypeError(f"ids is an iterable of ints or of lists of ints, not {type(ids).__name__}")
    is_array = hasattr(ids, "dtype") and getattr(ids, "ndim", 1) == 1
    if is_array or (isinstance(ids, list | tuple | range | array) and not any(map(_is_list, ids))):
        packed = packed_ids(ids)
        step = _CHUNK_IDS * ID_BYTES
        yield from (packed[at : at + step] for at in range(0, len(packed), step))
        return
    if not isinstance(ids, Iterable):
        raise TypeError(f"ids is an iterable of ints or of lists of ints, not {type(ids).__name__}")
    position = 0
    for item in ids:
        packed = packed_item(item, position)
        position += len(packed) // ID_BYTES
        yield packed


def packed_item(item: object, position: int) -> bytes:
    """Packs one thing that an iterable of ids gave: an id, or a list of ids."""
    if _is_list(item):
        return packed_ids(item, start=position)
    return _checked_id(item, "ids", position).to_bytes(ID_BYTES, "little")


def _is_list(item: object) -> bool:
    # A numpy integer has a dtype too, but no length.
    return hasattr(item, "__len__") or (hasattr(item, "tolist") and not hasattr(item, "__index__"))


def _packed_array(ids: Any, kind: str, name: str, start: int) -> bytes:  # noqa: ANN401 (numpy is optional)
    if ids.ndim != 1:
        raise ValueError(f"{name} is an array of {ids.ndim} dimensions; ids are one-dimensional")
    if ids.size == 0:
        return b""
    if kind not in "iu":
        raise TypeError(f"{name} is an array of {ids.dtype}; ids are integers")
    if int(ids.min()) < 0 or int(ids.max()) > _MAX_ID:
        place = next(i for i, value in enumerate(ids.tolist()) if not 0 <= value <= _MAX_ID)
        _checked_id(ids[place], name, start + place)
    return cast("bytes", ids.astype("<u4").tobytes())


def _checked_id(value: object, name: str, position: int) -> int:
    number = _integer(value)
    if number is None:
        raise TypeError(f"{name}[{position}] is an int, not {type(value).__name__}")
    if not 0 <= number <= _MAX_ID:
        raise ValueError(f"{name}[{position}] is {number}; an id is between 0 and {_MAX_ID}")
    return number


def _integer(value: object) -> int | None:
    # numpy's bools answer to __index__ in old versions, hence the look at the name.
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return None
    try:
        return operator.index(cast("int", value))
    except TypeError:
        return None


def _little_endian(ids: "array[int]") -> bytes:
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def _place(name: str, index: int | None) -> str:
    return name if index is None else f"{name}[{index}]"
