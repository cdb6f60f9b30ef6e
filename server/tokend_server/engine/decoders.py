"""The decoder that a tokenizer file asks for, read from its JSON: which kind of streaming is exact for it.

A decoder is a list of stages that turn token strings into text. Three sorts of stages matter here: those that
map each token on its own (the library itself maps every token once, at load), the one that joins tokens into
bytes or text, and edits of the joined text. `plan_decoder` sorts them, or says why it cannot.

Source: decoders of the `tokenizers` library, version 0.23.3.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tokenizers import Tokenizer

from tokend_server.engine.byte_alphabet import byte_level_bytes, fallback_byte
from tokend_server.engine.edits import CharacterReplacement, Edit, LeadingStrip
from tokend_server.errors import TokenizerFileError

__all__ = [
    "DecoderKind",
    "DecoderPlan",
    "TokenBytesReader",
    "decoder_stages",
    "plan_decoder",
    "stage_function",
]

Stage = Mapping[str, Any]

_PER_TOKEN = frozenset({"Replace", "Strip", "Metaspace", "WordPiece", "BPEDecoder", "CTC"})
_FIRST_TOKEN = frozenset({"Metaspace", "WordPiece"})
_JOINS = frozenset({"ByteLevel", "ByteFallback", "Fuse"})
_REPLACEMENT_CHARACTER = "\ufffd"


class DecoderKind(StrEnum):
    """How the text of a stream follows from its ids; the value is the `mode` that GetTokenizer reports."""

    BYTES = "bytes"
    """Ids are bytes; text is held only while a character is open."""
    BYTE_RUNS = "byte-runs"
    """Ids are text, but for byte tokens, whose runs are bytes."""
    TEXT = "text"
    """Ids are text."""
    FIRST_TOKEN = "first-token"  # noqa: S105 (no password)
    """Ids are text, and the first one that counts has another text than later ones."""
    SUFFIX = "suffix"
    """Ids are text, and the last one has another text than earlier ones."""
    CTC = "ctc"
    """Ids are text, and equal neighbours are one."""
    HELD = "held"
    """Nothing is known of a part before the whole; ids are held and decoded at the end."""


_REASONS = {
    DecoderKind.BYTES: "tokens are bytes: at most 3 are held, while a character is open",
    DecoderKind.BYTE_RUNS: "byte tokens: at most 3 bytes are held; with HOLD, a run of byte tokens while it is valid",
    DecoderKind.TEXT: "tokens are text: nothing is held",
    DecoderKind.FIRST_TOKEN: "tokens are text, the first one differs: nothing is held",
    DecoderKind.SUFFIX: "the last token differs: the end of the newest token is held, from its word-end suffix on",
    DecoderKind.CTC: "equal neighbours are one token: nothing is held",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderPlan:
    """What `plan_decoder` found."""

    kind: DecoderKind
    """The kind of streaming."""
    reason: str
    """One sentence for GetTokenizer: what is held back, or why nothing can be streamed."""
    token_stages: tuple[Stage, ...] = ()
    """Stages that map each token on its own, in order; applied by the library, once for each id."""
    edits: tuple[Edit, ...] = ()
    """Edits of the joined text, in order."""
    spaced: bool = False
    """There is no decoder at all: tokens are joined with one space."""

    @property
    def first_token(self) -> bool:
        """Whether the first token that counts has another text than later ones."""
        return any(stage["type"] in _FIRST_TOKEN for stage in self.token_stages)

    @property
    def stages_before_ctc(self) -> tuple[Stage, ...]:
        """Stages that come before neighbours are compared; all of them where there is no CTC."""
        n_before = next((i for i, stage in enumerate(self.token_stages) if stage["type"] == "CTC"), None)
        return self.token_stages[:n_before]


def decoder_stages(decoder: Stage | None) -> tuple[Stage, ...]:
    """The stages of a file's decoder with its Sequences, nested ones too, laid flat; empty for none.

    Args:
        decoder: The value of `decoder` in the file.
    """
    if decoder is None:
        return ()
    if decoder.get("type") != "Sequence":
        return (decoder,)
    return tuple(stage for part in decoder.get("decoders", ()) for stage in decoder_stages(part))


def stage_function(stages: Sequence[Stage]) -> Callable[[list[str]], str]:
    """The library's own decoder for some stages: from a list of token strings to their joined text.

    Args:
        stages: Stages as in the file; none at all joins the strings as they are.
    """
    model = {"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""}
    decoder = {"type": "Sequence", "decoders": [dict(stage) for stage in stages]}
    spec = {"version": "1.0", "added_tokens": [], "model": model, "decoder": decoder}
    function: Callable[[list[str]], str] = Tokenizer.from_str(json.dumps(spec)).decoder.decode
    return function


def plan_decoder(decoder: Stage | None) -> DecoderPlan:
    """Sort the stages of a file's decoder into a plan for exact streaming.

    Args:
        decoder: The value of `decoder` in the file; None is a decoder too, it joins tokens with one space.

    Returns:
        A plan; its kind is HELD, with the reason, where no exact way to stream is known.

    Raises:
        TokenizerFileError: The library panics on this decoder.
    """
    if decoder is None:
        return _plan(DecoderKind.FIRST_TOKEN, spaced=True)
    stages = decoder_stages(decoder)
    if any(stage.get("type") == "Strip" and stage.get("stop", 0) > 0 for stage in stages):
        raise TokenizerFileError("its decoder has a Strip with stop > 0, on which the library panics")
    types = [str(stage.get("type")) for stage in stages]
    n_per_token = next((i for i, kind in enumerate(types) if kind not in _PER_TOKEN), len(types))
    token_types, rest_types = types[:n_per_token], types[n_per_token:]
    join = rest_types[0] if rest_types else "Fuse"
    if join not in _JOINS:
        return _held(f"a decoder stage {join} is not known here")
    edits: list[Edit] = []
    fused = join != "ByteFallback"
    for stage, kind in zip(stages[n_per_token + 1 :], rest_types[1:], strict=True):
        edit = _edit(stage)
        if kind == "Fuse":
            fused = True
        elif edit is None or (kind == "Strip" and not fused):
            return _held(f"a stage {kind} behind {join} may change text that was sent already")
        else:
            edits.append(edit)
    return _plan_joined(join, token_types, stages[:n_per_token], tuple(edits))


def _plan_joined(
    join: str, token_types: Sequence[str], token_stages: tuple[Stage, ...], edits: tuple[Edit, ...]
) -> DecoderPlan:
    """The plan for stages that are sorted already."""
    first_token = not _FIRST_TOKEN.isdisjoint(token_types)
    neighbours = [kind for kind in token_types if kind in {"BPEDecoder", "CTC"}]
    if neighbours and (first_token or len(neighbours) > 1 or join != "Fuse"):
        return _held(f"a stage {neighbours[0]} together with other stages that look at neighbours")
    if first_token and join == "ByteFallback":
        return _held("a first-token stage in front of ByteFallback")
    if join == "ByteLevel":
        kind = DecoderKind.BYTES
    elif join == "ByteFallback":
        kind = DecoderKind.BYTE_RUNS
    elif neighbours:
        kind = DecoderKind.SUFFIX if neighbours[0] == "BPEDecoder" else DecoderKind.CTC
    else:
        kind = DecoderKind.FIRST_TOKEN if first_token else DecoderKind.TEXT
    return _plan(kind, token_stages=token_stages, edits=edits)


def _plan(kind: DecoderKind, **parts: Any) -> DecoderPlan:  # noqa: ANN401 (fields of DecoderPlan)
    return DecoderPlan(kind=kind, reason=_REASONS[kind], **parts)


def _held(why: str) -> DecoderPlan:
    return DecoderPlan(
        kind=DecoderKind.HELD, reason=f"{why}: ids are held and decoded at the end of the stream"
    )


def _edit(stage: Stage) -> Edit | None:
    """The edit of joined text that a stage is, or None where it needs more than the characters at hand."""
    if stage.get("type") == "Strip":
        content = stage["content"]
        # U+FFFD may stand for bytes that are no text, so text edits of it are not edits of the bytes.
        return None if content == _REPLACEMENT_CHARACTER else LeadingStrip(content, stage["start"])
    if stage.get("type") == "Replace":
        pattern = stage["pattern"].get("String")
        if isinstance(pattern, str) and len(pattern) == 1 and pattern != _REPLACEMENT_CHARACTER:
            return CharacterReplacement(pattern, stage["content"])
    return None


class TokenBytesReader:
    """Reads the true bytes of a token off its string, for one decoder.

    Strip stages are left out: they throw text away, and true bytes keep it. So is what a first or last token
    has of its own, since a token alone has no place.

    Args:
        stages: The decoder's stages, laid flat; none for a file without a decoder.
    """

    __slots__ = ("_byte_fallback", "_byte_level", "_map", "_prefixes")

    def __init__(self, stages: Sequence[Stage]) -> None:
        types = {stage.get("type") for stage in stages}
        self._byte_level = "ByteLevel" in types
        self._byte_fallback = "ByteFallback" in types
        self._prefixes = tuple(str(stage["prefix"]) for stage in stages if stage.get("type") == "WordPiece")
        mapping = [
            stage for stage in stages if stage.get("type") in {"Replace", "Metaspace", "BPEDecoder", "CTC"}
        ]
        self._map = stage_function(mapping) if mapping else None

    def read(self, string: str, *, added_content: str | None = None) -> bytes:
        """The true bytes of one token.

        Args:
            string: The token's string.
            added_content: Content of the added token that it is, if it is one.
        """
        if added_content is not None:
            string = added_content
        if self._byte_fallback and (byte := fallback_byte(string)) is not None:
            return bytes((byte,))
        if self._map is not None:
            # A middle place: neither first nor last, with neighbours that no stage takes for equal.
            n_before = len(self._map(["\x00"]))
            n_behind = len(self._map(["\x00", "\x01"])) - n_before
            mapped = self._map(["\x00", string, "\x01"])
            string = mapped[n_before : len(mapped) - n_behind]
        if added_content is not None:
            return string.encode()
        if self._byte_level:
            return byte_level_bytes(string)
        prefix = next((prefix for prefix in self._prefixes if string.startswith(prefix)), "")
        return string.removeprefix(prefix).encode()
