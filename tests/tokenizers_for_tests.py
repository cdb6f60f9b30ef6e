"""Small tokenizers for the tests, each built as the text of a `tokenizer.json`.

Every builder is a function with keyword options that returns the file's text, so that a test can serve it
(`write`), load it in the library (`load`) or change it (`json.loads`). Nothing here checks that a file is
sound: some tests need one that is not.

The short names are those of the bug-report cases:

| name | builder | ids |
|---|---|---|
| `BL` | `byte_level_bpe` | 0..255 are the byte values, 256..261 merges, 262 `<|bos|>`, 263 `<|end|>`, 264 `<tool>` |
| `BLO` | `byte_level_bpe_with_odd_letter` | as BL, but 263 is the plain added token `ilÖveyou` |
| `BF` | `byte_fallback_bpe` | 0 `<unk>`, 1 `<s>`, 2 `</s>`, byte b is 3+b, 259 `▁`, 260..285 a..z, 286 `hi`, 287 `▁hi` |
| `BFM` | `byte_fallback_bpe(modern=True)` | as BF, with Metaspace in place of the normalizer |
| `WP` | `word_piece` | 0 `[PAD]`, 1 `[UNK]`, 2 `[CLS]`, 3 `[SEP]`, 4 `[MASK]`, then `WORD_PIECES[5:]` |
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

Part = dict[str, Any]

BYTE_TO_LETTER = {
    byte: chr(byte if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174 else 256 + n_unprintable)
    for byte, n_unprintable in zip(
        range(256),
        # How many bytes before this one have no printable letter of their own: they get U+0100, U+0101, ...
        [
            sum(not (33 <= b <= 126 or 161 <= b <= 172 or b >= 174) for b in range(byte))
            for byte in range(256)
        ],
        strict=True,
    )
}
"""The byte-level alphabet of GPT-2: the printable letter that stands for each byte in a vocabulary."""

WORD_PIECES = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", ",", ".", "!"),
    *("caf", "##e", "don", "'", "t", "##s", "cafe", "na", "##ive", "北", "京"),
)
WORD_MARK = "▁"


def byte_letters(data: bytes) -> str:
    """The letters of the byte-level alphabet for `data`, as a byte-level vocabulary spells them."""
    return "".join(BYTE_TO_LETTER[byte] for byte in data)


def added_token(token_id: int, content: str, *, special: bool = True, **flags: bool) -> Part:
    """One entry of `added_tokens`; `flags` are lstrip, rstrip, single_word, normalized (default: not special)."""
    entry = {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False}
    return {**entry, "normalized": not special, "special": special, **flags}


def tokenizer_json(
    model: Part,
    *,
    normalizer: Part | None = None,
    pre_tokenizer: Part | None = None,
    post_processor: Part | None = None,
    decoder: Part | None = None,
    added: Sequence[Part] = (),
    truncation: Part | None = None,
    padding: Part | None = None,
) -> str:
    """The text of a tokenizer file made of these parts, in the order in which the library writes them."""
    spec = {
        "version": "1.0",
        "truncation": truncation,
        "padding": padding,
        "added_tokens": list(added),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": model,
    }
    return json.dumps(spec, ensure_ascii=False)


def write(folder: Path, text: str, name: str = "tokenizer.json") -> Path:
    """Write a tokenizer file into `folder` and return its path."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def load(text: str) -> Tokenizer:
    """The reference itself, on this file."""
    return Tokenizer.from_str(text)


