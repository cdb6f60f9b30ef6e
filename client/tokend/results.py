"""What calls return: frozen dataclasses, with ids as a list or as a numpy array."""

import hashlib
import sys
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "Counts",
    "Decoded",
    "Encoded",
    "EngineInfo",
    "Limits",
    "RoundTrip",
    "Streaming",
    "TokenInfo",
    "TokenizerFile",
    "TokenizerInfo",
]


_SHOWN_IDS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """One text, or one pair of texts, as token ids.

    >>> encoded = Encoded(packed_ids=bytes([1, 0, 0, 0, 0, 1, 0, 0]), token_count=2, total_token_count=2)
    >>> encoded, len(encoded)
    (Encoded(ids=[1, 256], token_count=2), 2)
    """

    packed_ids: bytes = field(repr=False)
    """The ids as little-endian uint32."""
    token_count: int
    """The number of ids."""
    total_token_count: int
    """The number of ids before truncation."""
    special_text_count: int = 0
    """How many strings of control tokens were found in the text and kept as text."""
    fingerprint: str = ""
    """The sha256 of the tokenizer file that was used."""
    offsets: list[tuple[int, int]] | None = None
    """Where each token stands in the text, half-open, in the unit asked for; None if not asked for."""
    tokens: list[str] | None = None
    """Each id's string as the vocabulary spells it; None if not asked for."""
    type_ids: list[int] | None = None
    """Each id's segment (0 the text, 1 the pair), where a pair, offsets or tokens were asked for; else None."""
    _ids: list[int] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def ids(self) -> list[int]:
        """The ids as a list, made at the first use and kept."""
        ids = self._ids
        if ids is None:
            ids = unpacked_ids(self.packed_ids)
            object.__setattr__(self, "_ids", ids)  # the only way into a frozen dataclass
        return ids

    def numpy(self) -> "npt.NDArray[np.uint32]":
        """The ids as a read-only uint32 array, a view without a copy.

        Raises:
            ImportError: numpy is not installed (`pip install 'tokend[numpy]'`).
        """
        return cast("npt.NDArray[np.uint32]", imported_numpy().frombuffer(self.packed_ids, dtype="<u4"))

    def __len__(self) -> int:
        return self.token_count

    def __repr__(self) -> str:
        shown = self.ids[:_SHOWN_IDS]
        more = f", ... {len(self) - len(shown)} more" if len(self) > len(shown) else ""
        facts = [f"ids=[{', '.join(map(str, shown))}{more}]", f"token_count={self.token_count}"]
        if self.total_token_count != self.token_count:
            facts.append(f"total_token_count={self.total_token_count}")
        if self.special_text_count:
            facts.append(f"special_text_count={self.special_text_count}")
        return f"Encoded({', '.join(facts)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """One id list as text."""

    text: str
    """The text, U+FFFD where the bytes are no UTF-8."""
    raw_bytes: bytes | None = None
    """The bytes of which `text` is the lossy reading; None if not asked for."""
    unknown_id_count: int = 0
    """How many unknown ids were skipped or replaced."""
    fingerprint: str = ""
    """The sha256 of the tokenizer file that was used."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many ids each text has."""

    counts: list[int]
    """One number a text, in order; shorter than the texts if `stopped`."""
    total: int
    """Their sum."""
    stopped: bool = False
    """Whether the count ended because the total passed `stop_after`."""
    fingerprint: str = ""
    """The sha256 of the tokenizer file that was used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInfo:
    """One token of the vocabulary, or the news that there is no such token."""

    id: int
    token: str
    """The string as the vocabulary spells it."""
    token_bytes: bytes
    """The bytes that the token stands for within a text."""
    special: bool
    added: bool
    control: bool
    """Kept as text under TEXT, refused under REJECT."""
    known: bool
    """False if the tokenizer does not have the id or string that was looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """Whether encode and then decode gives the text back."""

    exact: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """How StreamDecode treats the tokenizer."""

    mode: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What computes the ids."""

    reference_version: str
    name: str
    version: str
    state: str
    """DISABLED, UNSUPPORTED, PENDING, VERIFIED or QUARANTINED: the fast engine's standing for this file."""
    reason: str
    excluded_code_points: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of the server that answered."""

    max_text_bytes: int
    max_batch_texts: int
    max_batch_bytes: int
    max_ids: int
    max_sequences_per_stream: int
    max_streams: int
    max_message_bytes: int
    max_stop_strings: int
    max_stop_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerInfo:
    """What the server serves; every field is that of the proto's `GetTokenizerResponse`."""

    fingerprint: str
    """The sha256 of the tokenizer file, the value for `expected_fingerprint`."""
    name: str
    file_bytes: int
    vocab_size: int
    """The number of tokens, added ones included."""
    max_id: int
    """The greatest id; a model's embedding needs one row more."""
    model_type: str
    normalizer: str
    pre_tokenizer: str
    post_processor: str
    decoder: str
    special_tokens: list[TokenInfo]
    control_tokens: list[TokenInfo]
    added_token_count: int
    ignored_truncation: str
    ignored_padding: str
    round_trip: RoundTrip
    streaming: Streaming
    engine: EngineInfo
    limits: Limits
    server_version: str
    warnings: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFile:
    """The tokenizer file itself, as the server loaded it.

    >>> file = TokenizerFile(data=b"{}")
    >>> file.fingerprint[:12]
    '44136fa355b3'
    """

    data: bytes = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """The sha256 of the bytes."""
        return hashlib.sha256(self.data).hexdigest()

    def save(self, path: str | Path) -> None:
        """Writes the file; an existing one is replaced."""
        Path(path).write_bytes(self.data)


def unpacked_ids(packed: bytes) -> list[int]:
    """The ids of little-endian uint32 bytes as a list."""
    ids = array("I", packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist()


def imported_numpy() -> Any:  # noqa: ANN401 (a module, as its users type it)
    """The numpy module, which is optional and slow to import.

    Raises:
        ImportError: It is not installed.
    """
    try:
        import numpy as np  # noqa: PLC0415 (see above)
    except ImportError as error:
        raise ImportError("numpy() needs numpy: pip install 'tokend[numpy]'") from error
    return np
