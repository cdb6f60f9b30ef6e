"""A server of several workers as its tests see it: which worker answers, which process is which."""

import os
import re
import signal
import urllib.error
import urllib.request
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.integration.wire import Wire, until
from tests.servers import RunningServer
from tokend.v1 import tokenizer_service_pb2 as pb

__all__ = ["Fleet", "counters", "is_alive", "memory_bytes", "n_threads", "readiness", "worker_of"]

_READY = re.compile(r'a process is ready process="?([a-z]+(?: \d+)?)"? pid=(\d+)')
MOST_CONNECTIONS = 200


class Fleet(RunningServer):
    """A running server with several workers."""

    @property
    def n_workers(self) -> int:
        return int(self.facts["workers"])

    def pids(self) -> dict[str, int]:
        """The newest process of each child that has been ready: `worker 0`, ..., `ops`."""
        # The log is read by a thread, which may be behind the ready line.
        until(lambda: len(self._ready_pids()) == self.n_workers + 1)
        return self._ready_pids()

    def _ready_pids(self) -> dict[str, int]:
        return {name: int(pid) for line in self.stderr_lines for name, pid in _READY.findall(line)}

    def kill(self, name: str) -> None:
        """SIGKILL one child, and wait until its successor is ready."""
        pid = self.pids()[name]
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.pids()[name] != pid)

    def workers(self, state: str) -> int:
        """How many workers are in a state."""
        return int(self.metric("tokend_workers", state=state))

    def connect(self, stack: ExitStack, *, a_worker: int = 1) -> list[Wire]:
        """Open connections until each worker has so many; the kernel chooses by the ports of a connection."""
        wires: dict[str, list[Wire]] = {}
        for _ in range(MOST_CONNECTIONS):
            wire = stack.enter_context(Wire(self.grpc))
            wires.setdefault(worker_of(wire), []).append(wire)
            if len(wires) == self.n_workers and min(map(len, wires.values())) >= a_worker:
                return [wire for each in wires.values() for wire in each]
        raise AssertionError(f"not all workers are reached: {Counter({k: len(v) for k, v in wires.items()})}")


def worker_of(wire: Wire) -> str:
    """Which worker a connection leads to: each has a prefix of its own for request ids."""
    _, call = wire.stub.CountTokens.with_call(pb.CountTokensRequest(texts=["a"]), timeout=20)
    return dict(call.trailing_metadata())["tokend-request-id"].partition("-")[0]


def counters(fleet: Fleet) -> dict[str, float]:
    """All that must never run back."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(fleet.get("/metrics"))
        for sample in family.samples
        if sample.name.endswith(("_total", "_count", "_sum", "_bucket"))
    }


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def n_threads(pid: int) -> int:
    """How many threads a process has."""
    return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())


def memory_bytes(pid: int) -> int:
    """A process's memory, of each shared page its share."""
    [kib] = re.findall(r"^Pss: +(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(kib) * 1024


def readiness(ops: str) -> tuple[int, str]:
    """What /readyz of an ops address says: its status and text, 0 where nobody answers."""
    try:
        with urllib.request.urlopen(f"http://{ops}/readyz", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.read().decode()
    except OSError:
        return 0, ""
