"""Whether something grew: a late part of a soak compared with an early one, after the warm-up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from tests.soak.census import Held

__all__ = ["Comparison", "compare"]

_EARLY, _LATE = (0.2, 0.4), (0.8, 1.0)
"""Parts of the whole; what is before them is the warm-up."""
_MIB = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One quantity, early and late."""

    what: str
    early: float
    late: float
    allowed: float
    """The most that `late` may be above `early`."""

    @property
    def grew(self) -> bool:
        """Whether it grew by more than is allowed."""
        return self.late - self.early > self.allowed


def compare(whose: str, samples: Sequence[Held]) -> list[Comparison]:
    """Compare the medians of an early and a late part.

    Args:
        whose: Of which processes.
        samples: Taken at even distances, while nothing was asked of the server; at least ten.
    """
    if len(samples) < 10:
        raise ValueError(f"{len(samples)} samples tell nothing; at least 10 are needed")

    def part(bounds: tuple[float, float], of: Callable[[Held], float]) -> float:
        first, last = (round(bound * len(samples)) for bound in bounds)
        return median(of(sample) for sample in samples[first:last])

    def one(what: str, of: Callable[[Held], float], *, share: float, at_least: float) -> Comparison:
        early = part(_EARLY, of)
        allowed = max(at_least, share * early)
        return Comparison(what=f"{whose}: {what}", early=early, late=part(_LATE, of), allowed=allowed)

    return [
        # Allocators keep what was once needed, and caches of words fill slowly.
        one("memory, MiB", lambda held: held.memory_bytes / _MIB, share=0.03, at_least=4),
        one("threads", lambda held: held.threads, share=0, at_least=4),
        # Callers come anew all the time: at one moment some are not connected yet.
        one("descriptors", lambda held: held.descriptors, share=0, at_least=4),
    ]
