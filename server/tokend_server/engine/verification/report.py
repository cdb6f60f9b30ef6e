"""`tokend verify FILE`: verify, keep the verdict, and tell people what was found."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokend_server.engine.artifact import REFERENCE_VERSION, read_artifact
from tokend_server.engine.fast import FASTOKENS, fastokens_version
from tokend_server.engine.feature_gate import unsupported_feature
from tokend_server.engine.reference import ReferenceEncoder
from tokend_server.engine.special_tokens import ControlTokens, select_control_tokens
from tokend_server.engine.tokenizer_file import TokenizerFile
from tokend_server.engine.verdicts import Verdict, VerdictKey, VerdictKind, VerdictStore, processor
from tokend_server.engine.verification.child import Finding, Task, VerificationChild
from tokend_server.engine.verification.run import FULL, SCHEME, Extent, Progress

__all__ = ["Report", "render_report", "verdict_key", "verdict_of", "verify"]

_MOST_CODE_POINTS = 40
_MOST_CHARACTERS = 100
_MOST_IDS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What `verify` found about one file."""

    path: Path
    fingerprint: str
    engine_version: str | None
    """None: the fast engine is not installed."""
    may_serve: bool
    """Whether the fast engine may serve this file here."""
    reason: str
    """Why it may not; empty where it may."""
    excluded: frozenset[int] = frozenset()
    phases: Sequence[Mapping[str, Any]] = ()
    """What was compared, phase by phase; none where verification was not needed."""
    duration_s: float = 0.0
    kept_at: Path | None = None
    """Where the verdict is kept; None: nowhere on disk."""


def verdict_key(
    file: TokenizerFile, control: ControlTokens, *, loader: str = FASTOKENS, extent: Extent = FULL
) -> VerdictKey:
    """Returns what a verdict on this file, on this machine, with these versions, is kept under."""
    return VerdictKey(
        fingerprint=file.fingerprint,
        reference_version=REFERENCE_VERSION,
        engine=loader,
        engine_version=fastokens_version() or "",
        scheme=SCHEME if extent == FULL else f"{SCHEME}, {extent.name}",
        control_tokens=VerdictKey.digest_of(control.ids),
        processor=processor(),
    )


def verdict_of(finding: Finding, key: VerdictKey) -> Verdict:
    """Makes a verdict of a final finding."""
    return Verdict(
        key=key,
        kind=VerdictKind.UNSUPPORTED if finding.reason else VerdictKind.VERIFIED,
        reason=finding.reason,
        excluded=finding.excluded,
        decided_at=datetime.now(UTC).isoformat(timespec="seconds"),
        figures={"phases": list(finding.phases)},
    )


def verify(
    path: Path,
    *,
    progress: Progress,
    store: VerdictStore,
    control_tokens: Sequence[str] = (),
    loader: str = FASTOKENS,
    stall_timeout_s: float = 120.0,
    extent: Extent = FULL,
) -> Report:
    """Verifies the fast engine for a file, whatever earlier verdict there is, and keeps the new one.

    A quarantine is not lifted by it: that was an answer that verification had not foreseen.

    Args:
        path: The tokenizer.json.
        progress: Told the phase, and the share of it that is done.
        store: Where the verdict is kept.
        control_tokens: The setting of that name.
        loader: The engine.
        stall_timeout_s: How long the engine may say nothing before it counts as hanging.
        extent: How much is compared; a verdict of less than the full extent serves nobody else.

    Returns:
        The report.

    Raises:
        TokenizerFileError: The file cannot be served by any engine.
    """
    started_s = time.monotonic()
    artifact = read_artifact(path)
    control = select_control_tokens(artifact, control_tokens)
    reference = ReferenceEncoder(artifact, control)
    version = fastokens_version()

    def report(*, reason: str, finding: Finding | None = None, kept_at: Path | None = None) -> Report:
        return Report(
            path=path,
            fingerprint=artifact.fingerprint,
            engine_version=version,
            may_serve=not reason,
            reason=reason,
            excluded=finding.excluded if finding else frozenset(),
            phases=finding.phases if finding else (),
            duration_s=time.monotonic() - started_s,
            kept_at=kept_at,
        )

    if version is None:
        return report(reason="fastokens is not installed")
    unsupported = unsupported_feature(artifact.spec, reference)
    if unsupported is not None:
        return report(reason=unsupported)
    key = verdict_key(artifact, control, loader=loader, extent=extent)
    earlier = store.load(key)
    if earlier is not None and earlier.kind is VerdictKind.QUARANTINED:
        place = store.path_of(key)
        return report(
            reason=f"quarantined at {earlier.decided_at}: {earlier.reason}; to lift it, remove the verdict",
            kept_at=place,
        )
    task = Task(
        path=str(path),
        fingerprint=artifact.fingerprint,
        control_tokens=tuple(control_tokens),
        loader=loader,
        in_background=False,
        extent=extent,
    )
    finding = VerificationChild(task, stall_timeout_s=stall_timeout_s).run(progress)
    kept = finding.is_final and store.save(verdict_of(finding, key))
    return report(reason=finding.reason, finding=finding, kept_at=store.path_of(key) if kept else None)


def render_report(report: Report) -> str:
    """Writes a report for people; ends with a line break."""
    engine = f"fastokens {report.engine_version or '(not installed)'}"
    lines = [
        f"file       {report.path}",
        f"sha256     {report.fingerprint}",
        f"reference  tokenizers {REFERENCE_VERSION}",
        f"engine     {engine}",
        "",
    ]
    if report.phases:
        lines.append(f"{'compared':<28}{'texts':>10}{'MB':>8}{'ids':>13}{'explained':>11}{'other':>7}")
        lines += [
            f"{phase['name']:<28}{phase['n_texts']:>10,}{phase['n_bytes'] / 1e6:>8.1f}{phase['n_ids']:>13,}"
            f"{phase['n_explained']:>11,}{len(phase['differences']):>7,}"
            for phase in report.phases
        ]
        lines += [f"{'':<28}took {report.duration_s:.0f} s; `explained` differ on an excluded code point", ""]
    lines += _shown_differences(report.phases)
    if report.phases:
        lines.append(_excluded_line(report.excluded))
    if report.may_serve:
        lines.append("verdict    VERIFIED: the fast engine may serve this file")
    else:
        lines.append(f"verdict    REFERENCE ONLY: {report.reason}")
    lines.append(f"kept       {report.kept_at or 'not on disk'}")
    return "\n".join(line for line in lines if line is not None) + "\n"


def _excluded_line(excluded: frozenset[int]) -> str:
    shown = ", ".join(f"U+{code_point:04X}" for code_point in sorted(excluded)[:_MOST_CODE_POINTS])
    more = f" and {len(excluded) - _MOST_CODE_POINTS} more" if len(excluded) > _MOST_CODE_POINTS else ""
    return f"excluded   {shown or 'no code points'}{more}"


def _shown_differences(phases: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for phase in phases:
        for difference in phase["differences"]:
            text = difference["text"]
            shown = text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"
            # Generated text, so it may be told; escaped, so that it does not disturb a terminal.
            lines += [
                f"difference {shown!a} ({difference['mode']})",
                f"  reference {_ids(difference['expected'])}",
                f"  engine    {_ids(difference['found'])}",
            ]
    return [*lines, ""] if lines else []


def _ids(ids: Sequence[int] | None) -> str:
    if ids is None:
        return "an error"
    return " ".join(map(str, ids[:_MOST_IDS])) + (" …" if len(ids) > _MOST_IDS else "")
