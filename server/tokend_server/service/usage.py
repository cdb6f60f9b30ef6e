"""What a request used, in the units that the metrics count."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokend_server.service.limits import utf8_length

__all__ = ["Usage"]


# Not frozen, as it is made for each call: that would triple what making it costs.
@dataclass(slots=True, kw_only=True)
class Usage:
    """The size of one request that was served: a unary call, a batch of a StreamEncode, a decoded sequence."""

    n_tokens: int = 0
    """Ids given out or taken in."""
    n_texts: int = 0
    text_bytes: int = 0
    """Text read or written, in UTF-8 bytes."""
    characters: int = 0
    """The same in code points."""
    special_texts: int = 0
    """Control-token strings that were found in texts and kept as text."""
    unknown_ids: int = 0
    """Unknown ids that were skipped or replaced."""
    replacement_characters: int = 0
    """U+FFFD in the texts that were made of ids."""

    @classmethod
    def of_texts(
        cls,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        n_tokens: int,
        special_texts: int = 0,
        unknown_ids: int = 0,
        replacement_characters: int = 0,
    ) -> "Usage":
        """Measure texts. Those that an engine has encoded cost little: it has left their UTF-8 in them."""
        every = [*texts, *pairs] if pairs else texts
        return cls(
            n_tokens=n_tokens,
            n_texts=len(every),
            text_bytes=sum(map(utf8_length, every)),
            characters=sum(map(len, every)),
            special_texts=special_texts,
            unknown_ids=unknown_ids,
            replacement_characters=replacement_characters,
        )
