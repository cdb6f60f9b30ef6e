"""Real servers in processes of their own, for tests: started on free ports, stopped by their own process."""

import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

READY_WITHIN_S = 60


class RunningServer:
    """One `python -m tokend_server serve`; `grpc` and `ops` are its addresses."""

    def __init__(
        self,
        *flags: str,
        tokenizer: Path | None = None,
        env: dict[str, str] | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        chosen = () if tokenizer is None else ("--tokenizer", str(tokenizer))
        self.process = subprocess.Popen(
            [*(command or SERVE), "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", *chosen, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.stderr_lines: list[str] = []
        self._reader = threading.Thread(target=self._read_stderr, daemon=True)
        self._reader.start()
        timer = threading.Timer(READY_WITHIN_S, self.process.kill)
        timer.start()
        self.ready_line = self.process.stdout.readline().strip()
        timer.cancel()
        if not self.ready_line.startswith("tokend ready "):
            self.process.kill()
            self.process.wait()
            self._reader.join()
            raise AssertionError("the server did not start: " + "".join(self.stderr_lines))
        facts = dict(part.split("=", 1) for part in self.ready_line.split()[2:])
        self.grpc, self.ops, self.facts = facts["grpc"], facts["ops"], facts

    def _read_stderr(self) -> None:
        self.stderr_lines.extend(self.process.stderr)

    def get(self, path: str) -> str:
        """Fetch a page of the ops port."""
        with urllib.request.urlopen(f"http://{self.ops}{path}", timeout=10) as answer:
            return answer.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """Read one sample of /metrics; the labels given must match."""
        from prometheus_client.parser import text_string_to_metric_families

        for family in text_string_to_metric_families(self.get("/metrics")):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        raise AssertionError(f"no sample {name} {labels}")

    def stop(self, within_s: float = 30) -> int:
        """SIGTERM and wait; gives the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self._reader.join()
            self.process.stdout.close()
            self.process.stderr.close()


class ServersByFlags:
    """Servers that live on between tests: one for each tokenizer file and set of flags, started when first asked for."""

    def __init__(
        self,
        tokenizer_file: Callable[[str], Path],
        *flags: str,
        command: Sequence[str] | None = None,
    ) -> None:
        self._tokenizer_file = tokenizer_file
        self._command = command
        self._flags = ("--drain-grace-s", "2", *flags)
        self._running: dict[tuple[object, ...], RunningServer] = {}

    def __call__(self, tokenizer: Path | str | None = None, *flags: str) -> RunningServer:
        """Give the server for a tokenizer (a path, a JSON text, or None: the default) and flags."""
        path = self._tokenizer_file(tokenizer) if isinstance(tokenizer, str) else tokenizer
        key = (path, *flags)
        if key not in self._running:
            self._running[key] = RunningServer(*self._flags, *flags, tokenizer=path, command=self._command)
        return self._running[key]

    def stop(self) -> None:
        """Stop all of them; each must end well."""
        with ThreadPoolExecutor(8) as pool:
            codes = dict(
                zip(self._running, pool.map(RunningServer.stop, self._running.values()), strict=True)
            )
        assert set(codes.values()) <= {0}, codes


SERVE: Sequence[str] = (sys.executable, "-m", "tokend_server", "serve")

_IMPATIENT = """
import sys
from tokend_server.transport import native_front
native_front._STALLED_S = {stalled_s}
from tokend_server.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def impatient(stalled_s: float) -> Sequence[str]:
    """The command of a server whose native front ends streams sooner that are blocked both ways."""
    return (sys.executable, "-c", _IMPATIENT.format(stalled_s=stalled_s), "serve")


def fails_to_start(*flags: str) -> tuple[int, str]:
    """Run a server that ends by itself; gives its exit code and what it said on stderr."""
    done = subprocess.run(
        [*SERVE, *flags], capture_output=True, text=True, timeout=READY_WITHIN_S, check=False
    )
    assert done.stdout == ""
    return done.returncode, done.stderr
