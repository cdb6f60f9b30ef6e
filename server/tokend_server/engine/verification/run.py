"""The second guard of the fast engine: it is compared with the reference before it serves a file.

Every code point in several contexts, every string of the vocabulary, tens of thousands of fuzz strings, and
megabytes of text in many scripts. The code points that differ are excluded; any other difference, and the file stays
on the reference.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise

from tokend_server.engine.artifact import Artifact
from tokend_server.engine.fast import FastEngine
from tokend_server.engine.reference import ReferenceEncoder
from tokend_server.engine.special_tokens import SpecialTokenPolicy
from tokend_server.engine.verification import code_points as cp
from tokend_server.engine.verification.comparison import EVERY_MODE, Comparison, Mode, Tally, batches
from tokend_server.engine.verification.fuzz import aligned, fuzz_strings, runs
from tokend_server.engine.verification.texts import documents, shared_starts
from tokend_server.engine.vocabulary import Vocabulary

__all__ = ["FULL", "PHASES", "SCHEME", "Extent", "Outcome", "Progress", "run_verification"]

SCHEME = "1"
"""Raised whenever verification compares more or other things, so that old verdicts no longer count."""

_SEED = 20261129
_MOST_EXCLUDED = 20_000
_MOST_SHOWN = 5
_GROUPS_AT_ONCE = 32

_PARSE = Mode(policy=SpecialTokenPolicy.PARSE, add_special_tokens=False)
_PARSE_ADDED = Mode(policy=SpecialTokenPolicy.PARSE, add_special_tokens=True)
_TEXT = Mode(policy=SpecialTokenPolicy.TEXT, add_special_tokens=False)
_TEXT_ADDED = Mode(policy=SpecialTokenPolicy.TEXT, add_special_tokens=True)
# The reference gives the same for both where no control token is in the text; fuzz strings prove that too.
_ALIKE = (_TEXT, _PARSE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """How much is compared; anything less than `FULL` is for tests and for looking at an engine."""

    name: str
    n_code_points: int
    """Code points below this are compared."""
    n_fuzz_strings: int
    every_text: int
    """One in so many of the running texts and of the vocabulary's strings is compared."""


FULL = Extent(name="full", n_code_points=0x110000, n_fuzz_strings=20_400, every_text=1)
"""What a verdict asks for."""

Progress = Callable[[str, float], None]
"""Told the phase and the share of it that is done, from 0 to 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What verification found."""

    excluded: frozenset[int]
    """The code points that the engines cut differently."""
    reason: str
    """Why the fast engine may not serve; empty where it may."""
    tallies: dict[str, Tally] = field(repr=False)
    """What was compared, by phase, in order; phases after a failed one are missing."""


class _Failed(Exception):
    """The verdict is known: no further phase is of use."""


def run_verification(
    artifact: Artifact,
    reference: ReferenceEncoder,
    engine: FastEngine,
    progress: Progress,
    extent: Extent = FULL,
) -> Outcome:
    """Compares an engine with the reference; a minute for 200,000 entries. A panic of the engine is let through.

    Args:
        artifact: The file, with its `spec`.
        reference: The reference on it.
        engine: The engine on it.
        progress: Told how far it is, several times a second.
        extent: How much is compared.

    Returns:
        The verdict and the figures behind it.
    """
    verification = _Verification(artifact, reference, engine, progress, extent)
    reason = ""
    try:
        for name, phase in PHASES.items():
            progress(name, 0.0)
            phase(verification, verification.begin(name))
            verification.judge()
    except _Failed as failure:
        reason = str(failure)
    return Outcome(excluded=frozenset(verification.excluded), reason=reason, tallies=verification.tallies)


