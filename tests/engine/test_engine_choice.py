"""Which engine serves: from a verdict on disk, or when verification is done, and never after a quarantine."""

import os
import time
from dataclasses import replace

import pytest

from tests.engine import planted_engines
from tests.engine.fast_for_tests import QUICK, Subject
from tests.engine.planted_engines import RARE, SNOWMAN, loader
from tests.tokenizers_for_tests import BL, WP
from tokend_server.engine import engine_choice
from tokend_server.engine.encoder import Encoder
from tokend_server.engine.engine_choice import EngineChoice
from tokend_server.engine.engine_status import EngineState
from tokend_server.engine.verdicts import VerdictKind, VerdictStore


@pytest.fixture(autouse=True)
def children_find_the_planted_engines(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(planted_engines.__file__).split("/tests/", 1)[0] + os.pathsep)


@pytest.fixture(scope="module")
def subject(tokenizer_file):
    return Subject.of(tokenizer_file(BL()))


def chosen(subject, store, name="wrong_on_a_snowman", *, enabled=True, shadow_every=0, **limits):
    """An encoder and the choice that was made for it, as a server does it."""
    choice = EngineChoice(
        store, enabled=enabled, shadow_every=shadow_every, loader=loader(name), extent=QUICK, **limits
    )
    choice.prepare(subject.artifact, subject.control, ())
    choice.judge(subject.artifact, subject.reference)
    encoder = Encoder(subject.reference)
    choice.start(encoder)
    choice.follow(encoder)
    return encoder, choice


def test_without_a_verdict_the_reference_serves_until_verification_is_done(subject, tmp_path):
    phases = []
    encoder, choice = chosen(
        subject, VerdictStore(tmp_path), on_progress=lambda phase, _share: phases.append(phase)
    )
    assert encoder.status.state is EngineState.PENDING
    assert encoder.encode(["x"])[0].ids == [262, 120]
    assert choice.wait(encoder, 120)
    assert (encoder.status.state, encoder.status.name, encoder.status.excluded_code_points) == (
        EngineState.VERIFIED,
        "planted",
        1,
    )
    assert "code points" in phases
    # Another start, with another store on the same folder, needs no verification.
    again, _ = chosen(subject, VerdictStore(tmp_path))
    assert again.status == encoder.status
    assert again.encode([SNOWMAN]) == subject.reference.encode([SNOWMAN])


def test_an_engine_that_fails_verification_leaves_the_reference(subject, tmp_path):
    encoder, choice = chosen(subject, VerdictStore(tmp_path), "wrong_on_a_word")
    assert choice.wait(encoder, 120)
    assert encoder.status.state is EngineState.UNSUPPORTED
    again, _ = chosen(subject, VerdictStore(tmp_path), "wrong_on_a_word")
    assert again.status == encoder.status


@pytest.mark.parametrize("name", ["aborting_at_load", "panicking_at_load", "hanging_at_load"])
def test_an_engine_that_dies_leaves_the_reference_serving(subject, name):
    encoder, choice = chosen(subject, VerdictStore(None), name, stall_timeout_s=8)
    assert choice.wait(encoder, 60)
    assert (encoder.status.state, encoder.status.name) == (EngineState.UNSUPPORTED, "reference")
    assert encoder.encode(["x"])[0].ids == [262, 120]


def test_a_wrong_answer_in_service_is_remembered_over_a_restart(subject, tmp_path):
    name = "wrong_on_a_rare_string"
    encoder, choice = chosen(subject, VerdictStore(tmp_path), name, shadow_every=1)
    assert choice.wait(encoder, 120)
    assert encoder.status.state is EngineState.VERIFIED, "verification does not know the string"
    encoder.encode([RARE])
    assert encoder.settle(10)
    assert encoder.status.state is EngineState.QUARANTINED
    again, _ = chosen(subject, VerdictStore(tmp_path), name)
    assert again.status.state is EngineState.QUARANTINED
    assert again.encode([RARE]) == subject.reference.encode([RARE])


def verdict_on_disk(subject, folder, **changes):
    """A verdict as verification would have left it."""
    from tokend_server.engine.verification import verdict_key, verdict_of
    from tokend_server.engine.verification.child import Finding

    name = changes.pop("name", "wrong_on_a_snowman")
    key = verdict_key(subject.artifact, subject.control, loader=loader(name), extent=QUICK)
    verdict = verdict_of(Finding(is_final=True, reason="", excluded=frozenset({ord(SNOWMAN)})), key)
    VerdictStore(folder).save(replace(verdict, **changes))


def test_with_a_verdict_the_engine_serves_when_start_returns(subject, tmp_path):
    verdict_on_disk(subject, tmp_path)
    encoder, choice = chosen(subject, VerdictStore(tmp_path))
    assert encoder.status.state is EngineState.VERIFIED
    choice.stop()


def test_a_verdict_for_other_control_tokens_does_not_count(subject, tmp_path):
    verdict_on_disk(subject, tmp_path)
    other = Subject.of(subject.artifact.path, "<tool>")
    encoder, choice = chosen(other, VerdictStore(tmp_path))
    assert encoder.status.state is EngineState.PENDING
    choice.stop()


def test_an_engine_that_hangs_while_it_is_loaded_here_does_not_keep_the_server_from_starting(
    subject, tmp_path, monkeypatch
):
    verdict_on_disk(subject, tmp_path, name="hanging_at_load")
    monkeypatch.setattr(engine_choice, "_LOAD_TIMEOUT_S", 0.2)
    encoder, _ = chosen(subject, VerdictStore(tmp_path), "hanging_at_load")
    assert (encoder.status.state, encoder.status.reason) == (
        EngineState.DISABLED,
        "loading the engine takes too long",
    )


