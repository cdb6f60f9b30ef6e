"""Results of the checks at load: made once, found again for the very same file and code, and never believed otherwise."""

import json

import pytest

from tests.tokenizers_for_tests import BF, BL, WP, write
from tokend_server.engine import kept_checks
from tokend_server.engine.frozen import FrozenTokenizer
from tokend_server.engine.kept_checks import KeptChecks
from tokend_server.engine.special_tokens import select_control_tokens
from tokend_server.engine.tokenizer_file import read_file


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def file(tmp_path):
    return read_file(write(tmp_path, BL()))


def kept(folder, file, *control):
    return KeptChecks(folder, file, select_control_tokens(file, control))


def never():
    raise AssertionError("checked once more")


def test_a_result_is_found_by_the_next_start(folder, file):
    first = kept(folder, file)
    assert first.result("decoder", lambda: "id 7 differs") == "id 7 differs"
    assert first.result("decoder", never) == "id 7 differs"
    first.keep()
    again = kept(folder, file)
    assert again.result("decoder", never) == "id 7 differs"
    # One that was not made yet.
    assert again.result("round trip", lambda: {"exact": True}) == {"exact": True}
    again.keep()
    assert kept(folder, file).result("round trip", never) == {"exact": True}


def test_an_empty_result_is_a_result(folder, file):
    first = kept(folder, file)
    first.result("decoder", str)
    first.keep()
    assert kept(folder, file).result("decoder", never) == ""


def test_another_file_other_control_tokens_another_library_and_other_code_are_checked_anew(
    folder, file, tmp_path, monkeypatch
):
    first = kept(folder, file)
    first.result("decoder", lambda: "kept")
    first.keep()
    other = read_file(write(tmp_path, BF(), "other.json"))
    assert kept(folder, other).result("decoder", lambda: "made") == "made"
    assert kept(folder, file, "<tool>").result("decoder", lambda: "made") == "made"
    for name, value in (("REFERENCE_VERSION", "0.0.1"), ("_code", lambda: "changed")):
        with monkeypatch.context() as patched:
            patched.setattr(kept_checks, name, value)
            assert kept(folder, file).result("decoder", lambda: "made") == "made"
    assert kept(folder, file).result("decoder", never) == "kept"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": {}}', '{"key": 1, "results": 2}', "\x00" * 100])
def test_a_file_that_is_not_ours_is_passed_over_and_replaced(folder, file, content):
    first = kept(folder, file)
    first.result("decoder", lambda: "kept")
    first.keep()
    [path] = folder.iterdir()
    path.write_text(content)
    again = kept(folder, file)
    assert again.result("decoder", lambda: "made") == "made"
    again.keep()
    assert json.loads(path.read_text())["results"] == {"decoder": "made"}


def test_a_result_under_the_name_of_another_file_is_not_believed(folder, file, tmp_path):
    for each, result in ((file, "one"), (read_file(write(tmp_path, BF(), "other.json")), "other")):
        checks = kept(folder, each)
        checks.result("decoder", lambda result=result: result)
        checks.keep()
    one, other = sorted(folder.iterdir())
    content = one.read_text()
    one.write_text(other.read_text())
    other.write_text(content)
    assert kept(folder, file).result("decoder", lambda: "made") == "made"


def test_where_nothing_can_be_written_each_start_checks(tmp_path, file):
    (tmp_path / "state").write_text("not a folder")
    for folder in (tmp_path / "state", None):
        checks = kept(folder, file)
        assert checks.result("decoder", lambda: "made") == "made"
        checks.keep()


@pytest.mark.parametrize("text", [BL(), BF(), WP()], ids=["BL", "BF", "WP"])
def test_a_tokenizer_is_the_same_by_kept_results(folder, tmp_path, text, monkeypatch):
    path = write(tmp_path, text)
    first = FrozenTokenizer.load(path, state_folder=folder)
    assert len([*folder.iterdir()]) == 1
    monkeypatch.setattr("tokend_server.engine.frozen.find_difference", never)
    monkeypatch.setattr("tokend_server.engine.frozen.judge_round_trip", never)
    again = FrozenTokenizer.load(path, state_folder=folder)
    assert (again.round_trip, again.decoder.mode, again.decoder.reason) == (
        first.round_trip,
        first.decoder.mode,
        first.decoder.reason,
    )
    with pytest.raises(TypeError):  # `never` takes no decoder: without a folder it is called
        FrozenTokenizer.load(path)


def test_a_failed_check_is_kept_too(folder, tmp_path, monkeypatch):
    path = write(tmp_path, BL())
    monkeypatch.setattr("tokend_server.engine.frozen.find_difference", lambda *_: "id 3 alone differs")
    assert FrozenTokenizer.load(path, state_folder=folder).decoder.mode == "held"
    monkeypatch.undo()
    assert FrozenTokenizer.load(path, state_folder=folder).decoder.mode == "held"
    assert FrozenTokenizer.load(path).decoder.mode == "bytes"