def bpe_model(vocab: Mapping[str, int], merges: Sequence[tuple[str, str]], **options: object) -> Part:
    """A BPE model without unk, byte fallback or suffix, unless `options` say so."""
    plain = {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
    }
    flags = {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    tables = {"vocab": dict(vocab), "merges": [list(merge) for merge in merges]}
    return {"type": "BPE", **plain, **flags, **options, **tables}


def template(
    single: str,
    pair: str,
    ids: Mapping[str, int],
    *,
    second_type_id: int = 1,
    last_type_id: int | None = None,
) -> Part:
    """A TemplateProcessing from two strings of names, where `A` and `B` stand for the two texts.

    `B` gets `second_type_id`; special tokens after it get `last_type_id` (None: 0).
    """

    def piece(name: str, type_id: int) -> Part:
        kind = "Sequence" if name in {"A", "B"} else "SpecialToken"
        return {kind: {"id": name, "type_id": type_id}}

    def pieces(names: Sequence[str]) -> list[Part]:
        after_b, made = False, []
        for name in names:
            after = last_type_id if after_b and last_type_id is not None else 0
            made.append(piece(name, second_type_id if name == "B" else after))
            after_b = after_b or name == "B"
        return made

    special = {name: {"id": name, "ids": [token_id], "tokens": [name]} for name, token_id in ids.items()}
    names = {"single": pieces(single.split()), "pair": pieces(pair.split())}
    return {"type": "TemplateProcessing", **names, "special_tokens": special}


def _with_merges(vocab: dict[str, int], merges: Sequence[tuple[str, str]]) -> dict[str, int]:
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    return vocab


def byte_level_bpe(
    *,
    added: Sequence[Part] | None = None,
    post: bool = True,
    truncation: Part | None = None,
    padding: Part | None = None,
    ignore_merges: bool = False,
    extra_vocab: Sequence[str] = (),
    normalizer: Part | None = None,
    decoder: Part | None = None,
    use_regex: bool = True,
    add_prefix_space: bool = False,
    trim_offsets: bool = False,
) -> str:
    """BL: byte-level BPE in which ids 0..255 are the byte values.

    256 `th`, 257 `the`, 258 ` the`, 259 the first two bytes of most emoji, 260 `aa`, 261 `aaaa`; then
    `extra_vocab` (spelled in the byte alphabet, reached by no merge), then the added tokens.

    Args:
        added: Entries in place of `<|bos|>`, `<|end|>` (both special) and `<tool>` (not special).
        post: Whether the post-processor puts `<|bos|>` (the first added id) in front.
        decoder: In place of ByteLevel.
        ignore_merges: The model's flag: a whole word in the vocabulary needs no merges.
        truncation, padding, normalizer: These parts of the file.
        extra_vocab, use_regex, add_prefix_space, trim_offsets: As their names say.
    """
    space = BYTE_TO_LETTER[0x20]
    emoji = (BYTE_TO_LETTER[0xF0], BYTE_TO_LETTER[0x9F])
    merges = [("t", "h"), ("th", "e"), (space, "the"), emoji, ("a", "a"), ("aa", "aa")]
    vocab = _with_merges({letter: byte for byte, letter in BYTE_TO_LETTER.items()}, merges)
    for word in extra_vocab:
        vocab[word] = len(vocab)
    first = len(vocab)
    if added is None:
        bos, end = added_token(first, "<|bos|>"), added_token(first + 1, "<|end|>")
        added = [bos, end, added_token(first + 2, "<tool>", special=False)]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": trim_offsets,
        "use_regex": use_regex,
    }
    return tokenizer_json(
        bpe_model(vocab, merges, ignore_merges=ignore_merges),
        normalizer=normalizer,
        pre_tokenizer=byte_level,
        post_processor=template("<|bos|> A", "<|bos|> A B", {"<|bos|>": first}) if post else None,
        decoder=decoder or byte_level,
        added=added,
        truncation=truncation,
        padding=padding,
    )


def byte_level_bpe_with_odd_letter() -> str:
    """BLO: 263 is an added token with a letter that the byte alphabet maps to another byte (Ö is 0xD6)."""
    return byte_level_bpe(added=[added_token(262, "<|bos|>"), added_token(263, "ilÖveyou", special=False)])


