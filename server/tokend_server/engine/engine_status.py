"""Which engine computes ids, and why: what GetTokenizer, the ready line and the metrics tell."""

from dataclasses import dataclass
from enum import Enum, auto

from tokend_server.engine.shadow import ShadowResult

__all__ = ["REFERENCE", "EngineEvents", "EngineState", "EngineStatus"]

REFERENCE = "reference"
"""The name of the reference where an engine is named."""


class EngineState(Enum):
    """The fast engine's standing for the served file."""

    DISABLED = auto()
    """Not installed, or switched off."""
    UNSUPPORTED = auto()
    """The file has features that it does not cover, or verification failed."""
    PENDING = auto()
    """Verification is running; the reference serves."""
    VERIFIED = auto()
    """It serves."""
    QUARANTINED = auto()
    """It was taken out of service for good."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineStatus:
    """One moment's standing."""

    name: str
    """The engine that computes ids now."""
    version: str
    """Its version."""
    state: EngineState
    reason: str
    """Why the state is what it is; empty for VERIFIED."""
    excluded_code_points: int
    """On how many code points the engines differ; texts with one of them go to the reference."""


class EngineEvents:
    """What an encoder tells those who count; this one tells nobody. Called from any thread, so override with care."""

    def encoded(self, engine: str, n_texts: int) -> None:
        """Texts were encoded by the engine of this name."""

    def shadow_checked(self, result: ShadowResult) -> None:
        """A sampled answer was checked, or was not."""

    def engine_failed(self) -> None:
        """The fast engine raised an error on a batch, which the reference then served."""

    def changed(self, status: EngineStatus) -> None:
        """The standing has changed."""
