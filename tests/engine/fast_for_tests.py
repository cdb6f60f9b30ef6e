"""A file with everything that a fast engine needs on it, for the tests of its guards."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from tokend_server.engine.artifact import Artifact, read_artifact
from tokend_server.engine.encoder import Encoder
from tokend_server.engine.fast import FastEngine, engine_file, load_fastokens
from tokend_server.engine.reference import ReferenceEncoder
from tokend_server.engine.special_tokens import ControlTokens, select_control_tokens
from tokend_server.engine.verdicts import VerdictStore
from tokend_server.engine.verification import verdict_key, verdict_of
from tokend_server.engine.verification.child import Finding
from tokend_server.engine.verification.run import Extent


def save_verdict(path: Path, state: Path, *, excluded: Collection[int] = (), **changes: object) -> None:
    """Keep the verdict that verification of this file, which takes half a minute and more, would leave."""
    subject = Subject.of(path)
    finding = Finding(is_final=True, reason="", excluded=frozenset(excluded))
    verdict = verdict_of(finding, verdict_key(subject.artifact, subject.control))
    VerdictStore(state).save(replace(verdict, **changes))


QUICK = Extent(name="quick", n_code_points=0x2800, n_fuzz_strings=1200, every_text=40)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One file, its reference, and what verification needs."""

    artifact: Artifact
    control: ControlTokens
    reference: ReferenceEncoder

    @classmethod
    def of(cls, path: Path, *control_tokens: str) -> "Subject":
        artifact = read_artifact(path)
        control = select_control_tokens(artifact, control_tokens)
        return cls(artifact=artifact, control=control, reference=ReferenceEncoder(artifact, control))

    def engine(self, load=load_fastokens) -> FastEngine:
        return load(engine_file(self.artifact.spec, frozenset(self.control.ids)))

    def encoder(self, load=load_fastokens, *, excluded=frozenset(), shadow_every=0) -> Encoder:
        encoder = Encoder(self.reference)
        encoder.serve_fast(self.engine(load), frozenset(excluded), shadow_every=shadow_every)
        return encoder
