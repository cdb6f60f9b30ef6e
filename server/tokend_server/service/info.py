"""GetTokenizer, LookupTokens and DownloadTokenizer: what is served, and what its ids mean."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokend_server.engine.frozen import FrozenTokenizer
from tokend_server.service.limits import Limits

__all__ = ["InfoService", "TokenDescription"]

# Large enough to cost few messages, small enough that a slow reader holds little.
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDescription:
    """One token, or an id or string that is none (`known` is False)."""

    token_id: int
    token: str
    token_bytes: bytes = b""
    special: bool = False
    added: bool = False
    control: bool = False
    known: bool = True


class InfoService:
    """Facts about one frozen tokenizer; safe to share between threads."""

    def __init__(self, tokenizer: FrozenTokenizer, limits: Limits) -> None:
        self.tokenizer = tokenizer
        self.limits = limits

    def describe(self, token_id: int) -> TokenDescription:
        """Describe one id; an unknown one gives `known` False and no string."""
        vocabulary = self.tokenizer.vocabulary
        if not vocabulary.is_known(token_id):
            return TokenDescription(token_id=token_id, token="", known=False)
        added = vocabulary.added.get(token_id)
        return TokenDescription(
            token_id=token_id,
            token=vocabulary.strings[token_id] or "" if added is None else added.content,
            token_bytes=vocabulary.token_bytes(token_id),
            special=added is not None and added.special,
            added=added is not None,
            control=token_id in self.tokenizer.control_token_ids,
        )

    def lookup(
        self, token_ids: Sequence[int], tokens: Sequence[str], expected_fingerprint: str
    ) -> list[TokenDescription]:
        """Describe ids, then token strings.

        Args:
            token_ids: Ids; unknown ones are described as such.
            tokens: Strings as the vocabulary spells them, or contents of added tokens; unknown ones likewise.
            expected_fingerprint: "" or the fingerprint that must be served.

        Returns:
            One description each, the ids first; [] for neither.

        Raises:
            TokenizerMismatch: Another tokenizer is expected.
            LimitExceeded: TOO_MANY_IDS, for ids and strings together.
        """
        self.tokenizer.check_fingerprint(expected_fingerprint)
        self.limits.check_ids(len(token_ids) + len(tokens))
        described = [self.describe(token_id) for token_id in token_ids]
        for token in tokens:
            token_id = self.tokenizer.vocabulary.id_of(token)
            if token_id is None:
                described.append(TokenDescription(token_id=0, token=token, known=False))
            else:
                described.append(self.describe(token_id))
        return described

    def chunks(self, expected_fingerprint: str) -> Iterator[bytes]:
        """Cut the served file into chunks, in order.

        Args:
            expected_fingerprint: "" or the fingerprint that must be served.

        Yields:
            At most 1 MiB of the file at a time.

        Raises:
            TokenizerMismatch: Another tokenizer is expected.
        """
        self.tokenizer.check_fingerprint(expected_fingerprint)
        data = self.tokenizer.file_data
        for start in range(0, len(data), _CHUNK_BYTES):
            yield data[start : start + _CHUNK_BYTES]
