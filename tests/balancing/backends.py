"""Several servers, each a process of its own on a loopback address of its own, and what each of them has done.

All have the same port, as the pods of a Service have. Nothing else uses these addresses, so that a server finds its port
free when it comes back.
"""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

from tests.servers import RunningServer

__all__ = ["Backends"]

# One block of addresses for each process that runs tests.
_BLOCK = f"127.{10 + os.getpid() // 250 % 200}.{1 + os.getpid() % 250}"


class Backends:
    """Servers that come and go; their addresses stay."""

    def __init__(self, n: int, *flags: str) -> None:
        self._flags = ("--drain-grace-s", "5", *flags)
        self._running: dict[int, RunningServer] = {}
        self._seen: dict[int, float] = {}
        self.port = 0
        self.start(0)
        with ThreadPoolExecutor(n) as pool:
            list(pool.map(self.start, range(1, n)))

    def host(self, number: int) -> str:
        """The address of a server, whether it runs or not."""
        return f"{_BLOCK}.{1 + number}"

    def address(self, number: int) -> str:
        return f"{self.host(number)}:{self.port}"

    def addresses(self) -> list[str]:
        """Of those that run."""
        return [self.address(number) for number in sorted(self._running)]

    def start(self, number: int) -> None:
        """Start a server, for the first time or again, and wait until it serves."""
        server = RunningServer("--listen", self.address(number), *self._flags)
        self._running[number] = server
        self.port = int(server.grpc.rpartition(":")[2])

    def restore(self, n: int) -> None:
        """Have exactly the first so many servers run."""
        for number in [number for number in self._running if number >= n]:
            self.terminate(number)
        for number in range(n):
            if number not in self._running:
                self.start(number)

    def terminate(self, number: int) -> None:
        """SIGTERM one, and wait for its end, which has to be a good one."""
        assert self._running.pop(number).stop() == 0

    def begin_to_terminate(self, number: int) -> subprocess.Popen[str]:
        """SIGTERM one, and come back while it drains."""
        process = self._running[number].process
        process.terminate()
        return process

    def kill(self, number: int) -> None:
        """SIGKILL one."""
        server = self._running.pop(number)
        server.process.kill()
        server.stop()

    def answered(self) -> dict[int, float]:
        """Encode calls that ended well, joined or not, by server; of those that run, since their start."""
        return {
            number: sum(
                server.metric("grpc_server_handled_total", grpc_method=method, grpc_code="OK")
                for method in ("Encode", "BatchEncode")
            )
            for number, server in self._running.items()
        }

    def answered_more(self) -> dict[int, float]:
        """The same since the last time that this was asked."""
        now = self.answered()
        before, self._seen = self._seen, now
        return {number: n_calls - before.get(number, 0) for number, n_calls in now.items()}

    def close(self) -> None:
        """Stop all; each must end well."""
        with ThreadPoolExecutor(8) as pool:
            codes = list(pool.map(RunningServer.stop, self._running.values()))
        self._running.clear()
        assert set(codes) <= {0}, codes
