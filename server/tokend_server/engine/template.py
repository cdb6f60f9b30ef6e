"""The template of a post-processor: which texts and which added tokens stand where."""

from dataclasses import dataclass
from typing import Any

__all__ = ["TemplatePiece", "template_pieces"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TemplatePiece:
    """One place of a template."""

    sequence: str | None
    """`A` for the first text, `B` for the second, None for an added token."""
    type_id: int


def template_pieces(post_processor: dict[str, Any] | None, kind: str) -> tuple[TemplatePiece, ...]:
    """Reads the template of a post-processor, at any depth.

    Args:
        post_processor: The `post_processor` object of a parsed tokenizer.json, or None.
        kind: `single` or `pair`.

    Returns:
        The pieces in order; none where there is no template.

    Source: `TemplateProcessing` of the reference library.
    """
    if post_processor is None:
        return ()
    if post_processor.get("type") != "TemplateProcessing":
        steps = post_processor.get("processors", [])
        return tuple(piece for step in steps for piece in template_pieces(step, kind))
    return tuple(
        TemplatePiece(sequence=piece.get("id") if name == "Sequence" else None, type_id=piece["type_id"])
        for entry in post_processor[kind]
        for name, piece in entry.items()
    )
