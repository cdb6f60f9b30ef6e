"""How many messages are under way, and how much goes into the next: joining what waits, without a timer. Pure.

While messages are under way, what comes gathers; an answer lets the next message go, with all that has gathered. So
a lone item goes at once, and the busier the server, the fuller the messages. Nothing is ever held back while nothing
is under way.
"""

from dataclasses import dataclass

__all__ = ["Flights"]


@dataclass(slots=True, kw_only=True)
class Flights:
    """The messages of one queue that were sent and are not answered.

    >>> flights = Flights(most=2, least_share=4)
    >>> flights.next_size(1), flights.next_size(100)  # nothing is under way: one goes at once, many go in two halves
    (1, 50)
    >>> flights.start(50)
    >>> flights.next_size(3), flights.next_size(50)  # a few wait for the answer, a full half goes
    (0, 50)
    """

    most: int
    """Messages under way at a time: with one, client and server would wait for each other in turn."""
    least_share: int
    """A message is not made smaller than this for the sake of even shares."""
    under_way: int = 0
    items: int = 0
    """What the messages under way hold together."""

    def next_size(self, n_waiting: int) -> int:
        """How many of the waiting items the next message should hold; 0: wait for an answer."""
        if not n_waiting or self.under_way >= self.most:
            return 0
        # Less than half of what those under way hold on average is not worth a message of its own yet: their answers
        # are near. Otherwise single stragglers would travel alone for ever, at the price of many.
        if 2 * n_waiting * self.under_way < self.items:
            return 0
        even_share = -(-(n_waiting + self.items) // self.most)
        return min(n_waiting, max(even_share, self.least_share))

    def start(self, n_items: int) -> None:
        """A message leaves."""
        self.under_way += 1
        self.items += n_items

    def end(self, n_items: int) -> None:
        """A message is answered, or failed."""
        self.under_way -= 1
        self.items -= n_items
