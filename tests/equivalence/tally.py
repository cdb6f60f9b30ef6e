"""What was compared and what differed."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

SHOWN_DIFFERENCES = 20
SHOWN_CHARACTERS = 300


@dataclass(kw_only=True, slots=True)
class Tally:
    """Counts of one run over one tokenizer, and the first differences, told in full."""

    n_strings: int = 0
    """Texts, each counted once, however often it was encoded."""
    n_ids: int = 0
    """Ids that were compared one by one, in every way of asking."""
    n_sequences: int = 0
    """Id lists that were decoded."""
    n_streams: int = 0
    """Of these, the ones that were streamed."""
    n_checks: int = 0
    n_differences: int = 0
    by_law: Counter[str] = field(default_factory=Counter)
    """Differences by the law that they break."""
    shown: list[str] = field(default_factory=list)

    def same(self, law: str, source: object, expected: object, got: object) -> bool:
        """Compare one value; `source` is what it was made of."""
        self.n_checks += 1
        if expected == got:
            return True
        self.n_differences += 1
        self.by_law[law] += 1
        if len(self.shown) < SHOWN_DIFFERENCES:
            parts = (repr(part)[:SHOWN_CHARACTERS] for part in (source, expected, got))
            self.shown.append("{}: of {}\n    expected {}\n    got      {}".format(law, *parts))
        return False

    def add(self, others: Iterable["Tally"]) -> "Tally":
        """Add other tallies to this one."""
        for other in others:
            self.n_strings += other.n_strings
            self.n_ids += other.n_ids
            self.n_sequences += other.n_sequences
            self.n_streams += other.n_streams
            self.n_checks += other.n_checks
            self.n_differences += other.n_differences
            self.by_law += other.by_law
            self.shown += other.shown
        return self

    def demand_none(self) -> None:
        """Fail, with the first differences, unless there was none."""
        assert self.n_checks, "nothing was compared"
        head = f"{self.n_differences} of {self.n_checks} comparisons differ: {dict(self.by_law)}"
        assert not self.n_differences, "\n".join([head, *self.shown])
