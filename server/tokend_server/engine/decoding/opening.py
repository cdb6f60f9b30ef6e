"""What a sequence has to mind beside its table: the first token, a prompt's open character, edits of the text."""

from collections.abc import Container, Sequence
from typing import Generic, TypeVar

from tokend_server.engine.edits import Edit

__all__ = ["Opening", "first_index"]

FormT = TypeVar("FormT", str, bytes)


class Opening(Generic[FormT]):
    """The part of a sequence's state that is mostly needed at its start, kept out of the fast way.

    Args:
        first: What each id gives when it is the first that counts, by id; None where it makes no difference.
        dropped: Ids that do not count.
        edits: Edits of the text, in order, as they stand for this sequence.
    """

    __slots__ = ("dropped", "edits", "first", "prompt_open")

    def __init__(
        self,
        *,
        first: Sequence[FormT] | None = None,
        dropped: Container[int] = (),
        edits: Sequence[Edit] = (),
    ) -> None:
        self.first: Sequence[FormT] | None = first
        self.dropped = dropped
        self.edits = list(edits)
        self.prompt_open = False
        """The pending bytes are all of the prompt, and no id came since."""

    @property
    def needed(self) -> bool:
        """Whether the sequence must still come by here."""
        return self.first is not None or self.prompt_open or bool(self.edits)

    def edit(self, text: str) -> str:
        """The next piece of text, edited; edits that are done are let go."""
        for edit in self.edits:
            text = edit.edit(text)
        if any(edit.done for edit in self.edits):
            self.edits = [edit for edit in self.edits if not edit.done]
        return text


def first_index(ids: Sequence[int], dropped: Container[int]) -> int:
    """Index of the first id that counts; the length of the list if none does.

    Args:
        ids: Token ids.
        dropped: Ids that do not count.
    """
    return next((index for index, token_id in enumerate(ids) if token_id not in dropped), len(ids))
