"""Stop strings in a text that comes in pieces: found across the pieces, and never sent in part.

Source: Aho and Corasick, "Efficient string matching", 1975.
"""

import re
from collections import deque
from collections.abc import Sequence

from tokend_server.errors import InvalidOption

__all__ = ["StopMatcher"]


class StopMatcher:
    """Looks for stop strings in one sequence's text, in linear time whatever the strings are.

    Of several matches the one that ends first wins, and of those the one that starts first, which is the longest.

    Args:
        stops: The strings, in any order; none at all lets everything pass.

    Raises:
        InvalidOption: A stop string is empty.

    >>> matcher = StopMatcher(["User:"])
    >>> matcher.feed("Hello! Us")
    ('Hello! ', None)
    >>> matcher.feed("e it. User: no")
    ('Use it. ', 'User:')
    """

    __slots__ = ("_first_characters", "_found", "_nodes", "_state")

    def __init__(self, stops: Sequence[str]) -> None:
        self._nodes = _automaton(stops)
        first_characters = "".join(map(re.escape, self._nodes[0].next))
        self._first_characters = re.compile(f"[{first_characters}]") if first_characters else None
        self._state = 0
        self._found: str | None = None

    def feed(self, text: str) -> tuple[str, str | None]:
        """Take the next piece of text.

        Once a stop string was found nothing is sent any more, and each further call names it again.

        Args:
            text: The next piece; an empty one changes nothing.

        Returns:
            The text that may be sent now, and the stop string that was found, or None.
        """
        if self._found is not None:
            return "", self._found
        if self._first_characters is None:
            return text, None
        nodes = self._nodes
        before = nodes[self._state]
        state, index = self._state, 0
        while index < len(text):
            if state == 0:  # nothing is begun: on to a character that begins a stop string
                begin = self._first_characters.search(text, index)
                if begin is None:
                    break
                index = begin.start()
            character = text[index]
            index += 1
            while state and character not in nodes[state].next:
                state = nodes[state].fallback
            state = nodes[state].next.get(character, 0)
            stop = nodes[state].stop
            if stop is not None:
                self._found = stop
                self._state = 0
                return before.released(text, before.depth + index - len(stop)), stop
        self._state = state
        return before.released(text, before.depth + len(text) - nodes[state].depth), None

    def finish(self) -> str:
        """The text that was held, now that nothing can complete a stop string; empty if one was found."""
        node = self._nodes[self._state]
        self._state = 0
        return node.released("", node.depth)

    @property
    def held_bytes(self) -> int:
        """How much text is held now, in UTF-8 bytes: the longest end of the text that begins a stop string."""
        node = self._nodes[self._state]
        return len(node.released("", node.depth).encode())


class _Node:
    """A beginning of a stop string: the first `depth` characters of `string`, just what has to be held here."""

    __slots__ = ("depth", "fallback", "next", "stop", "string")

    def __init__(self, string: str, depth: int) -> None:
        self.string = string
        self.depth = depth
        self.next: dict[str, int] = {}
        self.fallback = 0
        """Number of the node of the longest shorter beginning that the text ends with, too."""
        self.stop: str | None = None
        """The longest stop string that the text ends with here."""

    def released(self, text: str, n_characters: int) -> str:
        """The first characters of what was held here and the text behind it, without joining all of both."""
        return self.string[: min(self.depth, n_characters)] + text[: max(0, n_characters - self.depth)]


def _automaton(stops: Sequence[str]) -> list[_Node]:
    """The nodes for some stop strings; the root, where nothing is begun, is the first."""
    nodes = [_Node("", 0)]
    for stop in stops:
        if not stop:
            raise InvalidOption("stop", "", "a stop string must not be empty")
        state = 0
        for depth, character in enumerate(stop, start=1):
            if character not in nodes[state].next:
                nodes[state].next[character] = len(nodes)
                nodes.append(_Node(stop, depth))
            state = nodes[state].next[character]
        nodes[state].stop = stop
    queue = deque(nodes[0].next.values())
    while queue:  # by depth, so that each node's fallback is complete before it is needed
        node = nodes[queue.popleft()]
        for character, child in node.next.items():
            state = node.fallback
            while state and character not in nodes[state].next:
                state = nodes[state].fallback
            nodes[child].fallback = nodes[state].next.get(character, 0)
            if nodes[child].stop is None:
                nodes[child].stop = nodes[nodes[child].fallback].stop
            queue.append(child)
    return nodes
