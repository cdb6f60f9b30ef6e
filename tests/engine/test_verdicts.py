"""Verdicts on disk: found again for the very same key, and nothing else is believed."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tokend_server.engine.verdicts import (
    Verdict,
    VerdictKey,
    VerdictKind,
    VerdictStore,
    default_state_folder,
    processor,
)

KEY = VerdictKey(
    fingerprint="ab" * 32,
    reference_version="0.23.3",
    engine="module:load",
    engine_version="0.3.5",
    scheme="1",
    control_tokens=VerdictKey.digest_of(["<|end|>"]),
    processor="x86_64 several-cores avx2",
)
VERDICT = Verdict(
    key=KEY,
    kind=VerdictKind.VERIFIED,
    reason="",
    excluded=frozenset({0x180E}),
    decided_at="2026-11-29T12:00:00+00:00",
    figures={"phases": []},
)


def test_a_verdict_is_found_by_another_process(tmp_path):
    assert VerdictStore(tmp_path / "state" / "tokend").save(VERDICT)
    assert VerdictStore(tmp_path / "state" / "tokend").load(KEY) == VERDICT


def test_nothing_is_found_where_nothing_was_kept(tmp_path):
    warnings = []
    assert VerdictStore(tmp_path / "none", warn=warnings.append).load(KEY) is None
    assert not warnings


@pytest.mark.parametrize("field", list(asdict(KEY)))
def test_anything_else_in_the_key_asks_for_a_verdict_of_its_own(tmp_path, field):
    store = VerdictStore(tmp_path)
    store.save(VERDICT)
    assert VerdictStore(tmp_path).load(replace(KEY, **{field: "cd" * 32})) is None


def test_a_verdict_under_another_name_is_not_believed(tmp_path):
    VerdictStore(tmp_path).save(VERDICT)
    other = replace(KEY, reference_version="0.24.0")
    (tmp_path / KEY.file_name).rename(tmp_path / other.file_name)
    warnings = []
    assert VerdictStore(tmp_path, warn=warnings.append).load(other) is None
    assert "a verdict on something else" in warnings[0]


def changed(**fields):
    return json.dumps(json.loads(written()) | fields)


def written():
    return json.dumps(
        {
            "format": 1,
            "key": asdict(KEY),
            "kind": "verified",
            "reason": "",
            "excluded": [0x180E],
            "decided_at": "",
            "figures": {},
        }
    )


@pytest.mark.parametrize(
    "content",
    [
        "",
        written()[:-10],
        "[]",
        "null",
        "\x00" * 100,
        changed(format=2),
        changed(kind="splendid"),
        changed(excluded=["a"]),
        changed(excluded=[-1]),
        changed(excluded=[True]),
        changed(excluded=7),
        changed(key={"fingerprint": "ab"}),
        changed(figures=3),
        "[" * 100_000,
    ],
)
def test_a_broken_file_is_passed_over_with_a_word(tmp_path, content):
    (tmp_path / KEY.file_name).write_text(written())
    assert VerdictStore(tmp_path).load(KEY) is not None
    (tmp_path / KEY.file_name).write_text(content)
    warnings = []
    assert VerdictStore(tmp_path, warn=warnings.append).load(KEY) is None
    assert len(warnings) == 1
    assert KEY.file_name in warnings[0]


def test_a_folder_that_cannot_be_written_leaves_the_verdict_in_memory(tmp_path):
    (tmp_path / "file").write_text("")
    warnings = []
    store = VerdictStore(tmp_path / "file" / "state", warn=warnings.append)
    assert not store.save(VERDICT)
    assert store.load(KEY) == VERDICT
    assert "memory keeps it" in warnings[0]


def test_without_a_folder_memory_keeps_it():
    store = VerdictStore(None)
    assert store.path_of(KEY) is None
    assert not store.save(VERDICT)
    assert store.load(KEY) == VERDICT


def test_a_new_verdict_takes_the_place_of_the_old_one_and_leaves_no_other_file(tmp_path):
    store = VerdictStore(tmp_path)
    store.save(VERDICT)
    quarantined = replace(VERDICT, kind=VerdictKind.QUARANTINED, reason="it differed")
    store.save(quarantined)
    assert VerdictStore(tmp_path).load(KEY) == quarantined
    assert [path.name for path in tmp_path.iterdir()] == [KEY.file_name]


def test_the_order_of_control_tokens_does_not_matter():
    assert (
        VerdictKey.digest_of(["a", "b"]) == VerdictKey.digest_of(("b", "a")) != VerdictKey.digest_of(["ab"])
    )


def test_state_is_kept_where_the_user_keeps_it():
    assert default_state_folder({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == Path("/s/tokend")
    assert default_state_folder({"XDG_STATE_HOME": "relative", "HOME": "/h"}) == Path(
        "/h/.local/state/tokend"
    )


def test_the_processor_is_described_the_same_each_time():
    assert processor() == processor() != ""


def test_what_the_folder_does_not_take_is_kept_beside_it_for_other_processes(tmp_path):
    (tmp_path / "state").write_text("not a folder")
    warnings = []
    folders = {"folder": tmp_path / "state", "beside": tmp_path / "beside"}
    assert VerdictStore(**folders, warn=warnings.append).save(VERDICT)
    assert "cannot be written" in warnings[0]
    assert VerdictStore(**folders).load(KEY) == VERDICT


def test_a_quarantine_beside_the_folder_counts_for_more_than_a_verdict_in_it(tmp_path):
    VerdictStore(tmp_path / "state").save(VERDICT)
    quarantine = replace(VERDICT, kind=VerdictKind.QUARANTINED, reason="it differed")
    VerdictStore(tmp_path / "beside").save(quarantine)
    assert VerdictStore(tmp_path / "state", beside=tmp_path / "beside").load(KEY) == quarantine
