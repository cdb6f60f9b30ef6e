"""Verification: what differs is found and excluded or refused, and an engine that dies takes nobody with it."""

import os
from dataclasses import replace

import pytest

from tests.engine import planted_engines
from tests.engine.fast_for_tests import QUICK, Subject
from tests.engine.planted_engines import SNOWMAN, loader
from tests.tokenizers_for_tests import BF, BL, WP, write
from tokend_server.engine.verdicts import VerdictKind, VerdictStore
from tokend_server.engine.verification import code_points as cp
from tokend_server.engine.verification import render_report, verify
from tokend_server.engine.verification.child import Task, VerificationChild
from tokend_server.engine.verification.fuzz import fuzz_strings
from tokend_server.engine.verification.run import FULL, PHASES, run_verification
from tokend_server.engine.verification.texts import documents, script_names
from tokend_server.errors import TokenizerFileError


@pytest.fixture(scope="module")
def subject(tokenizer_file):
    return Subject.of(tokenizer_file(BL()))


@pytest.fixture(autouse=True)
def children_find_the_planted_engines(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(planted_engines.__file__).split("/tests/", 1)[0]]))


def verified(subject, load, told=lambda _phase, _share: None):
    return run_verification(subject.artifact, subject.reference, subject.engine(load), told, QUICK)


def found_by_child(subject, name, **limits):
    task = Task(
        path=str(subject.artifact.path),
        fingerprint=subject.artifact.fingerprint,
        control_tokens=(),
        loader=loader(name),
        in_background=True,
        extent=QUICK,
    )
    return VerificationChild(task, **limits).run(lambda _phase, _share: None)


class TestWhatIsCompared:
    def test_every_code_point_but_the_surrogates_is_in_exactly_one_list(self):
        ranges = [*cp.RICH_CODE_POINTS, *cp.COMMON_CODE_POINTS, *cp.OTHER_CODE_POINTS]
        assert sorted(cp.code_points(ranges)) == [n for n in range(0x110000) if not 0xD800 <= n < 0xE000]

    @pytest.mark.parametrize("probe", [cp.plain_probe, cp.rich_probe])
    def test_a_probe_has_it_next_to_a_letter_a_space_a_digit_an_apostrophe_and_itself(self, probe):
        text = probe(ord(SNOWMAN))
        for neighbour in ("a", " ", "'", SNOWMAN):
            assert neighbour + SNOWMAN in text
        assert SNOWMAN + "1" in text

    def test_at_least_20000_fuzz_strings_and_several_megabytes_in_many_scripts(self):
        assert FULL.n_fuzz_strings >= 20_000
        assert FULL.n_code_points == 0x110000
        texts = [*documents(["the", " of"], seed=1)]
        assert sum(len(text.encode()) for text in texts) > 4_000_000
        assert len(script_names()) > 40

    def test_the_same_seed_gives_the_same_strings_with_whole_and_cut_literals(self):
        made = [*fuzz_strings(3000, literals=["<|end|>"], words=["xylophone"], seed=1)]
        assert made == [*fuzz_strings(3000, literals=["<|end|>"], words=["xylophone"], seed=1)]
        assert any("<|end|>" in text for text in made)
        assert any("<|e" in text and "<|end|>" not in text for text in made)
        assert any("xylophone" in text for text in made)
        assert not any(0xD800 <= ord(character) < 0xE000 for text in made for character in text)


class TestVerdict:
    def test_the_real_engine_may_serve_a_byte_level_file_and_every_phase_compares(self, subject):
        told = []
        outcome = verified(
            subject, Subject.engine.__defaults__[0], lambda phase, share: told.append((phase, share))
        )
        assert (outcome.reason, outcome.excluded) == ("", frozenset())
        assert list(outcome.tallies) == list(PHASES) == list(dict.fromkeys(phase for phase, _ in told))
        assert all(tally.n_texts and tally.n_ids for tally in outcome.tallies.values())
        assert all(0 <= share <= 1 for _, share in told)

    def test_one_wrong_code_point_is_excluded_and_explains_what_else_differs(self, subject):
        outcome = verified(subject, planted_engines.wrong_on_a_snowman)
        assert (outcome.reason, outcome.excluded) == ("", {ord(SNOWMAN)})
        assert outcome.tallies["fuzz strings"].n_explained > 0

    def test_a_wrong_ascii_character_means_the_reference(self, subject):
        outcome = verified(subject, planted_engines.wrong_on_a_letter)
        assert outcome.reason == "code points: the engines differ on an ASCII character"

    def test_a_difference_that_no_code_point_explains_means_the_reference_and_is_shown_cut_down(
        self, subject
    ):
        outcome = verified(subject, planted_engines.wrong_on_a_word)
        assert outcome.reason.endswith("the engines differ, and no excluded code point explains it")
        shown = [each for tally in outcome.tallies.values() for each in tally.differences]
        assert shown[0].text == " the"
        assert shown[0].expected != shown[0].found

    def test_a_byte_token_written_out_in_a_text_is_found(self, tokenizer_file):
        subject = Subject.of(tokenizer_file(BF()))
        outcome = verified(subject, Subject.engine.__defaults__[0])
        assert outcome.reason.startswith("strings of the vocabulary: ")

    def test_an_engine_that_raises_on_a_text_differs_on_it(self, subject):
        def load(file):
            return planted_engines.Planted(file, SNOWMAN, planted_engines._error)

        assert verified(subject, load).excluded == {ord(SNOWMAN)}

    def test_a_panic_is_let_through_for_the_child_to_report(self, subject):
        with pytest.raises(planted_engines.PanicException):
            verified(subject, planted_engines.panicking_on_a_word)


