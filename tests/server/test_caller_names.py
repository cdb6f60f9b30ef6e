"""The names that callers are counted by: one table for all processes, with a bound."""

import os

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.test_metric_rows import METHODS
from tokend_server.caller_names import ANONYMOUS, LONGEST_NAME, OTHER, CallerNames
from tokend_server.metric_rows import SharedRows
from tokend_server.metrics import Metrics
from tokend_server.service.usage import Usage


def by_caller(metrics: Metrics, name: str, method: str) -> dict[str, float]:
    return {
        sample.labels["caller"]: sample.value
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode())
        for sample in family.samples
        if sample.name == name and sample.labels["method"] == method
    }


def in_child(work) -> None:
    """Run something in a forked process; fails if it raises there."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_without_names_all_are_anonymous():
    names = CallerNames()
    assert names.n_places == 1
    assert (names.place(ANONYMOUS), names.place("somebody")) == (0, 0)
    assert names.name_at(0) == ANONYMOUS


def test_a_name_has_one_place_for_ever():
    names = CallerNames(3)
    places = [names.place(name) for name in ("a", "b" * LONGEST_NAME, "c", "a", "b" * LONGEST_NAME)]
    assert places == [1, 2, 3, 1, 2]
    assert [names.name_at(place) for place in range(names.n_places)] == [
        ANONYMOUS, "a", "b" * LONGEST_NAME, "c", None,
    ]  # fmt: skip


def test_names_above_the_bound_share_a_place():
    names = CallerNames(2)
    assert [names.place(name) for name in ("a", "b", "c", "d", "a")] == [1, 2, 3, 3, 1]
    assert names.name_at(3) == OTHER


def test_processes_agree_on_places_whoever_comes_first():
    names = CallerNames(4)
    names.place("before the fork".replace(" ", "-"))

    def first() -> None:
        assert [names.place(name) for name in ("x", "y")] == [2, 3]

    def second() -> None:
        assert [names.place(name) for name in ("y", "x", "z")] == [3, 2, 4]

    in_child(first)
    in_child(second)
    assert (names.place("z"), names.name_at(3)) == (4, "y")


def test_tokens_are_counted_by_caller_over_all_processes():
    names = CallerNames(4)
    rows = SharedRows(2, Metrics(METHODS, version="1", callers=names).n_cells)
    metrics = [Metrics(METHODS, version="1", row=rows.row(n), callers=names) for n in range(2)]
    names.place("unused")
    metrics[0].work("Encode").answered(
        Usage(n_tokens=5, n_texts=1, text_bytes=5, characters=5), caller="chat"
    )
    in_child(
        lambda: (
            metrics[1]
            .work("Encode")
            .answered(Usage(n_tokens=7, n_texts=1, text_bytes=7, characters=7), caller="jobs")
        )
    )
    metrics[1].work("Encode").answered(
        Usage(n_tokens=1, n_texts=1, text_bytes=1, characters=1), caller="chat"
    )
    metrics[1].work("StreamDecode").moved(
        Usage(n_tokens=3, n_texts=0, text_bytes=3, characters=3), caller="chat"
    )
    metrics[1].work("StreamDecode").sequence_ended(3, caller="chat")
    for each in metrics:
        tokens = by_caller(each, "tokend_tokens_total", "Encode")
        assert tokens == {ANONYMOUS: 0, "unused": 0, "chat": 6, "jobs": 7}
        assert by_caller(each, "tokend_request_tokens_count", "Encode")["chat"] == 2
        assert by_caller(each, "tokend_tokens_total", "StreamDecode")["chat"] == 3
        assert by_caller(each, "tokend_request_tokens_sum", "StreamDecode")["chat"] == 3
