"""The first guard of the fast engine: an allow-list of what a tokenizer file may have.

Here stands what was tried against the reference on small files and real ones. Anything else means the reference,
whatever the engine says of itself; what is allowed still has to pass verification.
"""

import sys
from collections.abc import Mapping
from typing import Any

from tokend_server.engine.byte_alphabet import BYTE_ALPHABET
from tokend_server.engine.reference import ReferenceEncoder
from tokend_server.engine.template import template_pieces

__all__ = ["unsupported_feature"]

_MODEL_KEYS = {
    *("type", "vocab", "merges", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"),
    *("fuse_unk", "byte_fallback", "ignore_merges"),
}
_NORMALIZERS = {
    "NFC": {"type"},
    "Lowercase": {"type"},
    "Prepend": {"type", "prepend"},
    "Replace": {"type", "pattern", "content"},
}
_PRE_TOKENIZERS = {
    "Split": {"type", "pattern", "behavior", "invert"},
    "ByteLevel": {"type", "add_prefix_space", "trim_offsets", "use_regex"},
    "Digits": {"type", "individual_digits"},
}
_POST_PROCESSORS = {
    "ByteLevel": {"type", "add_prefix_space", "trim_offsets", "use_regex"},
    "TemplateProcessing": {"type", "single", "pair", "special_tokens"},
}
_BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def unsupported_feature(spec: Mapping[str, Any], reference: ReferenceEncoder) -> str | None:
    """Finds the first feature of a file that keeps it on the reference.

    Args:
        spec: A parsed tokenizer.json.
        reference: The reference on it, with its control tokens.

    Returns:
        One phrase that names the feature, or None where all are allowed.
    """
    if sys.byteorder != "little":
        return "the machine is big-endian"
    return (
        _of_model(spec)
        or _of_part("normalizer", spec.get("normalizer"), "normalizers", _NORMALIZERS)
        or _of_part("pre-tokenizer", spec.get("pre_tokenizer"), "pretokenizers", _PRE_TOKENIZERS)
        or _of_part("post-processor", spec.get("post_processor"), "processors", _POST_PROCESSORS)
        or _of_template(spec.get("post_processor"))
        or _of_added_tokens(spec)
        or _of_control_tokens(reference)
    )


def _of_model(spec: Mapping[str, Any]) -> str | None:
    model = spec["model"]
    if model.get("type") != "BPE":
        return f"the model is {model.get('type', 'of no named type')}"
    unknown = sorted(model.keys() - _MODEL_KEYS)
    if unknown:
        return f"the model has {', '.join(unknown)}"
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            return f"the model has a {key}"
    # Text outside the vocabulary would become unk or vanish, and the engines need not agree how.
    vocab = model["vocab"].keys()
    if "ByteLevel" in _kinds(spec.get("pre_tokenizer"), "pretokenizers"):
        n_missing = len(BYTE_ALPHABET - vocab)
    elif model.get("byte_fallback"):
        n_missing = len(_BYTE_TOKENS - vocab)
    else:
        return "the model has no tokens for bytes: no ByteLevel pre-tokenizer and no byte fallback"
    return f"{n_missing} of the 256 bytes have no token" if n_missing else None


def _of_part(
    name: str, part: Mapping[str, Any] | None, members: str, allowed: Mapping[str, set[str]]
) -> str | None:
    if part is None:
        return None
    kind = str(part.get("type", "a step of no named type"))
    if kind == "Sequence":
        found = (_of_part(name, member, members, allowed) for member in part.get(members, []))
        return next(filter(None, found), None)
    if kind not in allowed:
        return f"the {name} has {kind}"
    unknown = sorted(part.keys() - allowed[kind])
    return f"the {name} {kind} has {', '.join(unknown)}" if unknown else None


def _of_template(post_processor: Mapping[str, Any] | None) -> str | None:
    pieces = template_pieces(None if post_processor is None else dict(post_processor), "single")
    if any(piece.type_id for piece in pieces):
        return "the post-processor gives tokens of a single text types"
    if pieces and sum(piece.sequence is not None for piece in pieces) != 1:
        return "the post-processor's template has the text not exactly once"
    return None


def _of_added_tokens(spec: Mapping[str, Any]) -> str | None:
    has_normalizer = bool(_kinds(spec.get("normalizer"), "normalizers"))
    for token in spec.get("added_tokens") or []:
        if token.get("single_word"):
            return f"the added token {token['content']!r} is single_word"
        if token.get("normalized") and has_normalizer:
            return f"the added token {token['content']!r} is looked for in normalized text"
        if not token["content"]:
            return "an added token is empty"
    return None


def _of_control_tokens(reference: ReferenceEncoder) -> str | None:
    # TEXT then has to look at the ids of each text, and the fast engine shows none.
    return "the model itself makes control tokens of text" if reference.reaches_control_tokens else None


def _kinds(part: Mapping[str, Any] | None, members: str) -> set[str]:
    """Returns the types of a part's steps, at any depth."""
    if part is None:
        return set()
    if part.get("type") == "Sequence":
        return {kind for member in part.get(members, []) for kind in _kinds(member, members)}
    return {str(part.get("type"))}
