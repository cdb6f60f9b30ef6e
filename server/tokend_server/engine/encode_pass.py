"""One pass of one frozen instance over the items of a call."""

from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import Encoding, Tokenizer

from tokend_server.engine.encode_options import EncodeOptions
from tokend_server.engine.instances import Instance, TextInstance
from tokend_server.engine.library_calls import call_library
from tokend_server.engine.offsets import OffsetUnit
from tokend_server.engine.truncation import Truncation, kept_lengths, truncate_encoding

# Item and Result are named tuples because thousands are made in a call: a frozen dataclass costs four times as much.

__all__ = ["Item", "Result", "encode_items"]


class Item(NamedTuple):
    """One text of a call, or pair of texts, and its place in the call."""

    place: int
    text: str
    pair: str | None


class Result(NamedTuple):
    """What one instance made of one item."""

    encoding: Encoding
    ids: list[int] | None
    """The ids where they have been read already (each reading makes a list), or where they were renumbered."""
    total: int
    surfaced: bool
    """The model itself made a control token of the text."""


def encode_items(
    instance: Instance, items: Sequence[Item], options: EncodeOptions, watching: TextInstance | None = None
) -> list[Result]:
    """Encodes items with one instance, all or nothing.

    Args:
        instance: The instance.
        items: One item or more, all with a pair or all without.
        options: How; the policy and the allowed tokens have been seen to by the choice of the instance.
        watching: Where given, results say whether one of its watched ids came out of the text.

    Returns:
        One result for each item, in order.

    Raises:
        InvalidOption: The vocabulary cannot express a text, and has no unk token.
        InternalFault: The library panicked.
    """
    if watching is not None and not watching.watched:
        watching = None
    if options.truncation is not None:
        return _truncated(instance, items, options, options.truncation, watching)
    is_pair = items[0].pair is not None
    texts = [(item.text, item.pair) if is_pair else item.text for item in items]
    results = []
    for encoding in _encodings(instance.full, texts, items, options):
        ids = _renumbered(instance, encoding)
        surfaced = False
        if watching is not None:
            ids = encoding.ids
            surfaced = _surfaces(
                watching, ids, n_added=watching.n_added[is_pair] if options.add_special_tokens else 0
            )
        results.append(Result(encoding=encoding, ids=ids, total=len(encoding), surfaced=surfaced))
    return results


def _truncated(
    instance: Instance,
    items: Sequence[Item],
    options: EncodeOptions,
    truncation: Truncation,
    watching: TextInstance | None,
) -> list[Result]:
    is_pair = items[0].pair is not None
    n_added = instance.full.num_special_tokens_to_add(is_pair) if options.add_special_tokens else 0
    firsts = _encodings(instance.raw, [item.text for item in items], items, options)
    seconds: list[Encoding | None] = [None] * len(items)
    if is_pair:
        # Behind an empty first text, so that the ids get the type of a second one.
        seconds = [*_encodings(instance.raw, [("", item.pair) for item in items], items, options)]
    results = []
    for first, second in zip(firsts, seconds, strict=True):
        parts = [first] if second is None else [first, second]
        n_text = sum(map(len, parts))
        # Before anything is cut: what stays depends on what is cut off.
        surfaced = watching is not None and any(_surfaces(watching, part.ids, n_added=0) for part in parts)
        kept = kept_lengths(len(first), n_text - len(first), truncation.max_tokens - n_added)
        for part, n_tokens in zip(parts, kept, strict=False):
            truncate_encoding(part, n_tokens, truncation.side)
        encoding = instance.full.post_process(first, second, options.add_special_tokens)
        ids = _renumbered(instance, encoding)
        results.append(Result(encoding=encoding, ids=ids, total=n_text + n_added, surfaced=surfaced))
    return results


def _encodings(
    tokenizer: Tokenizer, texts: Sequence[object], items: Sequence[Item], options: EncodeOptions
) -> list[Encoding]:
    # Both calls free the GIL, also for one text, which `encode` does not. The fast one keeps no offsets, and gives
    # the second text of a pair the type 0.
    wants_all = options.offsets is not OffsetUnit.NONE or options.include_tokens or items[0].pair is not None
    run = tokenizer.encode_batch if wants_all else tokenizer.encode_batch_fast
    return call_library(
        lambda batch: run(batch, add_special_tokens=options.add_special_tokens),
        texts,
        [item.place for item in items],
    )


def _surfaces(instance: TextInstance, ids: list[int], *, n_added: int) -> bool:
    """Whether more watched ids are here than the post-processor adds."""
    if instance.watched.isdisjoint(ids):
        return False
    return sum(map(instance.watched.__contains__, ids)) > n_added


def _renumbered(instance: Instance, encoding: Encoding) -> list[int] | None:
    """Returns the ids in the file's numbering, or None where the encoding has them in it."""
    if not instance.renumbered:
        return None
    return [instance.renumbered.get(token_id, token_id) for token_id in encoding.ids]
