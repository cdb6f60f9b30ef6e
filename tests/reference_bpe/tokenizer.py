r"""What a BPE tokenizer does, step by step, slowly and to be read.

A tokenizer file (`tokenizer.json`) says how a text becomes numbers. The modules here read such a file and do what it
says in the plainest way; they share no code with the library or the service, and the tests beside them show that both
give the same ids. A text goes this way:

1. *Added tokens* (this module): whole strings with an id of their own, such as `<|endoftext|>`, are cut out first.
2. *Normalizers* (this module) rewrite what is left: compose accents, put a mark in place of each space.
3. *Pre-tokenizers* (`pieces.py`, `byte_letters.py`) cut it into pieces, mostly words, and write bytes as letters.
4. *Byte pair encoding* (`merges.py`) joins the symbols of each piece, two at a time, in the order it was taught.
5. Each string that is left has an id in the vocabulary.

And back (`decoding.py`): ids to strings, strings to bytes or text, bytes to characters.
"""

import unicodedata
from collections.abc import Collection
from copy import copy

import regex

from tests.reference_bpe.decoding import decoded
from tests.reference_bpe.merges import Bpe
from tests.reference_bpe.pieces import Part, cut, pattern_of, pre_tokenize


def normalize(text: str, part: Part | None) -> str:
    """Rewrites a text, as one part of the file says.

    >>> normalize("e\u0301", {"type": "NFC"}), normalize("ﬁ", {"type": "NFKC"})
    ('é', 'fi')
    >>> normalize("a b", {"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
    'a▁b'
    """
    if part is None:
        return text
    match part["type"]:
        case "Sequence":
            for step in part["normalizers"]:
                text = normalize(text, step)
            return text
        case "NFC" | "NFD" | "NFKC" | "NFKD" as form:
            return unicodedata.normalize(form, text)
        case "Replace":
            return str(regex.sub(pattern_of(part), lambda _: part["content"], text))
        case "Prepend":
            return part["prepend"] + text if text else text
        case "Strip":
            start = r"^\p{White_Space}+" if part["strip_left"] else "(?!)"
            end = r"\p{White_Space}+$" if part["strip_right"] else "(?!)"
            return str(regex.sub(f"{start}|{end}", "", text))
    raise NotImplementedError(part["type"])


class ReadableTokenizer:
    """A tokenizer file, read.

    Args:
        file: A `tokenizer.json` whose model is BPE, as `json.loads` gives it.

    >>> vocab = {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "<": 4, ">": 5, "e": 6, "n": 7, "d": 8}
    >>> space = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    >>> end = {"id": 9, "content": "<end>", "normalized": False}
    >>> file = {"model": {"vocab": vocab, "merges": ["a b"]}, "pre_tokenizer": space, "added_tokens": [end]}
    >>> tokenizer = ReadableTokenizer({**file, "normalizer": None, "decoder": space})
    >>> tokenizer.encode("ab ba<end>")
    [2, 3, 1, 0, 9]
    >>> tokenizer.keeping_as_text({"<end>"}).encode("b<end>")
    [1, 4, 6, 7, 8, 5]
    >>> tokenizer.decode([2, 3, 1, 0, 9])
    'ab ba<end>'
    """

    def __init__(self, file: Part) -> None:
        self.model = Bpe(file["model"])
        self.normalizer, self.pre_tokenizer, self.decoder = (
            file[name] for name in ("normalizer", "pre_tokenizer", "decoder")
        )
        self.added = {token["content"]: token for token in file["added_tokens"]}
        if any(
            token.get(flag) for token in self.added.values() for flag in ("lstrip", "rstrip", "single_word")
        ):
            raise NotImplementedError("an added token that looks at the text beside it")
        added_ids = {content: token["id"] for content, token in self.added.items()}
        self.strings = {token_id: string for string, token_id in {**self.model.ids, **added_ids}.items()}
        # Some are looked for in the text as it came, the others in the normalized one.
        self.found_raw, self.found_normalized = (self.any_added(normalized=when) for when in (False, True))

    def any_added(self, *, normalized: bool, but: Collection[str] = ()) -> str:
        """A pattern for the added tokens; where one is the beginning of another, the longest is the one that counts."""
        contents = [content for content, token in self.added.items() if token["normalized"] is normalized]
        longest_first = sorted(set(contents) - set(but), key=len, reverse=True)
        return "|".join(map(regex.escape, longest_first)) or "(?!)"  # which matches nothing

    def keeping_as_text(self, contents: Collection[str]) -> "ReadableTokenizer":
        """The same, but for added tokens that are not looked for: what a user types must not become a control token."""
        other = copy(self)
        other.found_raw = self.any_added(normalized=False, but=contents)
        other.found_normalized = self.any_added(normalized=True, but=contents)
        return other

    def encode(self, text: str) -> list[int]:
        """The ids of a text; what a post-processor would put around them is not here."""
        ids: list[int] = []
        for raw in cut(text, self.found_raw, "Isolated"):
            if regex.fullmatch(self.found_raw, raw):
                ids.append(self.added[raw]["id"])
                continue
            for part in cut(normalize(raw, self.normalizer), self.found_normalized, "Isolated"):
                if regex.fullmatch(self.found_normalized, part):
                    ids.append(self.added[part]["id"])
                    continue
                for piece in pre_tokenize([part], self.pre_tokenizer):
                    ids += [self.model.ids[token] for token in self.model.tokens(piece)]
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of ids, special tokens too."""
        return decoded([self.strings[token_id] for token_id in ids], self.decoder)