class _Verification:
    """The state of one run: what is excluded so far, and what was compared."""

    def __init__(
        self,
        artifact: Artifact,
        reference: ReferenceEncoder,
        engine: FastEngine,
        progress: Progress,
        extent: Extent,
    ) -> None:
        self.comparison = Comparison(engine, reference)
        self.artifact = artifact
        self.extent = extent
        self.excluded: set[int] = set()
        self.tallies: dict[str, Tally] = {}
        self._progress = progress
        self._phase = ""
        vocabulary = Vocabulary(artifact.tokenizer, artifact.spec)
        # What each token spells as a text, and the string by which the vocabulary names it.
        self.strings = [string for string in vocabulary.strings if string is not None][:: extent.every_text]
        self.words = list(_words(vocabulary))

    def begin(self, phase: str) -> Tally:
        self._phase = phase
        self.tallies[phase] = tally = Tally()
        return tally

    def told(self, share: float) -> None:
        self._progress(self._phase, min(share, 1.0))

    def judge(self) -> None:
        """Ends the run where the verdict is known."""
        tally = self.tallies[self._phase]
        if tally.differences:
            raise _Failed(f"{self._phase}: the engines differ, and no excluded code point explains it")
        if len(self.excluded) > _MOST_EXCLUDED:
            raise _Failed(f"{self._phase}: the engines differ on more than {_MOST_EXCLUDED} code points")
        if any(code_point < 0x80 for code_point in self.excluded):
            raise _Failed(f"{self._phase}: the engines differ on an ASCII character")

    def compare(self, texts: Sequence[str], modes: Sequence[Mode], tally: Tally) -> None:
        """Compares texts in several modes, the reference asked anew for each."""
        for mode in modes:
            self.compare_alike(
                [text for text in texts if self.comparison.is_served(text, mode)], [mode], tally
            )

    def compare_alike(self, texts: Sequence[str], modes: Sequence[Mode], tally: Tally) -> None:
        """Compares texts in modes in which the reference gives the same, so that it is asked once.

        A difference that no excluded code point explains is kept.
        """
        if not texts:
            return
        expected = self.comparison.expected(texts, modes[0])
        tally.add(texts, expected, len(modes))
        for mode in modes:
            places = self.comparison.differing(texts, mode, expected)
            # Again, in a batch of one: an engine may remember, and treat it in its own way.
            for place in range(0, len(texts), max(1, len(texts) // 8)):
                if self.comparison.found(texts[place], mode) != expected.ids[place]:
                    places.append(place)
            for place in places:
                self._differs(texts[place], mode, tally)

    def _differs(self, text: str, mode: Mode, tally: Tally) -> None:
        if self.excluded and not self.excluded.isdisjoint(map(ord, text)):
            tally.n_explained += 1
        elif len(tally.differences) < _MOST_SHOWN:
            tally.differences.append(self.comparison.difference(text, mode))

    def compare_code_points(
        self, probe: Callable[[int], str], groups: Sequence[Sequence[int]], tally: Tally
    ) -> None:
        """Compares groups of code points, each group in one text; those that differ by themselves are excluded."""
        texts = ["\n".join(map(probe, group)) for group in groups]
        served = [place for place, text in enumerate(texts) if self.comparison.is_served(text, _TEXT)]
        suspects = {place: list(_ALIKE) for place in range(len(groups)) if place not in served}
        free = [texts[place] for place in served]
        expected = self.comparison.expected(free, _TEXT)
        tally.add(free, expected, len(_ALIKE))
        for mode in _ALIKE:
            for place in self.comparison.differing(free, mode, expected):
                suspects.setdefault(served[place], []).append(mode)
        for place, modes in suspects.items():
            self._exclude(probe, groups[place], modes, tally)
            # The others have to agree beside each other too.
            kept = [code_point for code_point in groups[place] if code_point not in self.excluded]
            self.compare(["\n".join(map(probe, kept))], modes, tally)

    def compare_alone(self, group: Sequence[int], tally: Tally) -> None:
        """Compares each code point as a whole text, with what the post-processor adds."""
        self._exclude(chr, group, (_PARSE_ADDED, _TEXT_ADDED), tally)

    def _exclude(
        self, probe: Callable[[int], str], group: Sequence[int], modes: Sequence[Mode], tally: Tally
    ) -> None:
        """Excludes each code point of a group whose own probe differs."""
        texts = list(map(probe, group))
        free = [place for place, text in enumerate(texts) if self.comparison.is_served(text, _TEXT)]
        # Where a control token is in the text, only PARSE gives it to the fast engine.
        held = sorted(set(range(len(texts))).difference(free))
        parsing = [mode for mode in modes if not mode.keeps_control]
        for places, asked in ((free, modes), (held, parsing)):
            served = [texts[place] for place in places]
            if not served or not asked:
                continue
            expected = self.comparison.expected(served, asked[0])
            tally.add(served, expected, len(asked))
            for mode in asked:
                for place in self.comparison.differing(served, mode, expected):
                    self.excluded.add(group[places[place]])


def _batched(groups: Iterable[list[int]], n: int) -> Iterator[list[list[int]]]:
    """Yields groups by the batch of `n`, as itertools does from Python 3.12 on."""
    left = iter(groups)
    while batch := list(islice(left, n)):
        yield batch


def _words(vocabulary: Vocabulary) -> Iterator[str]:
    for token_id in range(vocabulary.max_id + 1):
        try:
            word = vocabulary.token_bytes(token_id).decode("utf-8")
        except UnicodeDecodeError:
            continue
        if word and token_id not in vocabulary.added:
            yield word


def _code_points(run: _Verification, tally: Tally) -> None:
    done = 0
    for probe, ranges, is_alone in (
        (cp.rich_probe, cp.RICH_CODE_POINTS, True),
        (cp.plain_probe, cp.COMMON_CODE_POINTS, True),
        (cp.plain_probe, cp.OTHER_CODE_POINTS, False),
    ):
        below = [range(each.start, min(each.stop, run.extent.n_code_points)) for each in ranges]
        for groups in _batched(cp.groups(below), _GROUPS_AT_ONCE):
            run.compare_code_points(probe, groups, tally)
            if is_alone:
                run.compare_alone([*chain.from_iterable(groups)], tally)
            done += sum(map(len, groups))
            run.told(done / run.extent.n_code_points)
            run.judge()


def _vocabulary(run: _Verification, tally: Tally) -> None:
    """What each token spells, and the strings by which the vocabulary names them, which are texts like others."""
    done, n_strings = 0, len(run.words) + len(run.strings)
    for strings, mode in ((run.words[:: run.extent.every_text], _TEXT), (run.strings, _PARSE_ADDED)):
        for batch in batches(strings):
            run.compare(batch, (mode,), tally)
            done += len(batch)
            run.told(done / n_strings)


def _added_tokens(run: _Verification, tally: Tally) -> None:
    """White space of every kind beside tokens that take it along, and added tokens beside each other."""
    tokens = run.artifact.added_tokens
    texts = [f"a{token.content}b {token.content} \n{token.content}{token.content}'s" for token in tokens]
    takers = [token.content for token in tokens if token.lstrip or token.rstrip][:16]
    texts += [f"a{space}{content}{space}b" for content in takers for space in cp.whitespace()]
    contents = [token.content for token in tokens]
    texts += [left + right for left, right in pairwise(contents)]
    for batch in batches(texts):
        run.compare(batch, (_PARSE, _PARSE_ADDED, _TEXT), tally)


def _fuzz(run: _Verification, tally: Tally) -> None:
    literals = [token.content for token in run.artifact.added_tokens]
    done, n_strings = 0, run.extent.n_fuzz_strings
    for batch in batches(fuzz_strings(n_strings, literals=literals, words=run.words, seed=_SEED)):
        run.compare(batch, EVERY_MODE, tally)
        done += len(batch)
        run.told(done / n_strings)
    for batch in batches([*runs(), *aligned()][:: run.extent.every_text]):
        run.compare(batch, (_TEXT, _PARSE_ADDED), tally)
        run.told(1.0)


def _texts(run: _Verification, tally: Tally) -> None:
    texts = [*documents(run.words, seed=_SEED), *shared_starts(run.words, seed=_SEED)]
    texts = texts[:: run.extent.every_text]
    n_characters, done = sum(map(len, texts)), 0
    for batch in batches(texts):
        free = [text for text in batch if run.comparison.is_served(text, _TEXT)]
        for add in (True, False):
            run.compare_alike(free, [mode for mode in EVERY_MODE if mode.add_special_tokens is add], tally)
        held = [text for text in batch if not run.comparison.is_served(text, _TEXT)]
        run.compare(held, (_PARSE, _PARSE_ADDED), tally)
        done += sum(map(len, batch))
        run.told(done / n_characters)


PHASES: dict[str, Callable[[_Verification, Tally], None]] = {
    "code points": _code_points,
    "added tokens": _added_tokens,
    "strings of the vocabulary": _vocabulary,
    "fuzz strings": _fuzz,
    "text in many scripts": _texts,
}
"""What is compared, in order: what excludes code points comes first."""
