"""What the reference library makes of a tokenizer file; a file that cannot be served is refused with one line."""

import dataclasses
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tokend_server.engine.tokenizer_file import (
    REFERENCE_VERSION,
    AddedTokenSpec,
    TokenizerFile,
    file_refusal,
    read_file,
)

__all__ = ["REFERENCE_VERSION", "Artifact", "load_artifact", "read_artifact", "unknown_token_of"]

_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact(TokenizerFile):
    """One frozen tokenizer file and what the reference library makes of it; the ids of its added tokens are checked.

    Nobody calls a setter of `tokenizer` after `load_artifact` has returned: it is shared by all requests.
    """

    name: str
    """The file's stem, or its folder's name where the file is called `tokenizer.json`."""
    tokenizer: Tokenizer = field(repr=False)
    """The reference on this file, without the file's truncation, padding and dropout."""
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
    """Reads and loads a tokenizer file; see `read_file` and `load_artifact`."""
    return load_artifact(read_file(path))


def load_artifact(file: TokenizerFile) -> Artifact:
    """Loads a file with the reference library, and checks the ids of its added tokens.

    Args:
        file: The file, with its `spec`.

    Returns:
        The artifact, with the reference loaded.

    Raises:
        TokenizerFileError: The library refuses the file, or an added token's id in the file is not its id in memory.
            One line: the file, the reason, the library's version.
    """
    path, spec = file.path, file.spec
    tokenizer = _load(path, file.data)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _check_added_tokens(file, tokenizer)
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
    warnings.extend(_ambiguous_tokens(file.added_tokens, tokenizer))
    absolute = path.resolve()
    return Artifact(
        path=path,
        name=absolute.parent.name if absolute.stem == "tokenizer" and absolute.parent.name else absolute.stem,
        data=file.data,
        fingerprint=file.fingerprint,
        spec=spec,
        tokenizer=tokenizer,
        added_tokens=file.added_tokens,
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


def _load(path: Path, data: bytes) -> Tokenizer:
    try:
        return Tokenizer.from_buffer(data)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except Exception as failure:
        raise file_refusal(path, f"the library refuses it: {failure}") from failure
    except BaseException as failure:
        # A panic of the library (PanicException) is a BaseException.
        raise file_refusal(path, f"the library panics on it: {failure}") from failure


def _check_added_tokens(file: TokenizerFile, tokenizer: Tokenizer) -> None:
    for token in file.added_tokens:
        # Not the other way round: the library names a `normalized` token by its normalized content.
        in_memory = tokenizer.token_to_id(token.content)
        if in_memory != token.id:
            raise file_refusal(
                file.path,
                f"the added token {token.content!r} has id {token.id} in the file and "
                f"{'no id' if in_memory is None else f'id {in_memory}'} in memory",
            )


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
