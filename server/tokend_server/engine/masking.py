"""A model on which no text reaches certain strings of its vocabulary; the ids of all others stay as they are.

The reference's switch for special tokens skips the added tokens alone. A model whose vocabulary holds the string
gives the id all the same: a Unigram file for the text `<s>`, for instance.
"""

import json
import secrets
from collections.abc import Collection, Iterator
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import Model

__all__ = ["masked_model", "reachable_strings"]


def reachable_strings(model: dict[str, Any], strings: Collection[str]) -> frozenset[str]:
    """Finds the strings that the model itself may make of a text, whatever the added tokens do.

    Args:
        model: The `model` object of a parsed tokenizer.json.
        strings: The strings in question.

    Returns:
        Those of them that the model's vocabulary holds and that it can reach: for BPE by a merge, as a single
        character or by `ignore_merges`, for the other models always.
    """
    vocab = model["vocab"]
    known = {piece for piece, _ in vocab} if isinstance(vocab, list) else vocab
    held = frozenset(string for string in strings if string in known)
    if "merges" not in model or model.get("ignore_merges") or not held:
        return held
    made = {product for _, _, product in _merges(model) if product in held}
    return frozenset(string for string in held if len(string) == 1 or string in made)


def masked_model(data: bytes, strings: Collection[str]) -> Model:
    """Builds the file's model once more with some strings made unreachable.

    They are renamed to random strings, and the merges that make or use them are dropped. Everything else keeps
    its id. This takes as long as loading the file.

    Args:
        data: The bytes of the tokenizer.json.
        strings: Strings of its model's vocabulary, not the unk token.

    Returns:
        The model for a `Tokenizer`.
    """
    model = json.loads(data)["model"]
    # No text can hold a name that nobody knows.
    nonce = secrets.token_hex(16)
    names = {string: f"\ue000{nonce}{n}" for n, string in enumerate(strings)}
    vocab = model["vocab"]
    if isinstance(vocab, list):
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    else:
        model["vocab"] = {names.get(piece, piece): token_id for piece, token_id in vocab.items()}
    if "merges" in model:
        model["merges"] = [
            [left, right]
            for left, right, product in _merges(model)
            if names.keys().isdisjoint((left, right, product))
        ]
    parts = dict.fromkeys(
        ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    )
    built = Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], **parts, "model": model}))
    masked: Model = built.model
    return masked


def _merges(model: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields each merge as left part, right part and product; Source: the library's `BPE` serialization."""
    prefix = model.get("continuing_subword_prefix") or ""
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield left, right, left + right[len(prefix) :]
