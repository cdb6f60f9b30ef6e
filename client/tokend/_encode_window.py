"""The state of an encode stream: which batches are on their way, and how it resumes. Pure.

Encoding has no side effects, so a batch that was not answered may be sent again: a stream that broke with
UNAVAILABLE goes on, on a new call, from its first unanswered batch.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tokend import _replies, errors, results
from tokend._batches import Batch
from tokend._requests import EncodeSettings
from tokend._status import error_of_answer
from tokend.v1 import tokenizer_service_pb2 as service_pb2

__all__ = ["EncodeWindow"]

# 0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 2 + 2 s: long enough for a server that restarts, short enough to be loud.
_MAX_ATTEMPTS = 8
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


@dataclass(slots=True, kw_only=True)
class EncodeWindow:
    """The batches that were sent and not answered yet, at most `in_flight` of them."""

    settings: EncodeSettings
    in_flight: int
    randomness: Callable[[], float] = random.random
    unanswered: deque[Batch] = field(default_factory=deque)
    _failed_attempts: int = 0

    @property
    def is_full(self) -> bool:
        """Whether an answer has to come before the next batch may go."""
        return len(self.unanswered) >= self.in_flight

    def request(self, batch: Batch) -> service_pb2.StreamEncodeRequest:
        """The message of one batch; its id is the place of its first text."""
        return service_pb2.StreamEncodeRequest(
            batch_id=batch.start, texts=batch.texts, pairs=batch.pairs, options=self.settings.options
        )

    def take(self, answer: service_pb2.StreamEncodeResponse) -> list[results.Encoded]:
        """Reads the answer to the oldest unanswered batch.

        Raises:
            TokendError: The batch was refused; the error's index counts from the stream's first text.
            InternalError: The answer is to another batch.
        """
        batch = self.unanswered.popleft()
        if answer.batch_id != batch.start:
            raise errors.InternalError(
                f"the server answered batch {answer.batch_id} instead of {batch.start}"
            )
        self._failed_attempts = 0
        if answer.WhichOneof("outcome") == "error":
            error = error_of_answer(answer.error)
            error.renumber(batch.start)
            raise error
        encodings = _replies.read_batch(answer.result, self.settings)
        if len(encodings) != len(batch.texts):
            raise errors.InternalError(
                f"the server answered {len(batch.texts)} texts with {len(encodings)} encodings"
            )
        return encodings

    def pause_s(self, error: errors.UnavailableError) -> float:
        """How long to wait before the stream is taken up again, in seconds.

        Progress (an answer) makes the count of attempts start again.

        Raises:
            UnavailableError: The same one, when the attempts are used up.
        """
        self._failed_attempts += 1
        if self._failed_attempts >= _MAX_ATTEMPTS:
            raise error
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** (self._failed_attempts - 1), _LONGEST_PAUSE_S)
        # Clients that lost one server together should not come back together.
        pause_s *= 0.8 + 0.4 * self.randomness()
        return max(pause_s, error.retry_delay_s or 0.0)
