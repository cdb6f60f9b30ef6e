"""Which calls may travel together, and how: as one batch, with the results and errors of single calls. Pure."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from tokend import _calls, errors
from tokend._arguments import Ids, checked_text, packed_ids
from tokend._batches import Batch
from tokend._calls import Program
from tokend._known_limits import KnownLimits
from tokend._requests import EncodeSettings, decode_options, encode_settings
from tokend.options import DecodeOptions, EncodeOptions
from tokend.results import Counts, Decoded, Encoded
from tokend.v1 import types_pb2

__all__ = ["JOINED_BYTES", "CallKinds", "JoinableCall", "Kind", "is_of_all", "is_of_size"]

# A text above this costs so much more than its message that joining saves nothing and makes others wait for it.
JOINED_BYTES = 16 << 10
_JOINED_TEXTS = 64
_KEPT_OPTIONS = 64

Item_contra = TypeVar("Item_contra", contravariant=True)
Result = TypeVar("Result")
TextAndPair: TypeAlias = tuple[str, str | None]

_OF_ALL = (
    errors.UnavailableError,
    errors.DeadlineExceededError,
    errors.CallCancelledError,
    errors.UnauthenticatedError,
    errors.PermissionDeniedError,
    errors.TokenizerMismatchError,
    errors.UnsupportedError,
)


def is_of_all(error: errors.TokendError) -> bool:
    """Whether an error is about the connection, the credentials or the server, so that each call of a batch has it."""
    return isinstance(error, _OF_ALL)


def is_of_size(error: errors.TokendError) -> bool:
    """Whether a batch was only too large as a whole; its calls may pass in smaller ones."""
    return isinstance(error, errors.TooLargeError) and error.reason != "TEXT_TOO_LARGE"


class Kind(Protocol[Item_contra, Result]):
    """Calls of one method with the same options: they differ in their item alone."""

    key: object
    """Equal for the same method and options."""

    def alone(self, item: Item_contra) -> Program[Result]:
        """The single call."""

    def together(self, items: Sequence[Item_contra]) -> Program[list[Result]]:
        """The batch; each result is what the single call gives."""

    def place(self, items: Sequence[Item_contra], index: int) -> int:
        """Which call of a batch an error's index is about; out of range if none."""


class JoinableCall(NamedTuple, Generic[Result]):
    """A checked call that may travel with others of its kind."""

    kind: Kind[Any, Result]
    item: object
    size_bytes: int


class _Encodes:
    """Encode of texts, or of pairs."""

    def __init__(self, settings: EncodeSettings, *, paired: bool) -> None:
        self._settings = settings
        self._paired = paired
        self.key = ("Encode", paired, _bytes(settings.options))

    def alone(self, item: TextAndPair) -> Program[Encoded]:
        return _calls.encode_checked(*item, self._settings)

    def together(self, items: Sequence[TextAndPair]) -> Program[list[Encoded]]:
        pairs = [pair or "" for _, pair in items] if self._paired else []
        batch = Batch(start=0, texts=[text for text, _ in items], pairs=pairs)
        return _calls.encode_batch(batch, self._settings)

    def place(self, items: Sequence[TextAndPair], index: int) -> int:
        del items
        return index


class _Counts:
    """CountTokens without `stop_after`; each call has texts of its own."""

    def __init__(self, settings: EncodeSettings, known: KnownLimits) -> None:
        self._settings = settings
        self._known = known
        self.key = ("CountTokens", _bytes(settings.options))

    def alone(self, item: list[str]) -> Program[Counts]:
        return _calls.count_checked(item, 0, self._settings, self._known)

    def together(self, items: Sequence[list[str]]) -> Program[list[Counts]]:
        texts = [text for item in items for text in item]
        joined = yield from _calls.count_together(texts, self._settings)
        counts, at = [], 0
        for item in items:
            own = joined.counts[at : at + len(item)]
            at += len(item)
            counts.append(Counts(counts=own, total=sum(own), fingerprint=joined.fingerprint))
        return counts

    def place(self, items: Sequence[list[str]], index: int) -> int:
        return sum(end <= index for end in accumulate(map(len, items)))


class _Decodes:
    """Decode of packed ids."""

    def __init__(self, options: types_pb2.DecodeOptions) -> None:
        self._options = options
        self.key = ("Decode", _bytes(options))

    def alone(self, item: bytes) -> Program[Decoded]:
        return _calls.decode_checked(item, self._options)

    def together(self, items: Sequence[bytes]) -> Program[list[Decoded]]:
        return _calls.decode_together(items, self._options)

    def place(self, items: Sequence[bytes], index: int) -> int:
        del items
        return index


class CallKinds:
    """Checks calls and finds their kind; the options of the last calls are kept, checked and built."""

    def __init__(self, fingerprint: str | None, known: KnownLimits) -> None:
        self._fingerprint = fingerprint
        self._known = known
        self._kept: dict[object, Any] = {}

    def encode(self, text: str, pair: str | None, keywords: EncodeOptions) -> JoinableCall[Encoded]:
        """An `encode`; raises what is wrong with its arguments."""
        name = "encode" if pair is None else "encode a pair"
        key = _plain(name, keywords)
        kind = self._kept.get(key)
        if kind is None:
            settings = encode_settings(keywords, fingerprint=self._fingerprint, pairs=pair is not None)
            kind = self._keep(key, _Encodes(settings, paired=pair is not None))
        size_bytes = checked_text(text, "text")
        if pair is not None:
            size_bytes += checked_text(pair, "pair")
        return JoinableCall(kind, (text, pair), size_bytes)

    def count(self, texts: list[str], keywords: EncodeOptions) -> JoinableCall[Counts] | None:
        """A `count` without `stop_after`; None if it has too many texts, or none, to travel with others."""
        if not 0 < len(texts) <= _JOINED_TEXTS:
            return None
        key = _plain("count", keywords)
        kind = self._kept.get(key)
        if kind is None:
            kind = self._keep(key, _Counts(_calls.count_settings(keywords, self._fingerprint), self._known))
        size_bytes = sum(checked_text(text, "texts", index) for index, text in enumerate(texts))
        return JoinableCall(kind, texts, size_bytes)

    def decode(self, ids: Ids, keywords: DecodeOptions) -> JoinableCall[Decoded]:
        """A `decode`; raises what is wrong with its arguments."""
        key = _plain("decode", keywords)
        kind = self._kept.get(key)
        if kind is None:
            kind = self._keep(key, _Decodes(decode_options(keywords, fingerprint=self._fingerprint)))
        packed = packed_ids(ids)
        return JoinableCall(kind, packed, len(packed))

    def _keep(self, key: object, kind: Any) -> Any:  # noqa: ANN401 (the kinds share a Protocol with free types)
        if key is not None:
            if len(self._kept) >= _KEPT_OPTIONS:
                self._kept.clear()
            self._kept[key] = kind
        return kind


def _plain(name: str, keywords: Mapping[str, object]) -> object:
    """A key for keywords whose values cannot change; None where one may, such as a list or an iterator."""
    if not keywords:
        return name
    # The types belong to the key: 1 equals True, and is refused where True is taken.
    parts = [(option, type(value), value) for option, value in keywords.items()]
    return (name, *parts) if all(isinstance(value, str | int) for _, _, value in parts) else None


def _bytes(options: types_pb2.EncodeOptions | types_pb2.DecodeOptions) -> bytes:
    return options.SerializeToString(deterministic=True)
