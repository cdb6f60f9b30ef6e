"""Which callers are counted apart: a short table of names that all processes of a server have in common.

The names come from the operator's file of tokens, never from a call. The file may change while the server runs, and
each worker reads it when it likes; so places are given out once, in memory that all of them share, and are kept: a
place means the same name in every process, and a count never runs back. What comes when all places are taken counts
under one name, `other`.
"""

import fcntl
import mmap
import os
import threading
import weakref

__all__ = ["ANONYMOUS", "LONGEST_NAME", "MOST_NAMES", "OTHER", "CallerNames"]

ANONYMOUS = "anonymous"
"""Who shows no token, or none that is known: place 0."""
OTHER = "other"
"""All whose names came when no place was free."""
LONGEST_NAME = 63
"""In characters, all of them ASCII."""
MOST_NAMES = 64
_SLOT_BYTES = LONGEST_NAME + 1


class CallerNames:
    """Gives each name a place, from 0 on. Made before the first fork; thread-safe."""

    def __init__(self, most: int = 0) -> None:
        """Begin with the place of who is anonymous.

        Args:
            most: How many names can have a place of their own; 0 where nobody has a name.
        """
        # The anonymous one, the named ones, all others.
        self.n_places = most + 2 if most else 1
        # A file in memory, since only files have locks that work between processes.
        self._file = os.memfd_create("tokend-callers", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        os.ftruncate(self._file, self.n_places * _SLOT_BYTES)
        self._slots = mmap.mmap(self._file, self.n_places * _SLOT_BYTES)
        self._threads = threading.Lock()
        self._places: dict[str, int] = {}
        self.place(ANONYMOUS)

    def place(self, name: str) -> int:
        """Return a name's place; a new name is given one.

        Args:
            name: From the operator's file, at most `LONGEST_NAME` ASCII characters.
        """
        known = self._places.get(name)
        return self._find_place(name) if known is None else known

    def name_at(self, place: int) -> str | None:
        """Return who has a place; None: nobody yet."""
        start = place * _SLOT_BYTES
        length = self._slots[start]
        return self._slots[start + 1 : start + 1 + length].decode("ascii") if length else None

    def _find_place(self, name: str) -> int:
        with self._threads:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                # The last place is kept for all others.
                for place in range(max(1, self.n_places - 1)):
                    taken = self.name_at(place)
                    if taken is None:
                        self._write(place, name)
                    if taken in {None, name}:
                        break
                else:
                    place = self.n_places - 1
                    self._write(place, OTHER if place else ANONYMOUS)
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)
            self._places[name] = place
            return place

    def _write(self, place: int, name: str) -> None:
        data, start = name.encode("ascii"), place * _SLOT_BYTES
        self._slots[start + 1 : start + 1 + len(data)] = data
        # Last: a reader takes no lock.
        self._slots[start] = len(data)
