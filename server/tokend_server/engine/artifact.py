"""The tokenizer file: read once, checked, fingerprinted; a file that cannot be served is refused with one line."""

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tokend_server.errors import TokenizerFileError

__all__ = [
    "FILE_LIMIT_BYTES",
    "REFERENCE_VERSION",
    "AddedTokenSpec",
    "Artifact",
    "read_artifact",
    "unknown_token_of",
]

FILE_LIMIT_BYTES = 64 * 1024 * 1024
"""The largest tokenizer.json that is read; the largest one known in the wild has 33 MB."""

REFERENCE_VERSION = version("tokenizers")
"""The version of the reference library in this process."""

_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


@dataclass(frozen=True, kw_only=True, slots=True)
class AddedTokenSpec:
    """One entry of the file's `added_tokens`, its id checked against the id in memory.

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
class Artifact:
    """One frozen tokenizer file and what the reference library makes of it.

    Nobody calls a setter of `tokenizer` after `read_artifact` has returned: it is shared by all requests.
    """

    path: Path
    name: str
    """The file's stem, or its folder's name where the file is called `tokenizer.json`."""
    data: bytes = field(repr=False)
    """The file's bytes, as they are."""
    fingerprint: str
    """The sha256 of `data`, 64 lower-case hexadecimal digits."""
    spec: dict[str, Any] = field(repr=False)
    """The parsed file; large, so drop it with `without_spec` once everything is built."""
    tokenizer: Tokenizer = field(repr=False)
    """The reference on this file, without the file's truncation, padding and dropout."""
    added_tokens: tuple[AddedTokenSpec, ...] = field(repr=False)
    """The file's added tokens, in its order."""
    ignored_truncation: str
    """The file's `truncation` as JSON, or the empty string."""
    ignored_padding: str
    """The file's `padding` as JSON, or the empty string."""
    warnings: tuple[str, ...]
    """What a reader of the start-up log should know about this file; one sentence each."""

    def without_spec(self) -> "Artifact":
        """Returns the same artifact with an empty `spec`, so that the parsed file can be freed."""
        return dataclasses.replace(self, spec={})


def read_artifact(path: Path) -> Artifact:
    """Reads and checks a tokenizer file.

    Args:
        path: A `tokenizer.json` of at most `FILE_LIMIT_BYTES`.

    Returns:
        The artifact, with the reference loaded.

    Raises:
        TokenizerFileError: The file is missing, a folder, too large, not UTF-8, not JSON, not a tokenizer.json,
            of an unknown version, refused by the library, or has an added token whose id in the file is not
            its id in memory. One line: the file, the reason, the library's version.
    """
    data = _read_bytes(path)
    spec = _parse(path, data)
    tokenizer = _load(path, data)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    added_tokens = _added_tokens(path, spec, tokenizer)
    truncation, padding = spec.get("truncation"), spec.get("padding")
    warnings = []
    if truncation is not None:
        warnings.append("the file's truncation is ignored: ask for it in the request's options")
    if padding is not None:
        warnings.append("the file's padding is ignored: answers are never padded")
    if spec["model"].get("dropout"):
        # The reference would cut the same text differently at each call.
        tokenizer.model.dropout = None
        warnings.append("the model's dropout is ignored: it would give the same text other ids at each call")
    warnings.extend(_inexpressible_text(spec, tokenizer))
    warnings.extend(_ambiguous_tokens(added_tokens, tokenizer))
    absolute = path.resolve()
    return Artifact(
        path=path,
        name=absolute.parent.name if absolute.stem == "tokenizer" and absolute.parent.name else absolute.stem,
        data=data,
        fingerprint=hashlib.sha256(data).hexdigest(),
        spec=spec,
        tokenizer=tokenizer,
        added_tokens=added_tokens,
        ignored_truncation="" if truncation is None else json.dumps(truncation),
        ignored_padding="" if padding is None else json.dumps(padding),
        warnings=tuple(warnings),
    )


def unknown_token_of(model: dict[str, Any]) -> str | None:
    """Returns the string of the model's unk token, or None where the file names none.

    Args:
        model: The `model` object of a parsed tokenizer.json.
    """
    if model.get("type") == "Unigram" or (isinstance(model.get("vocab"), list) and "unk_id" in model):
        unk_id = model.get("unk_id")
        return None if unk_id is None else str(model["vocab"][unk_id][0])
    unk_token = model.get("unk_token")
    return None if unk_token is None else str(unk_token)


def _refusal(path: Path, reason: str) -> TokenizerFileError:
    return TokenizerFileError(f"{path}: {' '.join(reason.split())} (tokenizers {REFERENCE_VERSION})")