def byte_fallback_decoder(*, strip: bool = True) -> Part:
    """The decoder of the Llama 2 family: word marks to spaces, byte tokens to text, one leading space off."""
    stages: list[Part] = [
        {"type": "Replace", "pattern": {"String": WORD_MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if strip:
        stages.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": stages}


def byte_fallback_bpe(
    *,
    modern: bool = False,
    post: bool = True,
    extra_merges: Sequence[tuple[str, str]] = (),
    added: Sequence[Part] | None = None,
    decoder: Part | None = None,
) -> str:
    """BF: a small Llama 2, in which what the vocabulary lacks becomes tokens `<0x00>` to `<0xFF>`.

    Args:
        modern: BFM: a Metaspace pre-tokenizer ("first", no split) in place of Prepend and Replace normalizers.
        post: Whether the post-processor puts `<s>` in front (of a single text; a pair gets none).
        extra_merges: More merges, whose results get the ids from 288 on.
        added: Entries in place of `<unk>`, `<s>` and `</s>`, all special.
        decoder: In place of Replace, ByteFallback, Fuse, Strip.
    """
    merges = [("h", "i"), (WORD_MARK, "hi"), *extra_merges]
    symbols = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), WORD_MARK]
    symbols += [chr(ord("a") + n) for n in range(26)]
    vocab = _with_merges({symbol: token_id for token_id, symbol in enumerate(symbols)}, merges)
    if added is None:
        added = [added_token(token_id, symbols[token_id]) for token_id in range(3)]
    prepend: list[Part] = [
        {"type": "Prepend", "prepend": WORD_MARK},
        {"type": "Replace", "pattern": {"String": " "}, "content": WORD_MARK},
    ]
    metaspace = {"type": "Metaspace", "replacement": WORD_MARK, "prepend_scheme": "first", "split": False}
    return tokenizer_json(
        bpe_model(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True),
        normalizer=None if modern else {"type": "Sequence", "normalizers": prepend},
        pre_tokenizer=metaspace if modern else None,
        post_processor=template("<s> A", "A B", {"<s>": 1}) if post else None,
        decoder=decoder or byte_fallback_decoder(),
        added=added,
    )


def byte_fallback_bpe_modern() -> str:
    """BFM: `byte_fallback_bpe(modern=True)`."""
    return byte_fallback_bpe(modern=True)


def word_piece(
    *,
    truncation: Part | None = None,
    padding: Part | None = None,
    cleanup: bool = True,
    added: Sequence[Part] | None = None,
    pieces: Sequence[str] = WORD_PIECES,
) -> str:
    """WP: a small uncased BERT: lower-cased, accents off, `[CLS] text [SEP] pair [SEP]`, `##` decoded away.

    Args:
        cleanup: The decoder's flag: spaces before punctuation go.
        added: Entries in place of the first five pieces, all special.
        pieces: The vocabulary; its first five entries keep their meaning.
        truncation, padding: These parts of the file.
    """
    names = {"[CLS]": 2, "[SEP]": 3}
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {piece: token_id for token_id, piece in enumerate(pieces)},
    }
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    return tokenizer_json(
        model,
        normalizer={**normalizer, "strip_accents": None, "lowercase": True},
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor=template("[CLS] A [SEP]", "[CLS] A [SEP] B [SEP]", names, last_type_id=1),
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": cleanup},
        added=[added_token(n, pieces[n]) for n in range(5)] if added is None else added,
        truncation=truncation,
        padding=padding,
    )


BL = byte_level_bpe
BLO = byte_level_bpe_with_odd_letter
BF = byte_fallback_bpe
BFM = byte_fallback_bpe_modern
WP = word_piece


def metaspace(scheme: str = "always", *, split: bool = True) -> Part:
    """A Metaspace pre-tokenizer or decoder; `scheme` is always, first or never."""
    return {"type": "Metaspace", "replacement": WORD_MARK, "prepend_scheme": scheme, "split": split}


def word_level(
    words: Sequence[str] = ("[UNK]", "a", "b", "c"),
    *,
    decoder: Part | None = None,
    unk_token: str | None = "[UNK]",
    added: Sequence[Part] = (),
    pre_tokenizer: Part | None = None,
) -> str:
    """Whole words by id, in the order of `words`, split at white space; the decoder is the one given, or none.

    With `unk_token=None` the file names an unk that the vocabulary lacks, as such files do: the library
    refuses any word that is not in `words`.
    """
    vocab = {word: token_id for token_id, word in enumerate(words)}
    return tokenizer_json(
        {"type": "WordLevel", "vocab": vocab, "unk_token": unk_token or "<no unk>"},
        pre_tokenizer=pre_tokenizer or {"type": "WhitespaceSplit"},
        decoder=decoder,
        added=added,
    )


