"""Whether decoding gives back the text that was encoded: judged from the file's parts, proved on samples."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from tokend_server.engine.decoding import TextDecoder
from tokend_server.engine.reference import EncodeOptions, ReferenceEncoder
from tokend_server.errors import RequestError

__all__ = ["RoundTrip", "judge_round_trip"]

# Short texts that files which change text trip over: case, accents both ways, widths, every kind of space at either
# end and inside, line ends, joined emoji, unassigned and private code points, word marks, literal byte tokens.
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
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """Whether encode-then-decode is exact for every text, and why not where it is not."""

    exact: bool
    reason: str
    """What may change a text; "" where nothing does."""


def judge_round_trip(spec: Mapping[str, Any], encoder: ReferenceEncoder, decoder: TextDecoder) -> RoundTrip:
    """Judge a file.

    The parts decide what can be promised for every text; the samples then prove it, or prove the promise wrong.

    Args:
        spec: The parsed tokenizer.json.
        encoder: Of the same file.
        decoder: Of the same file.

    Returns:
        The verdict. A file that changes no sample is still not called exact where its parts allow a change.
    """
    reasons = list(_lossy_parts(spec))
    changed = sum(not _survives(text, encoder, decoder) for text in _SAMPLES)
    if changed:
        reasons.append(f"{changed} of {len(_SAMPLES)} samples came back changed")
    return RoundTrip(exact=not reasons, reason="; ".join(reasons))


def _survives(text: str, encoder: ReferenceEncoder, decoder: TextDecoder) -> bool:
    try:
        encoded = encoder.encode([text], None, EncodeOptions(add_special_tokens=False))[0]
    except RequestError:
        return False
    return decoder.decode(encoded.ids, skip_special_tokens=False) == text


def _lossy_parts(spec: Mapping[str, Any]) -> Iterable[str]:
    model = spec["model"]
    kinds = set(_kinds(spec.get("pre_tokenizer"))) | set(_kinds(spec.get("normalizer")))
    byte_level = "ByteLevel" in kinds
    for kind in _kinds(spec.get("normalizer")):
        # These two only write the word mark that the decoder takes away again.
        if kind not in {"Prepend", "Replace", "ByteLevel"}:
            yield f"the normalizer {kind} may change text"
    if byte_level:
        missing = 256 - len(_byte_alphabet() & set(model.get("vocab", ())))
        if missing:
            yield f"{missing} bytes have no token"
    elif model.get("byte_fallback"):
        vocab = model.get("vocab", ())
        strings = set(vocab) if isinstance(vocab, Mapping) else {piece for piece, _ in vocab}
        missing = sum(f"<0x{byte:02X}>" not in strings for byte in range(256))
        if missing:
            yield f"{missing} bytes have no token"
    else:
        yield "characters outside the vocabulary become the unk token or are dropped"
    if not byte_level and kinds & {"Whitespace", "WhitespaceSplit", "BertPreTokenizer"}:
        yield "the pre-tokenizer drops white space"


def _kinds(part: Mapping[str, Any] | None) -> Iterable[str]:
    if part is None:
        return
    members = next((part[key] for key in ("normalizers", "pretokenizers") if key in part), None)
    if members is None:
        yield str(part.get("type"))
        return
    for member in members:
        yield from _kinds(member)


def _byte_alphabet() -> set[str]:
    return set(ByteLevel.alphabet())
