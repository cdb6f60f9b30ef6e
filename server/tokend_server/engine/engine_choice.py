"""Which engine serves: decided at the start from a verdict on disk, or later when verification is done."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import orjson

from tokend_server.engine.artifact import Artifact
from tokend_server.engine.encoder import Encoder
from tokend_server.engine.engine_status import EngineState
from tokend_server.engine.fast import (
    FASTOKENS,
    EngineLoader,
    FastEngine,
    FastEngineRefusal,
    engine_file,
    fastokens_version,
    loader_named,
)
from tokend_server.engine.feature_gate import unsupported_feature
from tokend_server.engine.reference import ReferenceEncoder
from tokend_server.engine.special_tokens import ControlTokens
from tokend_server.engine.tokenizer_file import TokenizerFile
from tokend_server.engine.verdicts import Verdict, VerdictKey, VerdictKind, VerdictStore
from tokend_server.engine.verification import verdict_key, verdict_of
from tokend_server.engine.verification.child import Task, VerificationChild
from tokend_server.engine.verification.run import FULL, Extent

__all__ = ["EngineChoice"]

_LOAD_TIMEOUT_S = 60.0
_LOOK_EVERY_S = 10.0
_ENTER_S = 0.03

_STATES = {
    VerdictKind.VERIFIED: EngineState.VERIFIED,
    VerdictKind.UNSUPPORTED: EngineState.UNSUPPORTED,
    VerdictKind.QUARANTINED: EngineState.QUARANTINED,
}
_FOLLOWED = frozenset({EngineState.PENDING, EngineState.VERIFIED, EngineState.UNSUPPORTED})


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate:
    """What is kept of a file until its engine is loaded."""

    task: Task
    key: VerdictKey
    data: bytes
    control: frozenset[str]


class _Loading:
    """One loading of the engine, on a thread of its own, since it may hang, and the reference is loaded meanwhile."""

    def __init__(self, candidate: _Candidate, spec: Mapping[str, Any]) -> None:
        self.engine: FastEngine | None = None
        self.refusal = "loading the engine takes too long"
        self._thread: threading.Thread | None = None
        try:
            load, file = loader_named(candidate.task.loader), engine_file(spec, candidate.control)
        except FastEngineRefusal as refusal:
            self.refusal = str(refusal)
        else:
            self._thread = threading.Thread(
                target=self._load, args=(load, file), name="load-engine", daemon=True
            )
            self._thread.start()
            # The reference holds the GIL while it loads, and would stop a thread that is not inside the engine yet.
            self._thread.join(_ENTER_S)

    def _load(self, load: EngineLoader, file: str) -> None:
        try:
            self.engine = load(file)
        except FastEngineRefusal as refusal:
            self.refusal = str(refusal)
        except BaseException as failure:  # noqa: BLE001 (a panic, or an engine that is not there: the reference serves)
            self.refusal = f"the engine cannot be loaded: {type(failure).__name__}"

    def wait(self, timeout_s: float) -> FastEngine | None:
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self.engine


class EngineChoice:
    """Chooses for one file: `prepare` and `judge` while it is loaded, `start` when its encoder is there, then `follow`.

    With a verdict on disk the engine is in service when `start` returns, and no thread of this class is left, so that
    workers may be forked. Without one the reference serves, and `follow` has a child process verify.
    """

    def __init__(
        self,
        store: VerdictStore,
        *,
        enabled: bool,
        shadow_every: int,
        loader: str = FASTOKENS,
        stall_timeout_s: float = 300.0,
        extent: Extent = FULL,
        on_progress: Callable[[str, float], None] = lambda _phase, _share: None,
    ) -> None:
        """Prepares a choice.

        Args:
            store: Where verdicts are kept.
            enabled: Whether a fast engine is wanted at all.
            shadow_every: One text in so many is checked while the engine serves; 0: none.
            loader: The engine.
            stall_timeout_s: How long verification may be silent before the engine counts as hanging.
            extent: How much verification compares.
            on_progress: Told how far verification is, from its thread.
        """
        self._store = store
        self._enabled = enabled
        self._shadow_every = shadow_every
        self._loader = loader
        self._stall_timeout_s = stall_timeout_s
        self._extent = extent
        self._on_progress = on_progress
        self._candidate: _Candidate | None = None
        self._unsupported: str | None = None
        self._loading: _Loading | None = None
        self._child: VerificationChild | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def prepare(
        self,
        file: TokenizerFile,
        control: ControlTokens,
        control_setting: tuple[str, ...],
    ) -> None:
        """Begins to load the engine where a verdict allows it, beside the rest of the loading.

        Args:
            file: The file, with its `spec`.
            control: Its control tokens.
            control_setting: What they were selected by.
        """
        if not self._enabled or fastokens_version() is None:
            return
        self._candidate = _Candidate(
            task=Task(
                path=str(file.path),
                fingerprint=file.fingerprint,
                control_tokens=control_setting,
                loader=self._loader,
                in_background=True,
                extent=self._extent,
            ),
            key=verdict_key(file, control, loader=self._loader, extent=self._extent),
            data=file.data,
            control=frozenset(control.ids),
        )
        verdict = self._store.load(self._candidate.key)
        if verdict is not None and verdict.kind is VerdictKind.VERIFIED:
            self._loading = _Loading(self._candidate, file.spec)

    def judge(self, artifact: Artifact, reference: ReferenceEncoder) -> None:
        """Passes the file through the feature gate.

        Args:
            artifact: The file, with its `spec`.
            reference: The reference on it.
        """
        self._unsupported = unsupported_feature(artifact.spec, reference)

    def start(self, encoder: Encoder) -> None:
        """Puts the engine into service where a verdict is there, and says why not where none is.

        Args:
            encoder: Of the prepared file.
        """
        candidate = self._candidate
        if not self._enabled:
            encoder.serve_reference(EngineState.DISABLED, "switched off by the setting `engine`")
        elif candidate is None:
            encoder.serve_reference(EngineState.DISABLED, "fastokens is not installed")
        elif self._unsupported is not None:
            encoder.serve_reference(EngineState.UNSUPPORTED, self._unsupported)
        else:
            encoder.on_quarantine(lambda reason: self._keep_quarantine(candidate.key, reason))
            verdict = self._store.load(candidate.key)
            if verdict is None:
                encoder.serve_reference(EngineState.PENDING, "verification is running")
            else:
                self._apply(encoder, candidate, verdict)

    def follow(self, encoder: Encoder) -> None:
        """Does in the background what is still to be done: verifies, and heeds what other processes find out.

        To be called once in each process that serves, after any fork. A worker that takes the place of a dead one has
        the standing of its parent, which may be long past: it looks at the verdict at once.

        Args:
            encoder: The one that `start` was given.
        """
        candidate = self._candidate
        if candidate is None or self._unsupported is not None:
            return
        found = self._store.load(candidate.key)
        if found is not None and found.kind is VerdictKind.QUARANTINED:
            self._apply(encoder, candidate, found)
        if encoder.status.state in _FOLLOWED:
            self._thread = threading.Thread(
                target=self._follow, args=(encoder, candidate), name="follow-engine", daemon=True
            )
            self._thread.start()

    def wait(self, encoder: Encoder, timeout_s: float) -> bool:
        """Waits until no verification is to be waited for; False where that takes longer."""
        deadline_s = time.monotonic() + timeout_s
        while encoder.status.state is EngineState.PENDING:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.02)
        return True

    def stop(self) -> None:
        """Ends what runs in the background; the engine in service stays."""
        self._ended.set()
        child = self._child
        if child is not None:
            child.stop()
        if self._thread is not None:
            self._thread.join(5.0)

    def _follow(self, encoder: Encoder, candidate: _Candidate) -> None:
        if encoder.status.state is EngineState.PENDING:
            try:
                verdict = self._verified(candidate)
            except Exception as failure:  # noqa: BLE001 (whatever it is, nobody waits for it for ever)
                reason = f"verification failed: {type(failure).__name__}"
                encoder.serve_reference(EngineState.UNSUPPORTED, reason)
            else:
                if self._ended.is_set():
                    return
                self._apply(encoder, candidate, verdict)
        # Where one worker has found a fault, all stop using the engine; and `tokend verify` may do better than we did.
        while encoder.status.state in _FOLLOWED and not self._ended.wait(_LOOK_EVERY_S):
            found = self._store.load(candidate.key)
            if found is not None and _STATES[found.kind] is not encoder.status.state:
                self._apply(encoder, candidate, found)

    def _verified(self, candidate: _Candidate) -> Verdict:
        """Returns the verdict of this process or of another one that was sooner."""
        with self._store.claimed(candidate.key):
            verdict = self._store.load(candidate.key)
            if verdict is not None:
                return verdict
            child = self._child = VerificationChild(candidate.task, stall_timeout_s=self._stall_timeout_s)
            if self._ended.is_set():
                child.stop()
            looked_s = time.monotonic()

            def told(phase: str, share: float) -> None:
                nonlocal looked_s
                self._on_progress(phase, share)
                # `tokend verify` waits for nobody, and is faster: it does not stand back for others.
                if time.monotonic() - looked_s > _LOOK_EVERY_S:
                    looked_s = time.monotonic()
                    if self._store.load(candidate.key) is not None:
                        child.stop()

            finding = child.run(told)
            verdict = self._store.load(candidate.key) or verdict_of(finding, candidate.key)
            if finding.is_final:
                self._store.save(verdict)
            return verdict

    def _apply(self, encoder: Encoder, candidate: _Candidate, verdict: Verdict) -> None:
        if verdict.kind is VerdictKind.QUARANTINED:
            encoder.quarantine(f"{verdict.reason} (at {verdict.decided_at})")
        elif verdict.kind is VerdictKind.UNSUPPORTED:
            encoder.serve_reference(EngineState.UNSUPPORTED, verdict.reason)
        else:
            loading = self._loading or _Loading(candidate, orjson.loads(candidate.data))
            engine = loading.wait(_LOAD_TIMEOUT_S)
            if engine is None:
                encoder.serve_reference(EngineState.DISABLED, loading.refusal)
            else:
                encoder.serve_fast(engine, verdict.excluded, shadow_every=self._shadow_every)
        self._loading = None

    def _keep_quarantine(self, key: VerdictKey, reason: str) -> None:
        earlier = self._store.load(key)
        if earlier is None or earlier.kind is VerdictKind.QUARANTINED:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._store.save(replace(earlier, kind=VerdictKind.QUARANTINED, reason=reason, decided_at=now))