class TestChild:
    def test_finds_what_is_found_in_process(self, subject):
        finding = found_by_child(subject, "wrong_on_a_snowman")
        assert (finding.is_final, finding.reason, finding.excluded) == (True, "", {ord(SNOWMAN)})
        assert [phase["name"] for phase in finding.phases] == list(PHASES)

    def test_an_engine_that_hangs_at_load_is_ended(self, subject):
        finding = found_by_child(subject, "hanging_at_load", stall_timeout_s=8)
        assert (finding.is_final, finding.reason) == (False, "loading the engine: the fast engine hangs")

    def test_an_engine_that_aborts_takes_only_the_child_with_it(self, subject):
        finding = found_by_child(subject, "aborting_at_load")
        assert finding.is_final
        assert finding.reason == "loading the engine: the process for verification died of SIGABRT"

    def test_an_engine_that_aborts_while_it_encodes_is_told_with_the_phase(self, subject):
        finding = found_by_child(subject, "aborting_on_a_word")
        assert finding.is_final
        assert finding.reason.endswith("the process for verification died of SIGABRT")
        assert not finding.reason.startswith("loading")

    def test_an_engine_that_ends_its_process_is_told_with_the_code(self, subject):
        finding = found_by_child(subject, "exiting_at_load")
        assert finding.reason == "loading the engine: the process for verification ended with code 7"

    @pytest.mark.parametrize("name", ["panicking_at_load", "panicking_on_a_word"])
    def test_a_panic_is_a_verdict(self, subject, name):
        finding = found_by_child(subject, name)
        assert (finding.is_final, finding.reason) == (True, "the fast engine failed: PanicException")

    def test_a_loader_that_is_not_there_is_a_reason(self, subject):
        assert found_by_child(subject, "no_such_engine").reason == "the fast engine failed: AttributeError"

    def test_what_a_native_library_prints_is_passed_over(self, subject):
        finding = found_by_child(subject, "printing_at_load")
        assert (finding.is_final, finding.reason) == (True, "")

    def test_a_file_that_has_changed_gives_no_verdict(self, subject):
        other = replace(subject, artifact=replace(subject.artifact, fingerprint="0" * 64))
        finding = found_by_child(other, "wrong_on_a_snowman")
        assert (finding.is_final, finding.reason) == (False, "the file has changed since it was loaded")

    def test_a_child_that_is_stopped_gives_no_verdict(self, subject):
        task = Task(
            path=str(subject.artifact.path),
            fingerprint=subject.artifact.fingerprint,
            control_tokens=(),
            loader=loader("hanging_at_load"),
            in_background=True,
        )
        child = VerificationChild(task)
        finding = child.run(lambda _phase, _share: child.stop())
        assert (finding.is_final, finding.reason) == (False, "verification was stopped")


class TestVerify:
    def test_a_good_file_gets_a_report_and_its_verdict_is_kept(self, tmp_path):
        path = write(tmp_path, BL())
        store = VerdictStore(tmp_path / "state")
        report = verify(
            path, progress=lambda _p, _s: None, store=store, loader=loader("wrong_on_a_snowman"), extent=QUICK
        )
        assert (report.may_serve, report.reason, report.excluded) == (True, "", {ord(SNOWMAN)})
        assert report.kept_at is not None
        assert report.kept_at.exists()
        text = render_report(report)
        assert "excluded   U+2603\n" in text
        assert "verdict    VERIFIED" in text
        assert all(phase in text for phase in PHASES)

    def test_a_bad_engine_is_shown_with_a_text_and_both_answers(self, tmp_path):
        report = verify(
            write(tmp_path, BL()),
            progress=lambda _p, _s: None,
            store=VerdictStore(None),
            loader=loader("wrong_on_a_word"),
            extent=QUICK,
        )
        assert not report.may_serve
        text = render_report(report)
        assert "difference ' the' (" in text
        assert (
            "  reference 262 258\n  engine    262 259\n" in text
            or "  reference 258\n  engine    259\n" in text
        )
        assert "verdict    REFERENCE ONLY: " in text
        assert "kept       not on disk" in text

    def test_a_file_off_the_allow_list_is_told_at_once(self, tmp_path):
        report = verify(write(tmp_path, WP()), progress=lambda _p, _s: None, store=VerdictStore(None))
        assert (report.may_serve, report.reason, report.phases) == (False, "the model is WordPiece", ())
        assert "REFERENCE ONLY: the model is WordPiece" in render_report(report)

    def test_a_file_that_cannot_be_served_is_an_error(self, tmp_path):
        with pytest.raises(TokenizerFileError):
            verify(tmp_path / "none.json", progress=lambda _p, _s: None, store=VerdictStore(None))

    def test_a_quarantine_is_not_lifted_by_verifying_again(self, tmp_path):
        path = write(tmp_path, BL())
        store = VerdictStore(tmp_path)
        arguments = {"progress": lambda _p, _s: None, "store": store, "extent": QUICK}
        kept = verify(path, loader=loader("wrong_on_a_snowman"), **arguments).kept_at
        key = next(iter(store._memory))
        store.save(replace(store.load(key), kind=VerdictKind.QUARANTINED, reason="a sampled answer differed"))
        report = verify(path, loader=loader("wrong_on_a_snowman"), **arguments)
        assert not report.may_serve
        assert "a sampled answer differed" in report.reason
        assert report.kept_at == kept
