"""The servers that take part, each a process of its own on loopback: tokend, and echoes of its fronts."""

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import ProcessTree

from tests.zoo import catalogue as zoo

__all__ = ["CACHE", "Server", "echo", "pinned", "prepare", "started", "tokend", "tokenizer_file"]

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache" / "bench"
"""What the benchmarks keep: verdicts, the peer, the last results. Not in git."""

_STATE = CACHE / "state"
_READY_WITHIN_S = 180.0
_STOP_WITHIN_S = 20.0
_FAST = "fastokens"
# Takes a core, and then becomes the command; the process stays the same.
_PIN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); os.execvp(sys.argv[2], sys.argv[2:])"


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A running server."""

    tree: ProcessTree
    target: str
    """`host:port` of its gRPC port."""
    engine: str
    """What computes its ids, by its ready line."""


def tokenizer_file(name: str) -> Path:
    """A real tokenizer of the zoo.

    Raises:
        RuntimeError: It was not fetched.
    """
    path = zoo.path(name)
    if path is None:
        raise RuntimeError(f"the zoo's {name} is not there: run 'make zoo'")
    return path


def pinned(command: Sequence[str], core: int | None) -> list[str]:
    """The command, on one core."""
    return list(command) if core is None else [sys.executable, "-c", _PIN, str(core), *command]


@contextmanager
def started(command: Sequence[str], *, core: int | None = None) -> Iterator[Server]:
    """Run a server that prints a ready line, as long as the block lasts.

    Raises:
        RuntimeError: It does not become ready.
    """
    process = subprocess.Popen(
        pinned(command, core),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said: list[str] = []
    threading.Thread(target=said.extend, args=(process.stderr,), daemon=True).start()
    impatience = threading.Timer(_READY_WITHIN_S, process.kill)
    impatience.start()
    try:
        ready = process.stdout.readline()
        impatience.cancel()
        facts = dict(part.split("=", 1) for part in ready.split() if "=" in part)
        if "grpc" not in facts:
            raise RuntimeError(f"a server did not start: {''.join(said[-3:]).strip() or 'no word of why'}")
        yield Server(tree=ProcessTree(pid=process.pid), target=facts["grpc"], engine=facts["engine"])
    finally:
        impatience.cancel()
        process.terminate()
        try:
            process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def tokend_command(tokenizer: Path, *flags: str, engine: str) -> list[str]:
    """The command of a server that keeps to itself what it says, and has its verdicts in our cache."""
    command = [sys.executable, "-m", "tokend_server", "serve", "--tokenizer", str(tokenizer)]
    command += ["--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--log-level", "error"]
    return [*command, "--state-dir", str(_STATE), "--engine", engine, "--drain-grace-s", "1", *flags]


@contextmanager
def tokend(tokenizer: Path, *flags: str, core: int | None = None) -> Iterator[Server]:
    """Run a tokend server, on the fast engine where a verdict is there, else on the reference alone.

    Without a verdict the server would verify beside what is measured.
    """
    if _has_verdicts(tokenizer):
        with started(tokend_command(tokenizer, *flags, engine="auto"), core=core) as server:
            if server.engine == _FAST:
                yield server
                return
    with started(tokend_command(tokenizer, *flags, engine="reference"), core=core) as server:
        yield server


def prepare(tokenizer: Path, *, core: int | None = None) -> None:
    """Have a verdict on a file, which takes a minute the first time; one core and several have each their own."""
    with tokend(tokenizer, core=core) as server:
        if server.engine == _FAST:
            return
    print(f"verifying the fast engine on {tokenizer.parent.name}, once ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "tokend_server", "verify", str(tokenizer), "--state-dir", str(_STATE)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(pinned(command, core), check=False, cwd=ROOT, env=_environment(), **quiet)


def _has_verdicts(tokenizer: Path) -> bool:
    """Whether any is there for the file, of whichever versions; the server's own ready line decides."""
    fingerprint = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    return any(_STATE.glob(f"verdict-{fingerprint[:16]}-*.json"))


@contextmanager
def echo(front: str, reply_bytes: int, *, core: int | None = None) -> Iterator[Server]:
    """Run an echo on a front, `grpcio` or `native`."""
    with started([sys.executable, "-m", "benchmarks.echo", front, str(reply_bytes)], core=core) as server:
        yield server


def _environment() -> dict[str, str]:
    """Ours, without what would set up a server in another way; with compiled files, as an installed package has them."""
    return {
        name: value
        for name, value in os.environ.items()
        if (not name.startswith("TOKEND_") or "ZOO" in name) and name != "PYTHONDONTWRITEBYTECODE"
    }
