"""Whether decoding gives back the text that was encoded: judged from the file's parts, proved on samples."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokend_server.engine.decoding import TextDecoder
from tokend_server.engine.lossy_parts import lossy_parts
from tokend_server.engine.reference import EncodeOptions, ReferenceEncoder
from tokend_server.errors import RequestError

__all__ = ["RoundTrip", "judge_round_trip"]

# Short texts that files which change text trip over: case, accents both ways, widths, every kind of space at either
# end and inside, line ends, joined emoji, unassigned and private code points, word marks, literal byte tokens, and
# every byte that a text may hold.
_SAMPLES = (
    "",
    " ",
    "Hello, world!",
    " leading and trailing ",
    "two  spaces   three",
    "tab\tline\nreturn\r\nend\n",
    "Été e\u0301te\u0301 ﬁ Ｗｉｄｅ ½ ²",
    "don't do not , . ! ? n't 's",
    "Он сказал: «Я не знаю» – и ушёл…",
    "日本語 한국어 ไทย हिन्दी العربية עברית",
    "👨\u200d👩\u200d👧 🇩🇪 🙂\ufe0f",
    "\u00a0\u2003\u3000\u200b\ufeff",
    "\x00\x01\x7f\u0085\u2028",
    "\ufffd \ue000 \U0010ffff \u0378",
    "▁word▁ <0x41> ##x x</w> Ġthe",
    "zqxj 1234567 3.14 a_b-c",
    "".join(map(chr, range(0x800))),
    "".join(map(chr, [*range(0x800, 0xD800, 0x400), *range(0xE000, 0x110000, 0x8000)])),
)

_MOST_TOKENS_TRIED = 256
_MOST_TOKENS_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """Whether encode-then-decode is exact for every text, and why not where it is not."""

    exact: bool
    reason: str
    """What may change a text; "" where nothing does."""


def judge_round_trip(
    spec: Mapping[str, Any], encoder: ReferenceEncoder, decoder: TextDecoder, control_tokens: Collection[str]
) -> RoundTrip:
    """Judge a file: text encoded under TEXT without added tokens, and decoded with special tokens kept.

    The parts decide what can be promised for every text; the samples then prove it, or prove the promise wrong.

    Args:
        spec: The parsed tokenizer.json.
        encoder: Of the same file.
        decoder: Of the same file.
        control_tokens: What TEXT keeps as text; all other added tokens are found in a text.

    Returns:
        The verdict. A file that changes no sample is still not called exact where its parts allow a change.
    """
    added = spec.get("added_tokens") or []
    found = [entry for entry in added if entry["content"] not in control_tokens]
    reasons = [*lossy_parts(spec, control_tokens), *_of_added_tokens(found, spec["model"], decoder)]
    if not reasons:
        contents = [entry["content"] for entry in (*found[:_MOST_TOKENS_TRIED], *added[:_MOST_TOKENS_TRIED])]
        samples = (*_SAMPLES, *(f"a {content}a{content} {content}\n{content}" for content in contents))
        n_changed = sum(not _survives(text, encoder, decoder) for text in samples)
        if n_changed:
            reasons.append(f"{n_changed} of {len(samples)} samples came back changed")
    return RoundTrip(exact=not reasons, reason="; ".join(dict.fromkeys(reasons)))


def _survives(text: str, encoder: ReferenceEncoder, decoder: TextDecoder) -> bool:
    try:
        encoded = encoder.encode([text], None, EncodeOptions(add_special_tokens=False))[0]
    except RequestError:
        return False
    return decoder.decode(encoded.ids, skip_special_tokens=False) == text


def _of_added_tokens(
    entries: Collection[Mapping[str, Any]], model: Mapping[str, Any], decoder: TextDecoder
) -> Iterator[str]:
    """What added tokens that are found in a text do to it."""
    taking = [entry["content"] for entry in entries if entry["lstrip"] or entry["rstrip"]]
    if taking:
        yield f"added tokens that take the white space beside them along: {_named(taking)}"
    changed = [
        entry["content"]
        for entry in entries
        if decoder.decode([entry["id"]], skip_special_tokens=False) != entry["content"]
    ]
    if changed:
        yield f"added tokens that decode to another text: {_named(changed)}"
    vocab = model["vocab"]
    if isinstance(vocab, Mapping):
        contents = {entry["id"]: entry["content"] for entry in entries}
        if any(contents.get(token_id, token) != token for token, token_id in vocab.items()):
            yield "an added token has the id of another token"


def _named(contents: Iterable[str]) -> str:
    names = [repr(content) for content in contents]
    more = f" and {len(names) - _MOST_TOKENS_NAMED} more" if len(names) > _MOST_TOKENS_NAMED else ""
    return f"{', '.join(names[:_MOST_TOKENS_NAMED])}{more}"
