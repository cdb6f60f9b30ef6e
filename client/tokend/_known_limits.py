"""The server's limits as far as a client knows them."""

from dataclasses import dataclass

from tokend import results

__all__ = ["KnownLimits"]


@dataclass(slots=True)
class KnownLimits:
    """The server's limits, once they were asked for; they bound what a message may hold."""

    limits: results.Limits | None = None

    def batch_texts(self, wanted: int) -> int:
        """Texts, or id lists, in a message."""
        return min(wanted, self.limits.max_batch_texts) if self.limits else wanted

    def batch_bytes(self, wanted: int) -> int:
        """Bytes of text in a message."""
        return min(wanted, self.limits.max_batch_bytes) if self.limits else wanted

    def ids(self, wanted: int) -> int:
        """Ids in a message."""
        return min(wanted, self.limits.max_ids) if self.limits else wanted

    def sequences(self, wanted: int) -> int:
        """Sequences on a StreamDecode."""
        return min(wanted, self.limits.max_sequences_per_stream or wanted) if self.limits else wanted
