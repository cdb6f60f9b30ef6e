"""`make fuzz`: hypothesis against the service for some minutes, with new random examples each time.

    python -m tests.equivalence.fuzz [--minutes 10] [--only NAME ...]

It goes round over the small files, the core of the zoo and the trained tokenizers, and ends with its figures;
the exit code is 1 if a law broke, and the smallest example that hypothesis found is printed.
"""

import argparse
import itertools
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

from tests.equivalence.served import Served, serving
from tests.equivalence.subjects import CORE, SMALL, TRAINED
from tests.equivalence.tally import Tally
from tests.equivalence.test_small_files import SEEDS, check_decoding, check_encoding, ids_of, texts_of
from tests.zoo import catalogue as zoo

LONG = settings(
    max_examples=40,
    deadline=None,
    database=None,
    derandomize=False,
    phases=[Phase.generate, Phase.target, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
"""One turn at one file; there are as many turns as the time allows."""


def one_turn(served: Served) -> Tally:
    """Both laws with new examples; a broken one raises."""
    total = Tally()

    @LONG
    @given(texts=texts_of(served), seed=SEEDS)
    def encoding(texts, seed):
        tally = Tally()
        check_encoding(served, texts, seed, tally)
        total.add([tally])

    @LONG
    @given(sequences=ids_of(served), seed=SEEDS)
    def decoding(sequences, seed):
        tally = Tally()
        check_decoding(served, sequences, seed, tally)
        total.add([tally])

    encoding()
    decoding()
    return total


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.equivalence.fuzz")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    chosen = parser.parse_args()
    core = [subject for subject in CORE if zoo.path(subject.name) is not None]
    subjects = [each for each in (*SMALL, *core, *TRAINED) if not chosen.only or each.name in chosen.only]
    start, n_turns, n_broken, total = time.monotonic(), 0, 0, Tally()
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        served = [stack.enter_context(serving(each.source(), Path(folder))) for each in subjects]
        fuzzing = time.monotonic()
        for subject, target in itertools.cycle(zip(subjects, served, strict=True)):
            if time.monotonic() - fuzzing > chosen.minutes * 60:
                break
            n_turns += 1
            try:
                total.add([one_turn(target)])
            except Exception:  # noqa: BLE001 (an AssertionError, or a failure of the call: either is a find)
                n_broken += 1
                print(f"--- {subject.name}\n{traceback.format_exc()}", flush=True)
    print(
        f"{len(subjects)} tokenizers, {n_turns} turns, {time.monotonic() - start:.0f} s: "
        f"{n_turns * 2 * LONG.max_examples} examples at most, {total.n_strings} texts, {total.n_sequences} id lists, "
        f"{total.n_ids} ids compared in {total.n_checks} checks; {n_broken} laws broken"
    )
    return 1 if n_broken else 0


if __name__ == "__main__":
    sys.exit(main())
