"""`make fidelity-table`: compare everything, and write the table of docs/fidelity.md.

    python -m tests.equivalence.report [--print] [--only NAME ...] [--jobs N]

The whole zoo has to be in the cache (`make zoo-full` fetches it). With `--print`, or for some tokenizers only, the
table is printed and the page is left alone. The exit code is 1 if anything differed; the differences are printed.
"""

import argparse
import datetime as dt
import os
import platform
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

from tests.equivalence.comparison import SEED, SMALL_WHOLE, WHOLE, Outcome, compare
from tests.equivalence.subjects import SMALL, TRAINED, ZOO, from_zoo
from tests.equivalence.tally import Tally
from tests.equivalence.tiktoken_engine import NAMES, compare_with_tiktoken

PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"
SMALL_TOGETHER, TIKTOKEN = "small", "tiktoken-"
"""What can be asked for beside the names of tokenizers."""
START, END = "<!-- zoo table -->", "<!-- end of zoo table -->"
HEAD = (
    *("tokenizer", "model", "strings", "id lists", "ids compared", "differences"),
    *("streaming", "exact round trip"),
)


def row_of(outcome: Outcome) -> list[str]:
    """One tokenizer's row."""
    tally, verdict = outcome.tally, outcome.info.round_trip
    changed = f"{outcome.n_changed:,} of {outcome.n_texts:,} strings came back changed"
    return [
        *(outcome.subject.name, outcome.subject.model),
        *_counts(tally),
        outcome.info.streaming.mode,
        "yes" if verdict.exact else f"no: {verdict.reason} ({changed})".replace("|", "\\|"),
    ]


def small_row(outcomes: Sequence[Outcome]) -> list[str]:
    """The small files together."""
    total = Tally().add(outcome.tally for outcome in outcomes)
    modes = sorted({outcome.info.streaming.mode for outcome in outcomes})
    n_exact = sum(outcome.info.round_trip.exact for outcome in outcomes)
    name = f"{len(outcomes)} small files"
    return [
        name,
        "odd parts, in the tests",
        *_counts(total),
        ", ".join(modes),
        f"{n_exact} of {len(outcomes)}",
    ]


def _counts(tally: Tally) -> list[str]:
    counts = (tally.n_strings, tally.n_sequences, tally.n_ids, tally.n_differences)
    return [f"{count:,}" for count in counts]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; numbers stand on the right."""
    rows = list(rows)
    right = [all(cell.replace(",", "").isdigit() for cell in column) for column in zip(*rows, strict=True)]
    rule = ["---:" if numbers else "---" for numbers in right]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def section(rows: Iterable[Sequence[str]], tiktoken_rows: Iterable[Sequence[str]]) -> str:
    """What stands between the markers."""
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    parts = [f"{name} {version(name)}" for name in ("tokend", "tokenizers", "tiktoken", "grpcio")]
    made = (
        f"Made by `make fidelity-table` on {today}: {', '.join(parts)}, CPython {platform.python_version()}, "
        f"engine {os.environ.get('TOKEND_ENGINE', 'reference')}"
    )
    return "\n\n".join(
        [
            START,
            f"{made}; seed {SEED}.",
            table(HEAD, rows),
            (
                "A *string* is counted once, however often it was encoded: PARSE and TEXT, with and without added "
                "tokens, alone, cut on either side, in pairs, counted, streamed. *Ids compared* counts each id in "
                "each of these ways, and those that were decoded. Each *id list* was decoded with special tokens skipped "
                "and kept, and streamed in random pieces. *Streaming* is `streaming.mode` of GetTokenizer. "
                "Strings are fuzz, 55 languages, source code and emoji, and runs of 20,000 equal characters."
            ),
            "The same service against tiktoken's own engine, PARSE and TEXT:",
            table(("tokenizer", "strings", "ids compared", "differences"), tiktoken_rows),
            END,
        ]
    )


def write(text: str, page: Path = PAGE) -> None:
    """Put the section in the page, in place of the one that is there."""
    before = page.read_text(encoding="utf-8")
    if START in before:
        head, rest = before.split(START, 1)
        tail = rest.split(END, 1)[1]
    else:
        head, tail = before.rstrip() + "\n\n## What was compared\n\n", ""
    page.write_text((head + text + tail).rstrip() + "\n", encoding="utf-8")


def compared(name: str) -> tuple[list[str], Tally]:
    """The row and the tally of one tokenizer, of the small files together, or of one tokenizer in tiktoken."""
    with tempfile.TemporaryDirectory() as folder:
        if name == SMALL_TOGETHER:
            outcomes = [compare(subject, SMALL_WHOLE, Path(folder)) for subject in SMALL]
            return small_row(outcomes), Tally().add(outcome.tally for outcome in outcomes)
        if name.startswith(TIKTOKEN):
            tally = compare_with_tiktoken(from_zoo(name.removeprefix(TIKTOKEN)), WHOLE, Path(folder))
            counts = (tally.n_strings, tally.n_ids, tally.n_differences)
            return [name.removeprefix(TIKTOKEN), *(f"{count:,}" for count in counts)], tally
        (subject,) = (subject for subject in (*ZOO, *TRAINED) if subject.name == name)
        outcome = compare(subject, WHOLE, Path(folder))
        return row_of(outcome), outcome.tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.equivalence.report")
    parser.add_argument("--print", action="store_true", help="leave docs/fidelity.md alone")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="print the rows of these")
    parser.add_argument("--jobs", type=int, default=1, help="tokenizers at a time; each keeps two cores busy")
    options = parser.parse_args()
    names = [
        *(subject.name for subject in (*ZOO, *TRAINED)),
        SMALL_TOGETHER,
        *(TIKTOKEN + name for name in NAMES),
    ]
    chosen = [name for name in names if not options.only or name in options.only]
    rows, tiktoken_rows, total = [], [], Tally()
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for name, (row, tally) in zip(chosen, pool.map(compared, chosen), strict=True):
            (tiktoken_rows if name.startswith(TIKTOKEN) else rows).append(row)
            total.add([tally])
            print(" | ".join(row), *tally.shown, sep="\n", flush=True)
    text = section(rows, tiktoken_rows)
    if options.print or options.only:
        print(text)
    else:
        write(text)
    return 1 if total.n_differences else 0


if __name__ == "__main__":
    sys.exit(main())
