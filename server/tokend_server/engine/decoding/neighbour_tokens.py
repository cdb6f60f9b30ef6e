"""Tokens whose text hangs on a neighbour: a word-end suffix (BPEDecoder), and CTC.

A suffix becomes a space, but nothing in the last token. CTC makes one of equal neighbours.
"""

from collections.abc import Sequence

from tokend_server.engine.decoders import DecoderPlan
from tokend_server.engine.decoding.interface import OpenSequence, TextDecoder
from tokend_server.engine.decoding.opening import Opening
from tokend_server.engine.decoding.tables import SkipPair, common_length, skip_tables

__all__ = ["CtcDecoder", "CtcSequence", "SuffixDecoder", "SuffixSequence"]

SuffixForm = tuple[str, str, str]
"""What a token gives at once, what more if another follows, what more if none does."""
CtcForm = tuple[int, str]
"""A number that equal strings share (negative: equal to none), and the text."""


class SuffixDecoder(TextDecoder):
    """Decoder of a file whose last token differs from earlier ones.

    Args:
        plan: How the file's decoder is served.
        followed: Text of each id with another one behind it, replacement id included.
        last: Text of each id when it is the last that counts.
        dropped: Ids that are dropped.
    """

    __slots__ = ("_forms",)

    def __init__(
        self,
        plan: DecoderPlan,
        *,
        followed: Sequence[str],
        last: Sequence[str],
        dropped: SkipPair[frozenset[int]],
    ) -> None:
        super().__init__(plan, replacement_id=len(last) - 1)
        forms: list[SuffixForm | None] = [_suffix_form(*pair) for pair in zip(followed, last, strict=True)]
        self._forms = skip_tables(forms, dropped, None)

    def _open(self, *, skip_special_tokens: bool, hold_byte_runs: bool) -> OpenSequence:
        del hold_byte_runs  # there are none
        return SuffixSequence(
            self._forms.of(skip_special_tokens=skip_special_tokens), Opening(edits=self._fresh_edits())
        )


def _suffix_form(followed: str, last: str) -> SuffixForm:
    n_common = common_length(followed, last)
    return followed[:n_common], followed[n_common:], last[n_common:]


class SuffixSequence(OpenSequence):
    """A stream that holds the newest token from its first suffix on.

    Args:
        forms: What each id gives; None if it is dropped.
        opening: The edits of the text.
    """

    __slots__ = ("_forms", "_if_followed", "_if_last", "_opening")

    def __init__(self, forms: list[SuffixForm | None], opening: Opening[str]) -> None:
        self._forms = forms
        self._opening = opening
        self._if_followed = ""
        self._if_last = ""

    def push(self, ids: Sequence[int]) -> str:
        """The text of these ids, but for the end of the last one."""
        parts: list[str] = []
        for token_id in ids:
            form = self._forms[token_id]
            if form is not None:
                parts.append(self._if_followed)
                text, self._if_followed, self._if_last = form
                parts.append(text)
        return self._opening.edit("".join(parts))

    def finish(self) -> str:
        """The end of the last token."""
        text = self._if_last
        self._if_followed = self._if_last = ""
        return self._opening.edit(text)

    @property
    def pending_bytes(self) -> int:
        """The longer of the two endings that the newest token may get."""
        return max(len(self._if_followed.encode()), len(self._if_last.encode()))

    def prime(self, prompt_ids: Sequence[int]) -> None:
        """Take a prompt as context: the space that its last token gets from a continuation is text of that."""
        self.push(prompt_ids)
        if self._if_last:  # the prompt showed another ending already: it cannot be taken back
            self._opening.edit(self._if_last)
            self._if_followed = self._if_last = ""


class CtcDecoder(TextDecoder):
    """Decoder of a file with CTC.

    Args:
        plan: How the file's decoder is served.
        strings: The string by which neighbours are compared, by id, replacement id included.
        texts: Text of each id.
        dropped: Ids that are dropped.
    """

    __slots__ = ("_forms",)

    def __init__(
        self,
        plan: DecoderPlan,
        *,
        strings: Sequence[str],
        texts: Sequence[str],
        dropped: SkipPair[frozenset[int]],
    ) -> None:
        super().__init__(plan, replacement_id=len(texts) - 1)
        numbers: dict[str, int] = {}
        forms: list[CtcForm | None] = [
            (numbers.setdefault(string, len(numbers)), text)
            for string, text in zip(strings, texts, strict=True)
        ]
        forms[-1] = (-1, texts[-1])  # two unknown ids side by side are two U+FFFD
        self._forms = skip_tables(forms, dropped, None)

    def _open(self, *, skip_special_tokens: bool, hold_byte_runs: bool) -> OpenSequence:
        del hold_byte_runs  # there are none
        return CtcSequence(
            self._forms.of(skip_special_tokens=skip_special_tokens), Opening(edits=self._fresh_edits())
        )


class CtcSequence(OpenSequence):
    """A stream in which a token equal to the one before it gives nothing.

    Args:
        forms: What each id gives; None if it is dropped.
        opening: The edits of the text.
    """

    __slots__ = ("_forms", "_newest", "_opening")

    def __init__(self, forms: list[CtcForm | None], opening: Opening[str]) -> None:
        self._forms = forms
        self._opening = opening
        self._newest = -1

    def push(self, ids: Sequence[int]) -> str:
        """The text of these ids, without repeats."""
        parts: list[str] = []
        for token_id in ids:
            form = self._forms[token_id]
            if form is not None:
                number, text = form
                if number != self._newest or number < 0:
                    parts.append(text)
                    self._newest = number
        return self._opening.edit("".join(parts))

    def finish(self) -> str:
        """Nothing: nothing was held."""
        return ""

    @property
    def pending_bytes(self) -> int:
        """Always 0."""
        return 0

    def prime(self, prompt_ids: Sequence[int]) -> None:
        """Take a prompt as context: a first id equal to the prompt's last one gives nothing."""
        self.push(prompt_ids)
