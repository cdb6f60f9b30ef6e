"""A real Prometheus for the tests: `python -m tests.observability.prometheus` (`make tools`) brings it into the cache.

It comes as Debian's package, by name, version and sha256, and is unpacked, not installed.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.zoo.catalogue import cache_folder
from tokend_server.data.packages import FetchError, Package, fetch, members

PACKAGE = Package(
    registry="debian",
    name="prometheus",
    version="2.42.0+ds-5+deb12u1",
    licence="Apache-2.0",
    # Of the amd64 package; other machines refuse it, and skip the tests that need it.
    sha256="81d59a24fce84f7fbe97a45a4f2914b6a5881b5cd1db2a6a0e129e515e1a5f55",
)
PROGRAMS = ("prometheus", "promtool")
_READY_WITHIN_S = 60


def place() -> Path:
    """Where the programs are, or will be."""
    return cache_folder() / "tools" / f"prometheus-{PACKAGE.version}"


def bring() -> Path:
    """Put the programs into the cache if they are not there; gives their folder.

    Raises:
        FetchError: The package could not be had, or is not the pinned one.
    """
    folder = place()
    if not folder.exists():
        archive = fetch(PACKAGE, cache_folder())
        scratch = folder.with_name(folder.name + ".part")
        scratch.mkdir(parents=True, exist_ok=True)
        for name, data in members(archive, [f"usr/bin/{program}" for program in PROGRAMS]):
            program = scratch / Path(name).name
            program.write_bytes(data)
            program.chmod(0o755)
        scratch.rename(folder)
        archive.unlink()
    return folder


def require(program: str) -> str:
    """The path of a program; skips the test where it was not fetched, or fails it with TOKEND_ZOO_REQUIRED=1."""
    found = place() / program
    if not found.exists():
        reason = f"Prometheus is not in {cache_folder()}: run 'make tools'"
        if os.environ.get("TOKEND_ZOO_REQUIRED") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return str(found)


def promtool(*arguments: str) -> str:
    """Run promtool; gives what it says, and fails the test if it finds fault."""
    done = subprocess.run(
        [require("promtool"), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


class Prometheus:
    """One Prometheus on a free port that scrapes every second; ended by `stop`."""

    def __init__(self, folder: Path, targets: Sequence[str], rules: Sequence[Path] = ()) -> None:
        """Start it, and wait until it is ready.

        Args:
            folder: For its configuration and data.
            targets: Addresses that are scraped, as the job `tokend`.
            rules: Rule files, evaluated every second.
        """
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rule.resolve()) for rule in rules],
            "scrape_configs": [{"job_name": "tokend", "static_configs": [{"targets": list(targets)}]}],
        }
        # JSON is YAML.
        (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
        self._process = subprocess.Popen(
            [
                require("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self._address = ""
        self._found = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._wait_ready()
        except BaseException:
            self.stop()
            raise

    def _read(self) -> None:
        for line in self._process.stderr:
            self.said.append(line)
            if found := re.search(r'msg="Listening on" address=(\S+)', line):
                self._address = found[1]
                self._found.set()
        self._found.set()

    def _wait_ready(self) -> None:
        deadline_s = time.monotonic() + _READY_WITHIN_S
        self._found.wait(_READY_WITHIN_S)
        while time.monotonic() < deadline_s and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        raise AssertionError("Prometheus did not start: " + "".join(self.said[-20:]))

    def get(self, path: str, **parameters: str) -> Any:
        """Ask the HTTP API; gives `data` of the answer."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{self._address}/api/v1/{path}?{query}", timeout=30) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def range(self, expression: str, start: float, end: float, step_s: float = 1) -> list[dict[str, Any]]:
        """The series of a query over a time, each with `metric` and `values`."""
        found: list[dict[str, Any]] = self.get(
            "query_range", query=expression, start=str(start), end=str(end), step=str(step_s)
        )["result"]
        return found

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stderr.close()


def main() -> int:
    try:
        print(f"{PACKAGE.label} in {bring()}")
    except FetchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
