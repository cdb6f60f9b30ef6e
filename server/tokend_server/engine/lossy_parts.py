"""What the parts of a tokenizer file may do to a text, so that decoding does not give it back.

Only one way of cutting text keeps all of it for certain: into bytes, each of which has a token. The parts before
and behind must then leave the text alone. Whatever is not known to do so is named.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer

from tokend_server.engine.byte_alphabet import BYTE_ALPHABET, byte_level_bytes, fallback_byte
from tokend_server.engine.decoders import decoder_stages
from tokend_server.engine.masking import reachable_strings
from tokend_server.engine.template import template_pieces

__all__ = ["lossy_parts"]

Part = Mapping[str, Any]

# The bytes of UTF-8; 0xC0, 0xC1 and those from 0xF5 on are in no text, and need no token.
_BYTES_OF_TEXT = frozenset(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}

_DROPS_WHITE_SPACE = frozenset({"Whitespace", "WhitespaceSplit", "BertPreTokenizer"})
_CUTS_ONLY = frozenset({"Digits", "Punctuation", "Split", "UnicodeScripts", "FixedLength"})

_NORMALIZERS = {
    "BertNormalizer": "cleans white space and controls, and may lower case and take accents off",
    "Lowercase": "lowers case",
    "NFC": "composes characters",
    "NFD": "takes characters apart",
    "NFKC": "composes characters and replaces compatible ones",
    "NFKD": "takes characters apart and replaces compatible ones",
    "Nmt": "replaces white space and controls",
    "Precompiled": "replaces characters by its own table",
    "Strip": "takes white space off the ends",
    "StripAccents": "takes accents off",
}

_DECODERS = {
    "BPEDecoder": "the decoder writes one space for whatever stood between words",
    "CTC": "the decoder makes one of equal neighbours",
    "WordPiece": "the decoder writes spaces between words, whatever stood there",
}


def lossy_parts(spec: Part, control_tokens: Collection[str]) -> Iterator[str]:
    """Names what may change a text; nothing for a file that gives every text back.

    Args:
        spec: The parsed tokenizer.json.
        control_tokens: What TEXT keeps as text, so that its added tokens are never found in a text.

    Yields:
        One phrase for each part.
    """
    normalizers = [*_flat(spec.get("normalizer"))]
    pre_tokenizers = [*_flat(spec.get("pre_tokenizer"))]
    stages = [stage for stage in decoder_stages(spec.get("decoder")) if stage["type"] != "Fuse"]
    n_byte_levels = [part["type"] for part in (*normalizers, *pre_tokenizers)].count("ByteLevel")
    for normalizer in normalizers:
        yield from _of_normalizer(normalizer, stages)
    for pre_tokenizer in pre_tokenizers:
        yield from _of_pre_tokenizer(pre_tokenizer)
    if any(_removes_the_rest(part) for part in pre_tokenizers):
        yield from _of_patterns(spec["pre_tokenizer"], reads_bytes="ByteLevel" in map(_type, pre_tokenizers))
    if n_byte_levels > 1:
        yield "the byte alphabet is written twice"
    yield from _of_model(spec["model"], control_tokens, reads_bytes=n_byte_levels > 0)
    yield from _of_decoder(stages, reads_bytes=n_byte_levels > 0, is_there=spec.get("decoder") is not None)
    yield from _of_template(spec.get("post_processor"))


def _flat(part: Part | None) -> Iterator[Part]:
    """The parts of a Sequence, at any depth, or the part itself."""
    if part is None:
        return
    members = part.get("normalizers", part.get("pretokenizers")) if part["type"] == "Sequence" else None
    if members is None:
        yield part
        return
    for member in members:
        yield from _flat(member)


def _type(part: Part) -> str:
    return str(part["type"])


def _of_normalizer(part: Part, stages: Collection[Part]) -> Iterator[str]:
    kind = _type(part)
    if kind == "ByteLevel":
        return
    if kind == "Replace":
        # What the decoder puts back is lost only where the text holds the replacement itself: see the decoder.
        if not any(_undoes(stage, part) for stage in stages):
            yield "the normalizer Replace changes text"
    elif kind == "Prepend":
        if not any(stage["type"] in {"Strip", "Metaspace"} for stage in stages):
            yield f"the normalizer puts {part['prepend']!r} in front of a text"
    else:
        yield f"the normalizer {kind} {_NORMALIZERS.get(kind, 'may change text')}"


def _undoes(stage: Part, normalizer: Part) -> bool:
    old, new = normalizer["pattern"].get("String"), normalizer["content"]
    if stage["type"] == "Metaspace":
        return bool((old, new) == (" ", stage["replacement"]))
    return bool(
        stage["type"] == "Replace" and stage["pattern"].get("String") == new and stage["content"] == old
    )


def _of_pre_tokenizer(part: Part) -> Iterator[str]:
    kind = _type(part)
    if kind == "ByteLevel":
        if part.get("add_prefix_space"):
            yield "the pre-tokenizer puts a space in front of a text that has none"
    elif kind == "Metaspace":
        # A space that is there already does for the one that would be put there.
        if part.get("prepend_scheme", "always") != "never":
            yield "the pre-tokenizer makes no difference between a text with a space in front and one without"
    elif kind in _DROPS_WHITE_SPACE:
        yield f"the pre-tokenizer {kind} drops white space"
    elif kind == "CharDelimiterSplit":
        yield "the pre-tokenizer drops its delimiter"
    elif kind not in _CUTS_ONLY:
        yield f"the pre-tokenizer {kind} may change text"
    elif part.get("behavior") == "Removed" and not part.get("invert"):
        yield f"the pre-tokenizer {kind} drops what it cuts at"


def _removes_the_rest(part: Part) -> bool:
    return bool(part.get("behavior") == "Removed" and part.get("invert"))


def _of_patterns(pre_tokenizer: Part, *, reads_bytes: bool) -> Iterator[str]:
    """A Split that removes what its pattern does not match loses nothing if it matches every character: they are tried."""
    cut = _pre_tokenizer(pre_tokenizer).pre_tokenize_str
    n_lost = 0
    for characters in _characters_apart():
        pieces = "".join(piece for piece, _ in cut(characters))
        left = byte_level_bytes(pieces).decode(errors="replace") if reads_bytes else pieces
        n_lost += len(characters) - len(left)
    if n_lost > 0:
        yield "the pre-tokenizer Split drops what its pattern does not match"


def _characters_apart() -> Iterator[str]:
    """Every character of the planes where text is, and some of the others, with a digit behind each, in pieces.

    Patterns take a letter, a space or a sign together with what stands beside it; a digit stands for itself.
    """
    places = [*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x110000, 64)]
    step = 1024
    for start in range(0, len(places), step):
        yield "".join(f"{chr(place)}0" for place in places[start : start + step])


def _pre_tokenizer(part: Part) -> Any:  # noqa: ANN401 (the library has no types)
    model = {"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""}
    spec = {"version": "1.0", "added_tokens": [], "model": model, "pre_tokenizer": part}
    return Tokenizer.from_str(json.dumps(spec)).pre_tokenizer


def _of_model(model: Part, control_tokens: Collection[str], *, reads_bytes: bool) -> Iterator[str]:
    vocab = model["vocab"]
    strings = (
        vocab
        if isinstance(vocab, Mapping)
        else {piece: token_id for token_id, (piece, _) in enumerate(vocab)}
    )
    if isinstance(vocab, Mapping) and len(set(vocab.values())) < len(vocab):
        yield "two tokens of the vocabulary have one id"
    affixes = ("continuing_subword_prefix", "end_of_word_suffix")
    if model.get("type") == "BPE" and any(map(model.get, affixes)):
        yield "the model marks where words begin or end, which is not its text"
    byte_names = {byte: f"<0x{byte:02X}>" for byte in range(256)}
    # A control token that the model itself holds is out of a text's reach, be it the token of a byte.
    own = {*BYTE_ALPHABET, *byte_names.values()}
    held = reachable_strings(dict(model), own.intersection(control_tokens))
    if reads_bytes and model.get("type") in {"BPE", "Unigram"}:
        letters = (letter for letter in BYTE_ALPHABET if letter in strings and letter not in held)
        known = {byte for letter in letters for byte in byte_level_bytes(letter)}
    elif model.get("byte_fallback"):
        known = {byte for byte, name in byte_names.items() if name in strings and name not in held}
        if reachable_strings(dict(model), [name for name in strings if fallback_byte(name) is not None]):
            yield "a text that spells the token of a byte is taken for that byte"
    else:
        yield "text that the vocabulary cannot express becomes the unk token, is dropped or is refused"
        return
    missing = _BYTES_OF_TEXT - known
    if missing:
        yield f"{len(missing)} bytes have no token"


def _of_decoder(stages: Collection[Part], *, reads_bytes: bool, is_there: bool) -> Iterator[str]:
    if not is_there:
        yield "there is no decoder: tokens are joined with spaces"
    if reads_bytes and "ByteLevel" not in map(_type, stages):
        yield "the decoder does not read the byte alphabet"
    for stage in stages:
        kind = stage["type"]
        if kind == "Replace":
            old = stage["pattern"].get("String", stage["pattern"].get("Regex"))
            yield f"{old!r} in a text comes back as {stage['content']!r}"
        elif kind == "Metaspace":
            yield f"{stage['replacement']!r} in a text comes back as a space, or as nothing at the start"
        elif kind in _DECODERS:
            yield _DECODERS[kind]
        elif kind == "ByteLevel" and not reads_bytes:
            yield "the decoder reads letters as bytes"
        elif kind not in {"ByteLevel", "ByteFallback", "Strip"}:
            yield f"the decoder {kind} may change text"
    marks = Counter(map(_type, stages))
    if marks["Strip"] and not marks["Replace"]:
        yield "the decoder takes characters off the start of a text"


def _of_template(post_processor: dict[str, Any] | None) -> Iterator[str]:
    sequences = [piece.sequence for piece in template_pieces(post_processor, "single") if piece.sequence]
    if post_processor is not None and template_pieces(post_processor, "single") and sequences != ["A"]:
        yield "the template of the post-processor does not hold the text once"
