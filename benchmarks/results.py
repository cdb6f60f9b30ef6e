"""What a comparison came to: a figure, what it has to reach, and what it is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Row", "Sizes", "Target"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What a figure has to reach."""

    at_least: float
    aim: float
    unit: str = "x"
    """`x` a ratio, `%` a share written as a ratio, `s` seconds, `/s` a number for each second."""

    @property
    def more_is_better(self) -> bool:
        """Whether the aim lies above what is demanded."""
        return self.aim > self.at_least

    def verdict(self, value: float) -> str:
        """`aim`, `reached` or `missed`."""
        sign = 1 if self.more_is_better else -1
        if sign * value >= sign * self.aim:
            return "aim"
        return "reached" if sign * value >= sign * self.at_least else "missed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table."""

    number: int
    """The comparison that it belongs to."""
    what: str
    value: float | None
    """None: it could not be measured, and `note` says why."""
    target: Target | None = None
    """None: it is there for comparison."""
    unit: str = "x"
    """Of a row without a target."""
    note: str = ""
    """The figures behind the value, in words."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """All that was measured, for the JSON."""

    @property
    def verdict(self) -> str:
        """What became of the target."""
        if self.value is None:
            return "not measured"
        return self.target.verdict(self.value) if self.target else ""

    def shown(self, number: float) -> str:
        """A number in this row's unit."""
        unit = self.target.unit if self.target else self.unit
        if unit == "%":
            return f"{number:.1%}" if abs(number) < 0.1 else f"{number:.0%}"
        if unit == "s":
            return f"{number:.2f} s"
        if unit == "/s":
            return f"{number:,.0f}"
        return f"{number:.2f}x" if number < 10 else f"{number:.1f}x"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int = 5
    """Turns of each comparison."""
    seconds: float = 1.5
    """Length of one pass."""
    bulk_files: tuple[str, ...] = ("o200k", "llama3", "gpt2", "cl100k")
    """Tokenizers of the bulk comparison."""
    file: str = "o200k"
    """The tokenizer of all others."""
    bulk_bytes: int = 6_000_000
    """Text of one bulk pass."""
    batches: int = 8
    """Batches of one BatchEncode pass."""
    calls: int = 60_000
    """Most calls of one pass, prepared beforehand."""
    pushes: int = 1_500
    """Pushes whose median is taken."""
    sequence_tokens: int = 1_000_000
    """Tokens of one long sequence."""
    latency_seconds: float = 3.0
    """Length of one pass whose worst calls are looked for."""
    workers: int = 4
    """Workers whose memory is compared with one."""
    starts: int = 7
    """Starts whose median is taken."""
    memory_bytes: tuple[int, int] = (100_000_000, 1_000_000_000)
    """Text after which memory is read."""
    verify: bool = True
    """Have verdicts made, and the peer installed, where they are not there."""


FULL = Sizes()
SMOKE = Sizes(
    rounds=1,
    seconds=0.2,
    bulk_files=("gpt2",),
    file="gpt2",
    bulk_bytes=200_000,
    batches=1,
    calls=1_000,
    pushes=50,
    sequence_tokens=10_000,
    latency_seconds=0.3,
    workers=2,
    starts=1,
    memory_bytes=(200_000, 1_000_000),
    verify=False,
)
