"""A tokenizer.json as it stands on disk: read once, fingerprinted, parsed; what the library makes of it comes later."""

import hashlib
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from tokend_server.errors import TokenizerFileError

__all__ = [
    "FILE_LIMIT_BYTES",
    "REFERENCE_VERSION",
    "AddedTokenSpec",
    "TokenizerFile",
    "file_refusal",
    "read_file",
]

FILE_LIMIT_BYTES = 64 * 1024 * 1024
"""The largest tokenizer.json that is read; the largest one known in the wild has 33 MB."""

REFERENCE_VERSION = version("tokenizers")
"""The version of the reference library in this process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AddedTokenSpec:
    """One entry of the file's `added_tokens`.

    Source: `AddedToken` in the documentation of the reference library.
    """

    id: int
    content: str
    special: bool
    normalized: bool
    lstrip: bool
    rstrip: bool
    single_word: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerFile:
    """One frozen tokenizer file."""

    path: Path
    data: bytes = field(repr=False)
    """The file's bytes, as they are."""
    fingerprint: str
    """The sha256 of `data`, 64 lower-case hexadecimal digits."""
    spec: dict[str, Any] = field(repr=False)
    """The parsed file; large, so let go of it once everything is built."""
    added_tokens: tuple[AddedTokenSpec, ...] = field(repr=False)
    """The file's added tokens, in its order."""

    def id_of(self, token: str) -> int | None:
        """Returns the id of an added token's content or of a string of the model's vocabulary, or None.

        Args:
            token: The string as the file spells it.
        """
        added = next((each.id for each in self.added_tokens if each.content == token), None)
        if added is not None:
            return added
        vocab = self.spec["model"].get("vocab")
        if isinstance(vocab, dict):
            return vocab.get(token)
        # The library keeps the last one of equal pieces.
        ids = [n for n, entry in enumerate(vocab or ()) if isinstance(entry, list) and entry[:1] == [token]]
        return ids[-1] if ids else None


def read_file(path: Path) -> TokenizerFile:
    """Reads and parses a tokenizer file.

    Args:
        path: A `tokenizer.json` of at most `FILE_LIMIT_BYTES`.

    Returns:
        The file; whether the library takes it is not known yet.

    Raises:
        TokenizerFileError: The file is missing, a folder, too large, not UTF-8, not JSON, not a tokenizer.json, or of
            an unknown version. One line: the file, the reason, the library's version.
    """
    data = _read_bytes(path)
    spec = _parse(path, data)
    return TokenizerFile(
        path=path,
        data=data,
        fingerprint=hashlib.sha256(data).hexdigest(),
        spec=spec,
        added_tokens=_added_tokens(path, spec),
    )


def file_refusal(path: Path, reason: str) -> TokenizerFileError:
    """Returns the error that refuses a file, in one line."""
    return TokenizerFileError(f"{path}: {' '.join(reason.split())} (tokenizers {REFERENCE_VERSION})")


def _read_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise file_refusal(path, "this is a folder; name the tokenizer.json in it")
        if not path.exists():
            raise file_refusal(path, "no such file")
        if not path.is_file():
            raise file_refusal(path, "not a regular file")
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT_BYTES + 1)
    except OSError as failure:
        raise file_refusal(path, f"cannot be read: {failure.strerror}") from failure
    if len(data) > FILE_LIMIT_BYTES:
        raise file_refusal(path, f"larger than {FILE_LIMIT_BYTES} bytes, the limit for a tokenizer file")
    return data


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    try:
        # By hand, to name the byte.
        data.decode("utf-8")
        spec = orjson.loads(data)
    except UnicodeDecodeError as failure:
        raise file_refusal(path, f"not UTF-8: a bad byte at {failure.start}") from failure
    except orjson.JSONDecodeError as failure:
        raise file_refusal(path, f"not JSON: {failure}") from failure
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise file_refusal(path, 'not a tokenizer.json: it has no "model" object')
    file_version = spec.get("version", "1.0")
    if file_version != "1.0":
        raise file_refusal(path, f'its "version" is {file_version!r}, and only "1.0" is known')
    return spec


def _added_tokens(path: Path, spec: dict[str, Any]) -> tuple[AddedTokenSpec, ...]:
    kinds = AddedTokenSpec.__annotations__
    tokens = []
    for entry in spec.get("added_tokens") or []:
        given: dict[str, Any] = {}
        if isinstance(entry, dict):
            given = {name: entry.get(name) for name in kinds}
        if [type(value) for value in given.values()] != [*kinds.values()]:
            wanted = ", ".join(f"{name} ({kind.__name__})" for name, kind in kinds.items())
            raise file_refusal(path, f"an entry of its added_tokens has not all of {wanted}")
        tokens.append(AddedTokenSpec(**given))
    return tuple(tokens)
