"""What is served: the frozen tokenizer, and the choice of the engine behind it, told to the log and the metrics."""

import contextlib
import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokend_server import logs
from tokend_server.config import Settings
from tokend_server.data import default_tokenizer_path
from tokend_server.engine.engine_choice import EngineChoice
from tokend_server.engine.engine_status import EngineEvents, EngineState, EngineStatus
from tokend_server.engine.frozen import FrozenTokenizer
from tokend_server.engine.shadow import ShadowResult
from tokend_server.engine.verdicts import VerdictStore, default_state_folder
from tokend_server.metrics import Metrics
from tokend_server.tracing import Tracing

__all__ = ["EngineWatch", "Served", "load_served", "state_folder", "verdict_store"]

_log = logs.get("engine")


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """A tokenizer, and what chooses its engine."""

    tokenizer: FrozenTokenizer
    choice: EngineChoice

    def begin(
        self,
        metrics: Metrics,
        tracing: Tracing | None = None,
    ) -> None:
        """Tell of the engine from now on, and do in the background what its choice still needs; after any fork.

        Args:
            metrics: Counts what the engines do.
            tracing: Has the spans that are told which engine their texts had.
        """
        self.tokenizer.encoder.observe(EngineWatch(metrics, self.tokenizer, tracing))
        self.choice.follow(self.tokenizer.encoder)

    def end(self) -> None:
        """End what runs in the background; encoding goes on to work."""
        self.choice.stop()
        self.tokenizer.encoder.close()


def load_served(settings: Settings, *, shared_folder: Path | None = None) -> Served:
    """Load the tokenizer that the settings name, and put its fast engine into service where a verdict is there.

    No thread is left, so that workers may be forked.

    Args:
        settings: What is asked for.
        shared_folder: Where workers keep a verdict for each other if the state folder cannot be written.

    Raises:
        TokenizerFileError: The tokenizer file cannot be served.
    """
    choice = EngineChoice(
        verdict_store(settings, shared_folder),
        enabled=settings.engine == "auto",
        shadow_every=settings.shadow_every,
    )
    with _collector_off():
        tokenizer = FrozenTokenizer.load(
            settings.tokenizer or default_tokenizer_path(),
            control_tokens=settings.control_tokens,
            choice=choice,
            state_folder=state_folder(settings),
        )
        choice.start(tokenizer.encoder)
    return Served(tokenizer=tokenizer, choice=choice)


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """Keep the garbage collector from going through the tables, over and over while they grow, and ever after."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def state_folder(settings: Settings) -> Path:
    """Return the folder that the settings name, or that is usual for this user."""
    return settings.state_dir or default_state_folder(os.environ)


def verdict_store(settings: Settings, shared_folder: Path | None = None) -> VerdictStore:
    """Return the store in the state folder, with another one beside it."""
    return VerdictStore(
        state_folder(settings),
        beside=shared_folder,
        warn=lambda what: _log.warning("a verdict on disk", what=what),
    )


class EngineWatch(EngineEvents):
    """Counts and logs what the engines do; no text gets into either."""

    def __init__(
        self,
        metrics: Metrics,
        tokenizer: FrozenTokenizer,
        tracing: Tracing | None = None,
    ) -> None:
        self._metrics = metrics
        self._tokenizer = tokenizer
        self._tracing = tracing
        # Bound here: this is called for every request.
        self._encoded = metrics.engine.encoded

    def encoded(self, engine: str, n_texts: int) -> None:
        """Count texts, and name the engine in the call's span."""
        self._encoded(engine, n_texts)
        if self._tracing is not None:
            self._tracing.encoded(engine)

    def shadow_checked(self, result: ShadowResult) -> None:
        """Count a check."""
        self._metrics.engine.shadow_checked(result)

    def engine_failed(self) -> None:
        """Count a batch on which the fast engine failed."""
        self._metrics.engine.failed()

    def changed(self, status: EngineStatus) -> None:
        """Tell the new standing, and name the engine with the tokenizer."""
        self._metrics.engine.become(status.state.name.lower())
        tokenizer = self._tokenizer
        self._metrics.set_tokenizer(
            fingerprint=tokenizer.fingerprint,
            name=tokenizer.name,
            model_type=tokenizer.pipeline.model_type,
            engine=status.name,
            streaming=tokenizer.decoder.mode,
            reference_version=tokenizer.reference_version,
        )
        if status.state is EngineState.VERIFIED:
            tokenizer.encoder.warm_up()
        log = _log.error if status.state is EngineState.QUARANTINED else _log.info
        log(
            "engine",
            engine=status.name,
            version=status.version,
            state=status.state.name,
            reason=status.reason,
            excluded_code_points=status.excluded_code_points,
        )