def word_level_with_rewriting_decoder() -> str:
    """Words a, b, c (1, 2, 3) whose decoder joins all tokens and then turns `ab` into `X`: not streamable."""
    replace = {"type": "Replace", "pattern": {"String": "ab"}, "content": "X"}
    return word_level(decoder={"type": "Sequence", "decoders": [{"type": "Fuse"}, replace]})


def ctc(*, cleanup: bool = True) -> str:
    """Speech letters: repeated tokens fall together, `<pad>` (0, special) separates, `|` is the space."""
    words = ("<pad>", "<unk>", "|", "h", "e", "l", "o", "'", "n")
    decoder = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": cleanup}
    split = {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False}
    added = [added_token(0, "<pad>"), added_token(1, "<unk>")]
    return word_level(words, decoder=decoder, unk_token="<unk>", added=added, pre_tokenizer=split)


def metaspace_words(scheme: str = "always") -> str:
    """Words with `▁`: 0 `<unk>`, 1 `<s>` (both special), then `▁a ▁b c ▁ ▁▁▁ a▁b`; `scheme` goes to both ends."""
    words = ("<unk>", "<s>", "▁a", "▁b", "c", "▁", "▁▁▁", "a▁b")
    added = [added_token(0, "<unk>"), added_token(1, "<s>")]
    part = metaspace(scheme)
    return word_level(words, decoder=part, unk_token="<unk>", added=added, pre_tokenizer=part)


def unigram(
    *, added: Sequence[Part] | None = None, byte_fallback: bool = False, decoder: Part | None = None
) -> str:
    """A Unigram file whose vocabulary itself holds `<s>`, so that the model can give id 1 for that text.

    0 `<unk>`, 1 `<s>`, 2 `</s>`, 3 `▁`, 4.. `▁hello ▁world hello <pad>`, then the letters a..z, `<`, `>`, `/`;
    with `byte_fallback` the 256 byte tokens follow.

    Args:
        added: Entries in place of `<unk>`, `<s>`, `</s>`, all special (`<pad>` stays an ordinary piece).
        byte_fallback: Whether what the vocabulary lacks becomes byte tokens.
        decoder: In place of Metaspace, or of the byte-fallback decoder.
    """
    pieces = ["<unk>", "<s>", "</s>", WORD_MARK, "▁hello", "▁world", "hello", "<pad>"]
    pieces += [chr(ord("a") + n) for n in range(26)] + ["<", ">", "/"]
    if byte_fallback:
        pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    # Longer pieces are likelier than the letters they are made of, so the model takes them whole.
    vocab = [[piece, 0.0 if n < 3 else -2.0 - 8.0 / len(piece)] for n, piece in enumerate(pieces)]
    if added is None:
        added = [added_token(n, pieces[n]) for n in range(3)]
    part = metaspace()
    return tokenizer_json(
        {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": byte_fallback},
        pre_tokenizer=part,
        decoder=decoder or (byte_fallback_decoder() if byte_fallback else part),
        added=added,
    )


def suffix_bpe(*, added: Sequence[Part] | None = None) -> str:
    """BPE whose words end in `</w>`, decoded by BPEDecoder: 0 `<unk>`, 1.. letters, letters with `</w>`, merges.

    `low`, `lower`, `new` and `newer` are one token each.
    """
    suffix = "</w>"
    letters = "elnowr"
    merges = [("l", "o"), ("lo", "w" + suffix), ("lo", "w"), ("e", "r" + suffix), ("low", "er" + suffix)]
    merges += [("n", "e"), ("ne", "w" + suffix), ("ne", "w"), ("new", "er" + suffix)]
    vocab = {"<unk>": 0}
    for symbol in [*letters, *(letter + suffix for letter in letters)]:
        vocab[symbol] = len(vocab)
    return tokenizer_json(
        bpe_model(_with_merges(vocab, merges), merges, unk_token="<unk>", end_of_word_suffix=suffix),
        pre_tokenizer={"type": "WhitespaceSplit"},
        decoder={"type": "BPEDecoder", "suffix": suffix},
        added=[added_token(0, "<unk>")] if added is None else added,
    )


def bpe_without_unk() -> str:
    """BPE that knows the letter `a` (0) alone and has no unk: other letters vanish without a trace."""
    return tokenizer_json(bpe_model({"a": 0}, []), pre_tokenizer={"type": "Whitespace"})
