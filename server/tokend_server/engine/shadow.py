"""The fourth guard of the fast engine: a sampled share of its answers is made again by the reference.

It works on a thread of its own, behind the reply. What it may cost is bounded three times: by the share of texts, by
the bytes a second that it takes, and by a short queue that drops what does not fit.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tokend_server.cores import let_others_first
from tokend_server.engine.encode_options import Encoded, EncodeOptions
from tokend_server.engine.packed import pack_ids

__all__ = ["ShadowCheck", "ShadowResult"]

_MOST_QUEUED = 64
_BYTES_A_SECOND = 128 * 1024
"""The reference makes some MB a second on a core, so this is a few per cent of one."""
_BURST_BYTES = 2 * 1024 * 1024
"""Also the largest text that is checked."""


class ShadowResult(StrEnum):
    """What became of one sampled answer."""

    SAME = "same"
    DIFFERENT = "different"
    """The reference gives other ids, or none at all."""
    DROPPED = "dropped"
    """Not checked: over the budget, or the queue was full."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sample:
    text: str
    packed_ids: bytes
    options: EncodeOptions


class ShadowCheck:
    """Samples texts and compares them behind the reply; safe to use from several threads.

    Nothing of a text is kept after its check, and nothing of it is told.
    """

    def __init__(
        self,
        encode: Callable[[list[str], None, EncodeOptions], list[Encoded]],
        *,
        every: int,
        on_result: Callable[[ShadowResult], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares the check; its thread starts with the first sample, so that a fork may come before.

        Args:
            encode: The reference.
            every: One text in so many is sampled, on average; 0: none.
            on_result: Told what became of each sample, from the thread of the check or of a request.
            clock: Seconds from any origin, never running back.
        """
        self._encode = encode
        self._every = every
        self._on_result = on_result
        self._clock = clock
        # Not a fixed stride: traffic has periods of its own.
        self._random = random.Random()  # noqa: S311 (chooses samples, keeps no secret)
        self._left = self._stride()
        self._budget_bytes, self._refilled_s = float(_BURST_BYTES), clock()
        self._queue: deque[_Sample] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = every <= 0
        self._busy = False

    def sampled(self, n_texts: int) -> list[int]:
        """Returns which of the next texts are samples; usually none, at the cost of a subtraction.

        Args:
            n_texts: How many texts the fast engine has just encoded.
        """
        # Two threads may race here: then a sample more or less is taken, and no harm is done.
        left = self._left - n_texts
        if left > 0 or self._closed:
            self._left = left
            return []
        places = []
        while left <= 0:
            places.append(left + n_texts - 1)
            left += self._stride()
        self._left = left
        return [place for place in places if 0 <= place < n_texts]

    def submit(self, text: str, packed_ids: bytes, options: EncodeOptions) -> None:
        """Hands over one answer to be checked; never waits.

        Args:
            text: The text.
            packed_ids: What the fast engine made of it, as little-endian uint32.
            options: What it was asked for with.
        """
        with self._wake:
            if self._closed:
                return
            taken = len(self._queue) < _MOST_QUEUED and self._take_budget(len(text))
            if taken:
                self._queue.append(_Sample(text=text, packed_ids=packed_ids, options=options))
                self._wake.notify_all()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="shadow-check", daemon=True)
                    self._thread.start()
        if not taken:
            self._on_result(ShadowResult.DROPPED)

    def settle(self, timeout_s: float) -> bool:
        """Waits until nothing is queued or in work; False where that takes longer."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._queue and not self._busy, timeout_s)

    def close(self) -> None:
        """Ends the thread after the check in work; what is queued is let go. A second call does nothing."""
        with self._wake:
            self._closed = True
            self._queue.clear()
            self._wake.notify_all()

    def _stride(self) -> int:
        return self._random.randint(1, max(1, 2 * self._every - 1))

    def _take_budget(self, n_characters: int) -> bool:
        """Whether there is budget for a text. Characters stand for bytes, which are not worth counting here."""
        now_s = self._clock()
        refilled = self._budget_bytes + (now_s - self._refilled_s) * _BYTES_A_SECOND
        self._budget_bytes, self._refilled_s = min(refilled, float(_BURST_BYTES)), now_s
        if n_characters > self._budget_bytes:
            return False
        self._budget_bytes -= n_characters
        return True

    def _run(self) -> None:
        let_others_first()
        while True:
            with self._wake:
                self._busy = False
                self._wake.notify_all()
                self._wake.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                sample = self._queue.popleft()
                self._busy = True
            self._on_result(self._check(sample))
            # Not kept until the next sample comes.
            del sample

    def _check(self, sample: _Sample) -> ShadowResult:
        try:
            expected = self._encode([sample.text], None, sample.options)[0].ids
        except MemoryError:
            return ShadowResult.DROPPED
        except BaseException:  # noqa: BLE001 (the reference refuses or panics where the fast engine answered)
            return ShadowResult.DIFFERENT
        return ShadowResult.SAME if pack_ids(expected) == sample.packed_ids else ShadowResult.DIFFERENT
