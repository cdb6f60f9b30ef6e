"""Files that change under a server: when they are taken over, and what is said when they cannot be."""

import logging
import os
from pathlib import Path

import pytest

from tokend_server.errors import CredentialsError
from tokend_server.file_metrics import FileMetrics
from tokend_server.metric_cells import CellTable
from tokend_server.watched_files import FileWatch, WatchedFiles


def whole(data) -> str:
    """What is right begins with `good` and ends with `.`; the parts must be the same."""
    if len(set(data)) != 1 or not data[0].startswith(b"good") or not data[0].endswith(b"."):
        raise CredentialsError("not good")
    return data[0].decode()


class Followed:
    """Files that are followed, what was told of them, and what was counted."""

    def __init__(self, *paths: Path) -> None:
        self.files = WatchedFiles("tls", paths, whole)
        self.used: list[str] = []
        table = CellTable()
        self._metrics = FileMetrics(table)
        self._table = table
        self.files.follow(self.used.append, self._metrics)

    def look(self, times: int = 2) -> None:
        for _ in range(times):
            self.files.look()

    def counted(self) -> dict[str, float]:
        """Used, refused and stale, as a scrape shows them for `tls`."""
        found = {}
        for family in self._table.collect():
            for sample in family.samples:
                if sample.labels.get("file") == "tls":
                    found[sample.labels.get("result", "stale")] = sample.value
        return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"good 1.")
    return path


def test_a_change_is_taken_over_once_it_was_there_for_two_looks(path):
    followed = Followed(path)
    followed.look(3)
    assert followed.used == ["good 1."]
    path.write_bytes(b"good 2.")
    followed.look(1)
    assert followed.used == ["good 1."]
    followed.look(3)
    assert followed.used == ["good 1.", "good 2."]
    assert followed.counted() == {"used": 1, "refused": 0, "stale": 0}


def test_the_same_size_and_time_hide_no_change(path):
    followed = Followed(path)
    times = path.stat()
    path.write_bytes(b"good 2.")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    followed.look()
    assert followed.used[-1] == "good 2."


def test_what_is_being_written_is_left_alone(path):
    followed = Followed(path)
    for written in (b"", b"go", b"good ", b"good 2."):
        path.write_bytes(written)
        followed.look(1)
    assert followed.counted()["refused"] == 0
    followed.look(1)
    assert followed.used == ["good 1.", "good 2."]


def test_a_link_that_moves_is_a_change(tmp_path):
    """As Kubernetes does it: the file is a link into a folder, whose name is a link that is replaced."""
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "file").write_bytes(f"good {version}.".encode())
    (tmp_path / "data").symlink_to(tmp_path / "1")
    (tmp_path / "file").symlink_to(tmp_path / "data" / "file")
    followed = Followed(tmp_path / "file")
    (tmp_path / "new").symlink_to(tmp_path / "2")
    (tmp_path / "new").replace(tmp_path / "data")
    followed.look()
    assert followed.used == ["good 1.", "good 2."]


def test_what_is_wrong_is_said_once_and_the_old_value_stays(path, caplog):
    followed = Followed(path)
    path.write_bytes(b"bad")
    with caplog.at_level(logging.ERROR):
        followed.look(5)
    assert (followed.used, followed.files.value) == (["good 1."], "good 1.")
    assert followed.counted() == {"used": 0, "refused": 1, "stale": 1}
    [record] = caplog.records
    assert record.tokend_fields == {"file": "tls", "problem": "not good"}
    path.write_bytes(b"good 2.")
    followed.look()
    assert followed.counted() == {"used": 1, "refused": 1, "stale": 0}


def test_what_is_put_back_is_no_change_and_ends_the_complaint(path, caplog):
    followed = Followed(path)
    path.write_bytes(b"bad")
    followed.look()
    path.write_bytes(b"good 1.")
    with caplog.at_level(logging.INFO):
        caplog.clear()
        followed.look(5)
    [record] = caplog.records
    assert record.getMessage() == "a file that could not be used is again what is in force"
    assert record.tokend_fields == {"file": "tls"}
    assert followed.used == ["good 1."]
    assert followed.counted() == {"used": 0, "refused": 1, "stale": 0}


@pytest.mark.parametrize("kind", ["gone", "folder", "pipe", "huge"])
def test_what_cannot_be_read_is_refused_and_blocks_nobody(path, kind):
    followed = Followed(path)
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "huge":
        path.write_bytes(b"good" + b" " * (1 << 20) + b".")
    followed.look(4)
    assert followed.files.value == "good 1."
    assert followed.counted() == {"used": 0, "refused": 1, "stale": 1}


def test_files_that_belong_together_are_taken_over_together(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_bytes(b"good 1.")
    followed = Followed(*paths)
    paths[0].write_bytes(b"good 2.")
    followed.look()
    assert followed.used == ["good 1."]
    paths[1].write_bytes(b"good 2.")
    followed.look()
    assert followed.used == ["good 1.", "good 2."]


def test_a_worker_that_begins_later_reads_anew_and_does_not_go_back(path):
    followed = Followed(path)
    path.write_bytes(b"good 2.")
    followed.files.refresh()
    assert followed.files.value == "good 2."
    path.write_bytes(b"bad")
    with pytest.raises(CredentialsError, match="not good"):
        followed.files.refresh()


def test_a_look_that_fails_ends_no_other_and_no_later_one():
    import threading

    seen, done = [], threading.Event()

    def fails() -> None:
        raise RuntimeError("no text of it is logged")

    def counts() -> None:
        seen.append(None)
        if len(seen) == 2:
            done.set()

    watch = FileWatch([fails, counts])
    assert done.wait(20)
    watch.end()