def _read_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise _refusal(path, "this is a folder; name the tokenizer.json in it")
        if not path.exists():
            raise _refusal(path, "no such file")
        if not path.is_file():
            raise _refusal(path, "not a regular file")
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT_BYTES + 1)
    except OSError as failure:
        raise _refusal(path, f"cannot be read: {failure.strerror}") from failure
    if len(data) > FILE_LIMIT_BYTES:
        raise _refusal(path, f"larger than {FILE_LIMIT_BYTES} bytes, the limit for a tokenizer file")
    return data


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    try:
        # Decoded by hand: json.loads would also take UTF-16 and a byte order mark, which the library refuses.
        spec = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as failure:
        raise _refusal(path, f"not UTF-8: a bad byte at {failure.start}") from failure
    except json.JSONDecodeError as failure:
        reason = f"not JSON: {failure.msg} at line {failure.lineno} column {failure.colno}"
        raise _refusal(path, reason) from failure
    except (RecursionError, ValueError) as failure:
        raise _refusal(path, "not JSON: nested too deeply, or a number too long") from failure
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise _refusal(path, 'not a tokenizer.json: it has no "model" object')
    file_version = spec.get("version", "1.0")
    if file_version != "1.0":
        raise _refusal(path, f'its "version" is {file_version!r}, and only "1.0" is known')
    return spec


def _load(path: Path, data: bytes) -> Tokenizer:
    try:
        return Tokenizer.from_buffer(data)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except Exception as failure:
        raise _refusal(path, f"the library refuses it: {failure}") from failure
    except BaseException as failure:
        # A panic of the library (PanicException) is a BaseException.
        raise _refusal(path, f"the library panics on it: {failure}") from failure


def _added_tokens(path: Path, spec: dict[str, Any], tokenizer: Tokenizer) -> tuple[AddedTokenSpec, ...]:
    tokens = []
    # The library has read the same list, so its shape is sound here.
    for entry in spec.get("added_tokens") or []:
        token = AddedTokenSpec(
            id=entry["id"],
            content=entry["content"],
            special=entry["special"],
            normalized=entry["normalized"],
            lstrip=entry["lstrip"],
            rstrip=entry["rstrip"],
            single_word=entry["single_word"],
        )
        # Not the other way round: the library names a `normalized` token by its normalized content.
        in_memory = tokenizer.token_to_id(token.content)
        if in_memory != token.id:
            raise _refusal(
                path,
                f"the added token {token.content!r} has id {token.id} in the file and "
                f"{'no id' if in_memory is None else f'id {in_memory}'} in memory",
            )
        tokens.append(token)
    return tuple(tokens)


def _ambiguous_tokens(tokens: tuple[AddedTokenSpec, ...], tokenizer: Tokenizer) -> list[str]:
    """Says where the normalizer makes the same string of two added tokens: the library then chooses by chance."""
    normalizer = tokenizer.normalizer
    if normalizer is None:
        return []
    by_string: dict[str, list[str]] = {}
    for token in tokens:
        if token.normalized:
            by_string.setdefault(normalizer.normalize_str(token.content), []).append(token.content)
    pairs = [contents for contents in by_string.values() if len(contents) > 1]
    if not pairs:
        return []
    more = f" and of {len(pairs) - 1} more groups" if len(pairs) > 1 else ""
    warning = (
        f"the normalizer makes the same string of the added tokens {', '.join(map(repr, pairs[0]))}{more}: which of "
        "their ids a text gets is left to chance by the library, and may change with each start"
    )
    return [warning]


def _inexpressible_text(spec: dict[str, Any], tokenizer: Tokenizer) -> list[str]:
    """Says what becomes of text that the vocabulary cannot express, where that is not an unk token."""
    model = spec["model"]
    unk = unknown_token_of(model)
    if unk is not None and _in_model(unk, model):
        return []
    if model.get("byte_fallback") and len(_byte_tokens(model)) == 256:
        return []
    if model.get("type") in {"WordLevel", "WordPiece", "Unigram"} or unk is not None:
        return ["the vocabulary has no unk token: text that it cannot express is refused"]
    if _reads_bytes(spec):
        missing = sum(tokenizer.token_to_id(sign) is None for sign in _byte_alphabet())
        if missing == 0:
            return []
        return [
            f"{missing} of the 256 bytes have no token, and there is no unk: they are dropped from text silently"
        ]
    return [
        "the vocabulary has no unk token and no full byte fallback: text that it cannot express is dropped silently"
    ]


def _in_model(token: str, model: dict[str, Any]) -> bool:
    # A list holds [piece, score] pairs (Unigram), and its unk was taken from there.
    return isinstance(model["vocab"], list) or token in model["vocab"]


def _byte_tokens(model: dict[str, Any]) -> set[str]:
    pieces = [piece for piece, _ in model["vocab"]] if isinstance(model["vocab"], list) else model["vocab"]
    return {piece for piece in pieces if _BYTE_TOKEN.fullmatch(piece)}


def _reads_bytes(spec: dict[str, Any]) -> bool:
    """Whether a ByteLevel step, at any depth, stands before the model."""
    steps = [spec.get("normalizer"), spec.get("pre_tokenizer")]
    while steps:
        step = steps.pop()
        if not step:
            continue
        if step.get("type") == "ByteLevel":
            return True
        steps.extend(step.get("normalizers") or step.get("pretokenizers") or [])
    return False


def _byte_alphabet() -> list[str]:
    """The 256 characters that stand for bytes; Source: `bytes_to_unicode` of GPT-2, in the library's ByteLevel."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in shown] + [chr(0x100 + n) for n in range(256 - len(shown))]