def test_a_quarantine_on_disk_keeps_the_engine_out(subject, tmp_path):
    verdict_on_disk(subject, tmp_path, kind=VerdictKind.QUARANTINED, reason="it differed")
    encoder, _ = chosen(subject, VerdictStore(tmp_path))
    assert encoder.status.state is EngineState.QUARANTINED
    assert encoder.status.reason.startswith("it differed (at ")


def test_switched_off_there_is_no_engine(subject, tmp_path):
    verdict_on_disk(subject, tmp_path)
    encoder, _ = chosen(subject, VerdictStore(tmp_path), enabled=False)
    assert (encoder.status.state, encoder.status.name) == (EngineState.DISABLED, "reference")


def test_a_file_off_the_allow_list_is_not_verified(tokenizer_file, tmp_path):
    encoder, _ = chosen(Subject.of(tokenizer_file(WP())), VerdictStore(tmp_path))
    assert (encoder.status.state, encoder.status.reason) == (
        EngineState.UNSUPPORTED,
        "the model is WordPiece",
    )


def test_stopping_ends_a_verification(subject):
    encoder, choice = chosen(subject, VerdictStore(None), "hanging_at_load")
    choice.stop()
    assert not choice._thread.is_alive()
    assert encoder.status.name == "reference"


def test_one_of_several_workers_verifies_and_all_use_what_it_found(subject, tmp_path):
    children = []
    encoders = [
        chosen(subject, VerdictStore(tmp_path), on_progress=lambda phase, _share: children.append(phase))
        for _ in range(3)
    ]
    for encoder, choice in encoders:
        assert choice.wait(encoder, 120)
        assert encoder.status.state is EngineState.VERIFIED
    assert children.count("loading the engine") == 1


def test_a_quarantine_in_one_worker_reaches_the_others(subject, tmp_path, monkeypatch):
    monkeypatch.setattr(engine_choice, "_LOOK_EVERY_S", 0.05)
    verdict_on_disk(subject, tmp_path)
    (one, _), (other, choice) = (chosen(subject, VerdictStore(tmp_path)) for _ in range(2))
    one.quarantine("a sampled answer differed")
    choice._thread.join(10)
    assert other.status.state is EngineState.QUARANTINED
    assert other.status.reason.startswith("a sampled answer differed (at ")


def test_a_verdict_that_tokend_verify_writes_meanwhile_is_taken_up(subject, tmp_path, monkeypatch):
    monkeypatch.setattr(engine_choice, "_LOOK_EVERY_S", 0.05)
    encoder, choice = chosen(
        subject,
        VerdictStore(tmp_path),
        # Verification of our own would take minutes, and tells of its progress all the time.
        on_progress=lambda phase, _share: phase == "code points" and verdict_on_disk(subject, tmp_path),
    )
    assert choice.wait(encoder, 120)
    assert encoder.status.state is EngineState.VERIFIED
    assert VerdictStore(tmp_path).load(choice._candidate.key).figures == {"phases": []}, "our own was saved"
    choice.stop()


def test_a_server_on_the_reference_takes_up_a_later_verdict(subject, tmp_path, monkeypatch):
    monkeypatch.setattr(engine_choice, "_LOOK_EVERY_S", 0.05)
    verdict_on_disk(subject, tmp_path, kind=VerdictKind.UNSUPPORTED, reason="another machine's verdict")
    encoder, choice = chosen(subject, VerdictStore(tmp_path))
    assert encoder.status.state is EngineState.UNSUPPORTED
    verdict_on_disk(subject, tmp_path)
    assert becomes(encoder, EngineState.VERIFIED)
    choice.stop()


def becomes(encoder, state, within_s=30.0):
    """Whether an encoder gets to a state."""
    deadline_s = time.monotonic() + within_s
    while encoder.status.state is not state and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return encoder.status.state is state


def test_a_worker_that_takes_a_dead_ones_place_heeds_a_quarantine_at_once(subject, tmp_path):
    verdict_on_disk(subject, tmp_path)
    choice = EngineChoice(
        VerdictStore(tmp_path),
        enabled=True,
        shadow_every=0,
        loader=loader("wrong_on_a_snowman"),
        extent=QUICK,
    )
    choice.prepare(subject.artifact, subject.control, ())
    choice.judge(subject.artifact, subject.reference)
    encoder = Encoder(subject.reference)
    choice.start(encoder)
    assert encoder.status.state is EngineState.VERIFIED
    # Long after the parent has loaded the engine, another worker finds it wrong; then a new worker begins.
    verdict_on_disk(subject, tmp_path, kind=VerdictKind.QUARANTINED, reason="it differed")
    choice.follow(encoder)
    assert encoder.status.state is EngineState.QUARANTINED


def test_workers_without_a_state_folder_verify_once(subject, tmp_path):
    (tmp_path / "state").write_text("not a folder")
    phases = []
    encoders = [
        chosen(
            subject,
            VerdictStore(tmp_path / "state", beside=tmp_path / "beside"),
            on_progress=lambda phase, _share: phases.append(phase),
        )
        for _ in range(2)
    ]
    for encoder, choice in encoders:
        assert choice.wait(encoder, 120)
        assert encoder.status.state is EngineState.VERIFIED
        choice.stop()
    assert phases.count("loading the engine") == 1
