"""The vocabulary of the served tokenizer: what each id stands for, as string and as true bytes."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken, Tokenizer

from tokend_server.engine.decoders import TokenBytesReader, decoder_stages
from tokend_server.errors import TokenizerFileError

__all__ = ["MAX_TOKEN_ID", "Vocabulary"]

MAX_TOKEN_ID = 16_777_215
"""The greatest id that is served: tables are lists by id, so one stray huge id would cost gigabytes."""


class Vocabulary:
    """Every id of one frozen tokenizer: its string, whether it exists, its true bytes.

    The strings are the ones that decoding starts from (`id_to_token`). For an added token with
    `normalized: true` that is its normalised content, which need not be the content in the file.

    Args:
        tokenizer: The library's tokenizer, loaded from the file.
        spec: The same file as parsed JSON; the greatest id and the decoder are read from it.

    Raises:
        TokenizerFileError: An id is above `MAX_TOKEN_ID`, or the tokenizer has no token at all.
    """

    __slots__ = (
        "_bytes_reader",
        "_holes",
        "_tokenizer",
        "added",
        "max_id",
        "size",
        "special_strings",
        "strings",
    )

    strings: list[str | None]
    """String of each id, by id; None is a hole (an id below `max_id` that stands for nothing)."""
    max_id: int
    """The greatest id."""
    size: int
    """How many ids there are, added tokens included, holes not."""
    special_strings: frozenset[str]
    """Contents of the special added tokens; skipping is a test on an id's string, not on the id."""
    added: Mapping[int, AddedToken]
    """Added tokens by id, special or not."""

    def __init__(self, tokenizer: Tokenizer, spec: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self.added = MappingProxyType(tokenizer.get_added_tokens_decoder())
        greatest = max(_greatest_model_id(tokenizer, spec), max(self.added, default=-1))
        if greatest > MAX_TOKEN_ID:
            raise TokenizerFileError(
                f"id {greatest} is above {MAX_TOKEN_ID}, the greatest id that can be served"
            )
        strings: list[str | None] = [*map(tokenizer.id_to_token, range(greatest + 1))]
        while strings and strings[-1] is None:
            strings.pop()
        if not strings:
            raise TokenizerFileError("the vocabulary is empty")
        self.strings = strings
        self.max_id = len(strings) - 1
        self._holes = frozenset(token_id for token_id, string in enumerate(strings) if string is None)
        self.size = len(strings) - len(self._holes)
        self.special_strings = frozenset(token.content for token in self.added.values() if token.special)
        self._bytes_reader = TokenBytesReader(decoder_stages(spec.get("decoder")))

    @property
    def holes(self) -> frozenset[int]:
        """Ids below `max_id` that stand for nothing; the library's Decode drops them without a word."""
        return self._holes

    def id_of(self, token: str) -> int | None:
        """The id of a token string (an added token's content, or a string of the model), or None.

        Args:
            token: The string as the vocabulary spells it, for example `Ġthe`; the empty string is looked up too.
        """
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def is_known(self, token_id: int) -> bool:
        """Whether the id stands for a token: neither a hole nor above `max_id`."""
        return 0 <= token_id <= self.max_id and token_id not in self._holes

    def first_unknown(self, ids: Sequence[int]) -> int | None:
        """Index of the first id that is unknown, or None; None for an empty list.

        Costs about 10 ns an id when all are known, and twice that when the file has holes.

        Args:
            ids: Token ids, 0 or greater.
        """
        if not ids:
            return None
        if len(ids) == 1:
            return None if self.is_known(ids[0]) else 0
        if max(ids) <= self.max_id and self._holes.isdisjoint(ids):
            return None
        return next(index for index, token_id in enumerate(ids) if not self.is_known(token_id))

    def is_special(self, token_id: int) -> bool:
        """Whether `skip_special_tokens` drops the id: its string is the content of a special token.

        An id that is unknown is not special. A special token whose normalised string differs from its content
        is not dropped by the library, so it is not special here either.
        """
        return self.is_known(token_id) and self.strings[token_id] in self.special_strings

    def dropped(self, *, skip_special_tokens: bool) -> frozenset[int]:
        """Ids that do not exist for the decoder: the holes and, when specials are skipped, those.

        Args:
            skip_special_tokens: As in Decode.
        """
        if not skip_special_tokens:
            return self._holes
        special = self.special_strings
        return frozenset(
            token_id for token_id, string in enumerate(self.strings) if string is None or string in special
        )

    def token_bytes(self, token_id: int) -> bytes:
        """The true bytes of one token: what it was cut from, wherever the model is lossless.

        Byte-level strings are mapped back to bytes, `<0xNN>` of a byte-fallback file is one byte, a word mark
        or a word-end suffix is a space, a continuation prefix is gone. An added token is matched in the text
        itself, so in a byte-level file its bytes are its content, although the library's Decode may send the
        content through the byte map.

        Args:
            token_id: An id; an unknown one has no bytes (`b""`).
        """
        if not self.is_known(token_id):
            return b""
        string = self.strings[token_id] or ""
        added = self.added.get(token_id)
        return self._bytes_reader.read(string, added_content=None if added is None else added.content)


def _greatest_model_id(tokenizer: Tokenizer, spec: Mapping[str, Any]) -> int:
    """Greatest id of the model's own vocabulary, -1 if it has none."""
    vocab = spec.get("model", {}).get("vocab")
    if isinstance(vocab, dict):  # BPE, WordPiece, WordLevel: string to id
        return max(vocab.values(), default=-1)
    if isinstance(vocab, list):  # Unigram: [string, score] by id
        return len(vocab) - 1
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
