"""The real command `tokend` in processes of its own, with pipes or with a terminal."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass, field
from pathlib import Path

WITHIN_S = 60
COMMAND = (sys.executable, "-m", "tokend")
OWN_VARIABLES = (
    "TOKEND_TARGET",
    "TOKEND_TOKEN",
    "TOKEND_TIMEOUT_S",
    "TOKEND_CLIENT_TLS",
    "NO_COLOR",
    "COLUMNS",
    "GRPC_VERBOSITY",  # tokend_server sets it, in the tests' own process too
)


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def complaint(self) -> str:
        """What it said, which must be one line."""
        assert re.fullmatch(r"tokend: [^\n]+\n", self.err), self.err
        return self.err.removeprefix("tokend: ").rstrip("\n")


@dataclass(frozen=True)
class Cli:
    """Runs commands against one server."""

    target: str
    env: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
        return {**kept, "TOKEND_TARGET": self.target, "TERM": "xterm-256color", **self.env}

    def __call__(
        self, *arguments: str | bytes, stdin: bytes | None = None, cwd: Path | None = None, code: int = 0
    ) -> Done:
        """Run a command to its end; `code` is the exit code that it must have."""
        done = subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=WITHIN_S,
            check=False,
            env=self.environment(),
            cwd=cwd,
        )
        ended = Done(done.returncode, done.stdout, done.stderr.decode())
        assert ended.code == code, ended
        return ended

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command with pipes on all sides."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=self.environment(),
            # Where the tests run in the background, their children would ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (sets one handler)
        )

    def on_terminal(self, *arguments: str, columns: int = 80) -> str:
        """Run a command whose output is a terminal, and give all that appeared there."""
        shown, end = open_terminal(columns)
        process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=end, stderr=end, env=self.environment()
        )
        os.close(end)
        text = read_terminal(shown)
        assert process.wait(WITHIN_S) == 0, text
        return text


def open_terminal(columns: int = 80) -> tuple[int, int]:
    """A pseudo terminal: the end that reads what is shown, and the end for a process."""
    shown, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    settings = termios.tcgetattr(end)
    settings[1] &= ~termios.OPOST  # no \r before each \n
    termios.tcsetattr(end, termios.TCSANOW, settings)
    return shown, end


def read_terminal(shown: int) -> str:
    """Everything that appears until all processes have left the terminal."""
    parts = []
    while True:
        try:
            part = os.read(shown, 65536)
        except OSError:  # EIO: nobody is there any more
            break
        if not part:
            break
        parts.append(part)
    os.close(shown)
    return b"".join(parts).decode()
