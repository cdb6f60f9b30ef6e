"""The second guard of the fast engine: it is compared with the reference before it serves a file.

Every code point in several contexts, every string of the vocabulary, tens of thousands of fuzz strings, and
megabytes of text in many scripts. The code points that differ are excluded; any other difference, and the file stays
on the reference.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tokend_server.engine.artifact import Artifact
from tokend_server.engine.fast import FastEngine
from tokend_server.engine.reference import ReferenceEncoder
from tokend_server.engine.special_tokens import SpecialTokenPolicy
from tokend_server.engine.verification import code_points as cp
from tokend_server.engine.verification.comparison import EVERY_MODE, Comparison, Mode, Tally, batches
from tokend_server.engine.verification.fuzz import aligned, fuzz_strings, runs
from tokend_server.engine.verification.texts import documents, shared_starts
from tokend_server.engine.vocabulary import Vocabulary

__all__ = ["PHASES", "SCHEME", "Outcome", "Progress", "run_verification"]

SCHEME = 1
"""Raised whenever verification compares more or other things, so that old verdicts no longer count."""

N_FUZZ_STRINGS = 24_000
_SEED = 20261129
_MOST_EXCLUDED = 20_000
_MOST_SHOWN = 5

_PARSE = Mode(policy=SpecialTokenPolicy.PARSE, add_special_tokens=False)
_PARSE_ADDED = Mode(policy=SpecialTokenPolicy.PARSE, add_special_tokens=True)
_TEXT = Mode(policy=SpecialTokenPolicy.TEXT, add_special_tokens=False)
_TEXT_ADDED = Mode(policy=SpecialTokenPolicy.TEXT, add_special_tokens=True)

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
    artifact: Artifact, reference: ReferenceEncoder, engine: FastEngine, progress: Progress
) -> Outcome:
    """Compares an engine with the reference; a minute for 200,000 entries. A panic of the engine is let through.

    Args:
        artifact: The file, with its `spec`.
        reference: The reference on it.
        engine: The engine on it.
        progress: Told how far it is, several times a second.

    Returns:
        The verdict and the figures behind it.
    """
    verification = _Verification(artifact, reference, engine, progress)
    reason = ""
    try:
        for name, phase in PHASES.items():
            progress(name, 0.0)
            phase(verification, verification.begin(name))
            verification.judge()
    except _Failed as failure:
        reason = str(failure)
    return Outcome(
        excluded=frozenset(verification.excluded), reason=reason, tallies=verification.tallies
    )


class _Verification:
    """The state of one run: what is excluded so far, and what was compared."""

    def __init__(
        self, artifact: Artifact, reference: ReferenceEncoder, engine: FastEngine, progress: Progress
    ) -> None:
        self.comparison = Comparison(engine, reference)
        self.artifact = artifact
        self.excluded: set[int] = set()
        self.tallies: dict[str, Tally] = {}
        self._progress = progress
        self._phase = ""
        vocabulary = Vocabulary(artifact.tokenizer, artifact.spec)
        # What each token spells as a text, and the string by which the vocabulary names it.
        self.strings = [string for string in vocabulary.strings if string is not None]
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

    def holds_excluded(self, text: str) -> bool:
        return not self.excluded.isdisjoint(map(ord, text))

    def compare(self, texts: list[str], modes: Iterable[Mode], tally: Tally) -> None:
        """Compares texts in several modes; a difference that no excluded code point explains is kept."""
        for mode in modes:
            served = [text for text in texts if self.comparison.is_served(text, mode)]
            if not served:
                continue
            expected = self.comparison.expected(served, mode)
            for place in self.comparison.differing(served, mode, expected, tally):
                self._differs(served[place], mode, tally)
            # Again and one by one, for what an engine remembers, and for what it does with a batch of one.
            for text in served[:: max(1, len(served) // 8)]:
                if self.comparison.difference(text, mode) is not None:
                    self._differs(text, mode, tally)

    def _differs(self, text: str, mode: Mode, tally: Tally) -> None:
        if self.excluded and self.holds_excluded(text):
            tally.n_explained += 1
        elif len(tally.differences) < _MOST_SHOWN:
            # Where it does not show again, the text alone is kept: what an engine remembers may be the cause.
            found = self.comparison.difference(text, mode)
            tally.differences.append(found or self.comparison.unrepeated(text, mode))

    def compare_code_points(
        self, probe: Callable[[int], str], group: list[int], tally: Tally
    ) -> None:
        """Compares a group of code points in one text; those that differ by themselves are excluded."""
        text = "\n".join(map(probe, group))
        if not self.comparison.is_served(text, _TEXT):
            self._exclude(probe, group, (_PARSE,), tally)
            return
        expected = self.comparison.expected([text], _TEXT)
        # No control token is in the text, so the reference gives the same for PARSE.
        modes = [
            mode for mode in (_TEXT, _PARSE) if self.comparison.differing([text], mode, expected, tally)
        ]
        if not modes:
            return
        self._exclude(probe, group, modes, tally)
        kept = [code_point for code_point in group if code_point not in self.excluded]
        self.compare(["\n".join(map(probe, kept))], modes, tally)

    def compare_alone(self, group: list[int], tally: Tally) -> None:
        """Compares each code point as a whole text, with what the post-processor adds."""
        texts = [cp.alone(code_point) for code_point in group]
        expected = self.comparison.expected(texts, _PARSE_ADDED)
        for place in self.comparison.differing(texts, _PARSE_ADDED, expected, tally):
            self.excluded.add(group[place])
        if all(self.comparison.is_served(text, _TEXT_ADDED) for text in texts):
            for place in self.comparison.differing(texts, _TEXT_ADDED, expected, tally):
                self.excluded.add(group[place])

    def _exclude(
        self, probe: Callable[[int], str], group: list[int], modes: Iterable[Mode], tally: Tally
    ) -> None:
        texts = list(map(probe, group))
        for mode in modes:
            places = [place for place, text in enumerate(texts) if self.comparison.is_served(text, mode)]
            served = [texts[place] for place in places]
            expected = self.comparison.expected(served, mode)
            for place in self.comparison.differing(served, mode, expected, tally):
                self.excluded.add(group[places[place]])


def _words(vocabulary: Vocabulary) -> Iterator[str]:
    for token_id in range(vocabulary.max_id + 1):
        try:
            word = vocabulary.token_bytes(token_id).decode("utf-8")
        except UnicodeDecodeError:
            continue
        if word and token_id not in vocabulary.added:
            yield word


def _code_points(run: _Verification, tally: Tally) -> None:
    for n, group in enumerate(cp.groups()):
        run.compare_code_points(cp.plain_probe, group, tally)
        run.compare_alone(group, tally)
        if n % 64 == 0:
            run.told(group[0] / 0x110000)
            run.judge()


def _contexts(run: _Verification, tally: Tally) -> None:
    n_groups = sum(map(len, cp.RICH_CODE_POINTS)) // 128
    for n, group in enumerate(cp.groups(cp.RICH_CODE_POINTS)):
        run.compare_code_points(cp.rich_probe, group, tally)
        if n % 32 == 0:
            run.told(n / n_groups)
            run.judge()


def _vocabulary(run: _Verification, tally: Tally) -> None:
    strings = list(dict.fromkeys([*run.words, *run.strings]))
    done = 0
    for batch in batches(strings):
        run.compare(batch, (_TEXT, _PARSE_ADDED), tally)
        done += len(batch)
        run.told(done / len(strings))


def _added_tokens(run: _Verification, tally: Tally) -> None:
    """White space of every kind beside tokens that take it along, and added tokens beside each other."""
    tokens = run.artifact.added_tokens
    texts = [f"a{token.content}b {token.content} \n{token.content}{token.content}'s" for token in tokens]
    takers = [token.content for token in tokens if token.lstrip or token.rstrip][:16]
    texts += [f"a{space}{content}{space}b" for content in takers for space in cp.whitespace()]
    contents = [token.content for token in tokens]
    texts += [left + right for left, right in zip(contents, contents[1:], strict=False)]
    for batch in batches(texts):
        run.compare(batch, (_PARSE, _PARSE_ADDED, _TEXT), tally)


def _fuzz(run: _Verification, tally: Tally) -> None:
    literals = [token.content for token in run.artifact.added_tokens]
    done = 0
    for batch in batches(
        fuzz_strings(N_FUZZ_STRINGS, literals=literals, words=run.words, seed=_SEED)
    ):
        run.compare(batch, EVERY_MODE, tally)
        done += len(batch)
        run.told(done / N_FUZZ_STRINGS)
    for batch in batches([*runs(), *aligned()]):
        run.compare(batch, (_TEXT, _PARSE_ADDED), tally)
        run.told(1.0)


def _texts(run: _Verification, tally: Tally) -> None:
    texts = [*documents(run.words, seed=_SEED), *shared_starts(run.words, seed=_SEED)]
    n_characters, done = sum(map(len, texts)), 0
    for batch in batches(texts):
        run.compare(batch, EVERY_MODE, tally)
        done += sum(map(len, batch))
        run.told(done / n_characters)


PHASES: dict[str, Callable[[_Verification, Tally], None]] = {
    "code points": _code_points,
    "code points in more contexts": _contexts,
    "added tokens": _added_tokens,
    "strings of the vocabulary": _vocabulary,
    "fuzz strings": _fuzz,
    "text in many scripts": _texts,
}
"""What is compared, in order: what excludes code points comes first."""
