"""A client that behaves, beside those that do not, and what the server takes meanwhile."""

from typing import Self

from tests.faults.load import Load
from tests.integration.wire import Wire, until
from tests.integration.workers import memory_bytes, n_threads
from tests.servers import RunningServer

__all__ = ["MIB", "Bystander"]

MIB = 2**20


class Bystander:
    """A client that behaves, beside those that do not; its calls must all be answered."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self.before_bytes = memory_bytes(server.process.pid)
        self.before_threads = n_threads(server.process.pid)
        self.most_bytes = self.before_bytes
        self.most_threads = self.before_threads

    def __enter__(self) -> Self:
        self._wire = Wire(self._server.grpc)
        self.load = Load([self._wire])
        return self

    def look(self) -> None:
        """Note what the server takes now."""
        self.most_bytes = max(self.most_bytes, memory_bytes(self._server.process.pid))
        self.most_threads = max(self.most_threads, n_threads(self._server.process.pid))

    def is_served(self, n_calls: int) -> None:
        """Wait until so many more of its calls are answered."""
        before = self.load.n_answered
        until(lambda: self.load.n_answered > before + n_calls)

    def __exit__(self, *_: object) -> None:
        try:
            self.is_served(20)
        finally:
            self.load.stop()
            self._wire.channel.close()
        assert (self.load.n_wrong, self.load.failures) == (0, [])

    @property
    def grown_mib(self) -> float:
        """How much more memory the server took at its most."""
        return (self.most_bytes - self.before_bytes) / MIB

    @property
    def told(self) -> str:
        """The same, and its threads, in words."""
        return f"+{self.grown_mib:.0f} MB, +{self.most_threads - self.before_threads} threads at most"
