"""Stop strings in a text that comes in pieces: found across the pieces, and never sent in part.

Source: Aho and Corasick, "Efficient string matching", 1975.
"""

import re
from array import array
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

    __slots__ = ("_automaton", "_first_characters", "_found", "_state")

    def __init__(self, stops: Sequence[str]) -> None:
        self._automaton = _Automaton(stops)
        first_characters = "".join(map(re.escape, self._automaton.first_characters()))
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
        automaton = self._automaton
        before = self._state
        held = automaton.depth[before]
        state, index = before, 0
        while index < len(text):
            if state == 0:  # nothing is begun: on to a character that begins a stop string
                begin = self._first_characters.search(text, index)
                if begin is None:
                    break
                index = begin.start()
            state = automaton.after(state, text[index])
            index += 1
            stop = automaton.stop_at(state)
            if stop is not None:
                self._found = stop
                self._state = 0
                return automaton.released(before, text, held + index - len(stop)), stop
        self._state = state
        return automaton.released(before, text, held + len(text) - automaton.depth[state]), None

    def finish(self) -> str:
        """The text that was held, now that nothing can complete a stop string; empty if one was found."""
        state, self._state = self._state, 0
        return self._automaton.held(state)

    @property
    def held_bytes(self) -> int:
        """How much text is held now, in UTF-8 bytes: the longest end of the text that begins a stop string."""
        return len(self._automaton.held(self._state).encode())


class _Automaton:
    """The states are the beginnings of the stop strings; 0 is the empty one.

    Whoever opens a sequence may give 64 KiB of stop strings, so that a state takes 24 bytes and no object. Nearly all
    have one character that leads on.
    """

    __slots__ = ("_branches", "_character", "_child", "_fallback", "_origin", "_stop", "_stops", "depth")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self.depth = array("I", [0])
        """How many characters of `_stops[_origin]` a state is, just what has to be held there."""
        self._origin = array("I", [0])
        self._fallback = array("I", [0])
        """The state of the longest shorter beginning that the text ends with, too."""
        self._stop = array("I", [0])
        """The longest stop string that the text ends with here, by its number from 1 on; 0: none."""
        self._character, self._child = array("I", [0]), array("I", [0])
        """The first character that leads on, by its code point, and where to; 0: to none."""
        self._branches: dict[int, dict[str, int]] = {}
        """Where more than one character leads on."""
        for number, stop in enumerate(stops):
            self._add(number, stop)
        self._complete()

    def first_characters(self) -> list[str]:
        """Each character that begins a stop string."""
        return [character for character, _ in self._children(0)]

    def after(self, state: int, character: str) -> int:
        """The state that a character leads to."""
        while not (child := self._child_by(state, character)) and state:
            state = self._fallback[state]
        return child

    def stop_at(self, state: int) -> str | None:
        """The longest stop string that the text ends with here."""
        number = self._stop[state]
        return self._stops[number - 1] if number else None

    def held(self, state: int) -> str:
        """What a state is the beginning of."""
        return self._stops[self._origin[state]][: self.depth[state]] if state else ""

    def released(self, state: int, text: str, n_characters: int) -> str:
        """The first characters of what was held and the text behind it, without joining all of both."""
        depth = self.depth[state]
        return self.held(state)[: min(depth, n_characters)] + text[: max(0, n_characters - depth)]

    def _child_by(self, state: int, character: str) -> int:
        if state in self._branches:
            return self._branches[state].get(character, 0)
        return self._child[state] if self._character[state] == ord(character) else 0

    def _children(self, state: int) -> list[tuple[str, int]]:
        if state in self._branches:
            return list(self._branches[state].items())
        return [(chr(self._character[state]), self._child[state])] if self._child[state] else []

    def _add(self, number: int, stop: str) -> None:
        if not stop:
            raise InvalidOption("stop", "", "a stop string must not be empty")
        state = 0
        for depth, character in enumerate(stop, start=1):
            child = self._child_by(state, character)
            if not child:
                child = len(self.depth)
                for cells, value in (
                    (self.depth, depth),
                    (self._origin, number),
                    (self._fallback, 0),
                    (self._stop, 0),
                    (self._character, 0),
                    (self._child, 0),
                ):
                    cells.append(value)
                self._lead_on(state, character, child)
            state = child
        self._stop[state] = number + 1

    def _lead_on(self, state: int, character: str, child: int) -> None:
        if state in self._branches:
            self._branches[state][character] = child
        elif self._child[state]:
            self._branches[state] = {chr(self._character[state]): self._child[state], character: child}
        else:
            self._character[state], self._child[state] = ord(character), child

    def _complete(self) -> None:
        queue = deque(child for _, child in self._children(0))
        while queue:  # by depth, so that each state's fallback is complete before it is needed
            state = queue.popleft()
            for character, child in self._children(state):
                fallback = self._fallback[child] = self.after(self._fallback[state], character)
                self._stop[child] = self._stop[child] or self._stop[fallback]
                queue.append(child)
