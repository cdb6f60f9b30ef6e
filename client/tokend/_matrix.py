"""Padding encodings to one length, for a model's input."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tokend._arguments import checked_count, packed_ids
from tokend.results import Encoded, imported_numpy, unpacked_ids

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Padded", "pad"]

_ID_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Padded:
    """Id lists of one length, and which of their places are real."""

    length: int
    """The number of ids in each row, padding included."""
    side: Literal["right", "left"]
    """Where the padding stands."""
    token_counts: tuple[int, ...]
    """The number of real ids in each row."""
    _packed: bytes = field(repr=False)

    @property
    def ids(self) -> list[list[int]]:
        """The matrix as lists: one row an encoding."""
        ids = unpacked_ids(self._packed)
        return [ids[row * self.length : (row + 1) * self.length] for row in range(len(self.token_counts))]

    @property
    def mask(self) -> list[list[int]]:
        """1 for a real id and 0 for padding, in the matrix's shape."""
        rows = []
        for n_tokens in self.token_counts:
            real, padding = [1] * n_tokens, [0] * (self.length - n_tokens)
            rows.append(real + padding if self.side == "right" else padding + real)
        return rows

    def numpy(self) -> "tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]":
        """The matrix and the mask as int64 arrays of shape (encodings, length), ready for a model.

        Raises:
            ImportError: numpy is not installed (`pip install 'tokend[numpy]'`).
        """
        np = imported_numpy()
        shape = (len(self.token_counts), self.length)
        ids = np.frombuffer(self._packed, dtype="<u4").reshape(shape).astype(np.int64)
        places = np.arange(self.length)
        counts = np.asarray(self.token_counts, dtype=np.int64)[:, None]
        mask = places < counts if self.side == "right" else places >= self.length - counts
        return ids, mask.astype(np.int64)


def pad(
    encodings: Iterable[Encoded | Sequence[int]],
    *,
    pad_id: int,
    side: Literal["right", "left"] = "right",
    length: int | None = None,
) -> Padded:
    """Pads encodings to one length; nothing is ever cut off.

    Args:
        encodings: Encodings or lists of ids; none gives a matrix without rows.
        pad_id: The id that fills up; the model's own choice, so there is no default.
        side: Where it fills up: "right" for most training, "left" for generation.
        length: The length of every row; None: that of the longest encoding.

    Raises:
        ValueError: An encoding is longer than `length`; ask for `max_tokens` when encoding.

    >>> padded = pad([[5, 6, 7], [8]], pad_id=0, side="left")
    >>> padded.ids, padded.mask
    ([[5, 6, 7], [0, 0, 8]], [[1, 1, 1], [0, 0, 1]])
    """
    if side not in ("right", "left"):
        raise ValueError('side must be "right" or "left"')
    filler = checked_count(pad_id, "pad_id", least=0).to_bytes(_ID_BYTES, "little")
    rows = [
        encoding.packed_ids if isinstance(encoding, Encoded) else packed_ids(encoding, f"encodings[{index}]")
        for index, encoding in enumerate(encodings)
    ]
    counts = tuple(len(row) // _ID_BYTES for row in rows)
    longest = max(counts, default=0)
    width = longest if length is None else checked_count(length, "length", least=0)
    if longest > width:
        raise ValueError(
            f"encodings[{counts.index(longest)}] has {longest} ids, more than length {width}; encode with max_tokens"
        )
    fillers = [filler * (width - n_tokens) for n_tokens in counts]
    joined = b"".join(
        row + filling if side == "right" else filling + row
        for row, filling in zip(rows, fillers, strict=True)
    )
    return Padded(length=width, side=side, token_counts=counts, _packed=joined)
