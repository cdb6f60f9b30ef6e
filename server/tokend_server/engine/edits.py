"""Edits of the joined text that a decoder makes behind its join, done piece by piece.

Each needs nothing but the characters at hand, so edited pieces joined are the edited whole.
"""

from typing import Protocol, Self

__all__ = ["CharacterReplacement", "Edit", "LeadingStrip"]


class Edit(Protocol):
    """One edit of a text that comes in pieces."""

    @property
    def done(self) -> bool:
        """Whether the edit leaves everything that is still to come as it is."""

    def start(self) -> Self:
        """The same edit at the start of a text."""

    def edit(self, text: str) -> str:
        """The next piece, edited; an empty piece stays empty and changes nothing.

        Args:
            text: The next piece of the text.
        """

    def edit_bytes(self, data: bytes) -> bytes:
        """A whole text in UTF-8, edited, from the start.

        Args:
            data: The whole text; bytes that are no UTF-8 stay.
        """


class CharacterReplacement:
    """Every occurrence of one character becomes a string."""

    __slots__ = ("_character", "_content")
    done = False

    def __init__(self, character: str, content: str) -> None:
        self._character = character
        self._content = content

    def start(self) -> Self:
        """Itself: it has no state."""
        return self

    def edit(self, text: str) -> str:
        """The piece with its characters replaced."""
        return text.replace(self._character, self._content)

    def edit_bytes(self, data: bytes) -> bytes:
        """The whole with its characters replaced."""
        return data.replace(self._character.encode(), self._content.encode())


class LeadingStrip:
    """Up to `count` times one character goes from the start of the text."""

    __slots__ = ("_character", "_left")

    def __init__(self, character: str, count: int) -> None:
        self._character = character
        self._left = count

    @property
    def done(self) -> bool:
        """Whether another character was seen, or the count is used up."""
        return self._left == 0

    def start(self) -> Self:
        """One of its own for each text, as it counts."""
        return type(self)(self._character, self._left)

    def edit(self, text: str) -> str:
        """The piece without what is to go from the start of the text."""
        if not text or not self._left:
            return text
        n_stripped = min(len(text) - len(text.lstrip(self._character)), self._left)
        self._left = self._left - n_stripped if n_stripped == len(text) else 0
        return text[n_stripped:]

    def edit_bytes(self, data: bytes) -> bytes:
        """The whole without what is to go from its start."""
        character, left = self._character.encode(), self._left
        start = 0
        while left and data.startswith(character, start):
            start += len(character)
            left -= 1
        return data[start:]
