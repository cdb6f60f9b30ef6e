"""The fast engine behind one method: ids for texts, and nothing else.

It serves only files and texts for which it was proved equal to the reference (verification), and only the methods
that ask for ids alone. Everything that knows the engine's own interface is in this module.
"""

import itertools
import os
import secrets
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Protocol, cast

import orjson

if TYPE_CHECKING:
    from fastokens import Tokenizer

__all__ = [
    "FASTOKENS",
    "EngineLoader",
    "FastEngine",
    "FastEngineRefusal",
    "engine_file",
    "fastokens_version",
    "load_fastokens",
    "loader_named",
]

FASTOKENS = "tokend_server.engine.fast:load_fastokens"
"""The loader of the engine that ships, by the name under which a child process finds it."""

_MOST_HOLES = 1_000_000
# Caches that the engine takes from the environment: they keep texts of users, and were not there at verification.
_CACHE_VARIABLES = ("FASTOKENS_INPUT_CACHE", "FASTOKENS_SEGMENT_CACHE")


class FastEngineRefusal(Exception):
    """The fast engine cannot be had for this file; one line says why, and the reference serves."""


class FastEngine(Protocol):
    """An engine that turns texts into ids; safe to use from several threads, and blind to all but ids."""

    @property
    def name(self) -> str:
        """What the ready line and GetTokenizer call it."""

    @property
    def version(self) -> str:
        """The version of the library behind it."""

    def encode_flat(
        self, texts: list[str], *, add_special_tokens: bool, keep_control: bool
    ) -> tuple[bytes, list[int]]:
        """Encodes texts into one buffer; no texts give no bytes and the one bound 0.

        Args:
            texts: The texts, without lone surrogates.
            add_special_tokens: Whether the post-processor adds its tokens.
            keep_control: Whether control tokens in a text stay text (TEXT, REJECT) or are parsed (PARSE).

        Returns:
            The ids of all texts joined, as little-endian uint32, and `len(texts) + 1` bounds counted in ids: text
            `n` has the ids from `bounds[n]` to `bounds[n + 1]`.
        """


EngineLoader = Callable[[str], FastEngine]
"""Loads an engine from what `engine_file` makes of a tokenizer.json; may raise FastEngineRefusal."""


def fastokens_version() -> str | None:
    """Returns the version of the installed engine, or None where it is not installed."""
    try:
        return version("fastokens")
    except PackageNotFoundError:
        return None


def loader_named(name: str) -> EngineLoader:
    """Returns the loader that `MODULE:FUNCTION` names."""
    module, function = name.split(":")
    return cast("EngineLoader", getattr(import_module(module), function))


def load_fastokens(file: str) -> FastEngine:
    """Loads `fastokens`. It starts no thread until it first encodes, so that a fork may follow; it holds no GIL.

    Args:
        file: What `engine_file` gives.

    Returns:
        The engine.

    Raises:
        FastEngineRefusal: The engine is not installed, is told by the environment to cache texts, or does not take
            this file.
    """
    cached = [name for name in _CACHE_VARIABLES if os.environ.get(name)]
    if cached:
        raise FastEngineRefusal(
            f"the environment sets {' and '.join(cached)}: unset it to use the fast engine"
        )
    try:
        from fastokens import Tokenizer  # noqa: PLC0415 (a server on the reference alone need not have it)
    except ImportError as failure:
        raise FastEngineRefusal("fastokens is not installed") from failure
    try:
        tokenizer = Tokenizer.from_json_str(file)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except Exception as failure:
        raise FastEngineRefusal(f"fastokens refuses the file: {_one_line(failure)}") from failure
    except BaseException as failure:
        raise FastEngineRefusal(f"fastokens panics on the file: {_one_line(failure)}") from failure
    return _Fastokens(tokenizer)


class _Fastokens:
    """`fastokens.Tokenizer`, of which only `encode_batch_flat` is used: it makes no Python object for a token."""

    __slots__ = ("_encode", "version")
    name = "fastokens"

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._encode = tokenizer.encode_batch_flat
        self.version = fastokens_version() or "unknown"

    def encode_flat(
        self, texts: list[str], *, add_special_tokens: bool, keep_control: bool
    ) -> tuple[bytes, list[int]]:
        """Encodes texts into one buffer."""
        ids, bounds = self._encode(texts, add_special_tokens, keep_control)
        # Little-endian uint64; the feature gate lets no big-endian machine come here.
        return ids, memoryview(bounds).cast("Q").tolist()


def engine_file(spec: Mapping[str, Any], control_tokens: Collection[str]) -> str:
    """Writes a file as the engine is to see it.

    Args:
        spec: A parsed tokenizer.json that passed the feature gate.
        control_tokens: Contents of the tokens that `keep_control` keeps.

    Returns:
        A tokenizer.json.

    Raises:
        FastEngineRefusal: There are more holes between its ids than is reasonable.
    """
    # Requests bring their own truncation and padding; the engine would obey those in the file.
    edited = {**spec, "truncation": None, "padding": None}
    # What the engine's switch keeps as text are the special ones; nothing else reads the flag when encoding.
    edited["added_tokens"] = [
        {**token, "special": token["content"] in control_tokens} for token in spec.get("added_tokens") or []
    ]
    model = spec["model"]
    edited["model"] = {**model, "dropout": None, "vocab": {**model["vocab"], **_fillings(model["vocab"])}}
    return orjson.dumps(edited).decode()


def _fillings(vocab: Mapping[str, int]) -> dict[str, int]:
    """An entry that no text reaches for each unused id below the greatest one; the engine takes no holes.

    No merge makes the entry, and no text holds its string: the first character is private, the rest random.

    Raises:
        FastEngineRefusal: There are more holes than is reasonable.
    """
    n_ids = max(vocab.values(), default=-1) + 1
    n_holes = n_ids - len(vocab)
    if n_holes <= 0:
        return {}
    if n_holes > _MOST_HOLES:
        raise FastEngineRefusal(f"the vocabulary has {n_holes} holes between its ids")
    nonce = secrets.token_hex(16)
    used = set(vocab.values())
    holes = itertools.filterfalse(used.__contains__, range(n_ids))
    return {f"\ue000{nonce}{n}": token_id for n, token_id in enumerate(holes)}


def _one_line(failure: BaseException) -> str:
    return " ".join(str(failure).split())[:300]
