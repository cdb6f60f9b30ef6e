"""What an encoding is asked for with, and what it is."""

from dataclasses import dataclass

from tokend_server.engine.offsets import OffsetUnit
from tokend_server.engine.special_tokens import SpecialTokenPolicy
from tokend_server.engine.truncation import Truncation

__all__ = ["EncodeOptions", "Encoded"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeOptions:
    """How texts are encoded; the defaults are those of the API."""

    add_special_tokens: bool = True
    """Whether the post-processor adds its tokens (BOS, [CLS])."""
    policy: SpecialTokenPolicy = SpecialTokenPolicy.TEXT
    allowed_special_tokens: frozenset[str] | tuple[str, ...] = ()
    """Tokens of the file that TEXT and REJECT parse all the same; PARSE parses all anyway."""
    truncation: Truncation | None = None
    offsets: OffsetUnit = OffsetUnit.NONE
    include_tokens: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """One text, or pair of texts, as ids."""

    ids: list[int]
    total_token_count: int
    """How many ids there were before truncation."""
    starts: list[int] | None = None
    """Where each token starts in its own text, in the asked unit; 0 for what the post-processor added."""
    ends: list[int] | None = None
    """Where each token ends, exclusive."""
    tokens: list[str] | None = None
    type_ids: list[int] | None = None
    """Given for pairs, and where the file gives a single text other types than 0."""
    special_text_count: int = 0
    """How many control tokens PARSE would have made of the text, truncated or not, that TEXT kept as text."""
