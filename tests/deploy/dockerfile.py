"""The steps of a Dockerfile, taken on this machine: no engine runs here that could build the image.

What differs from a build: the base is this machine with its own Python, and `/opt` and `/src` lie in a folder.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Image", "instructions"]

ROOT = Path(__file__).parents[2]


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Each instruction with its argument; comments are left out and continued lines joined."""
    lines = [line for line in dockerfile.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    whole = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in whole.splitlines() if line.strip()]


@dataclass
class Image:
    """What the last stage of a Dockerfile leaves, with all paths below `folder`."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)
    user: str = ""
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    n_stages: int = 0
    _folder: Path = Path("/")

    def build(self, dockerfile: Path) -> None:
        """Take the steps."""
        for kind, argument in instructions(dockerfile):
            getattr(self, f"_{kind.lower()}")(argument)

    def here(self, text: str) -> str:
        """A text with the image's folders as they are on this machine."""
        return re.sub(r"(?<![\w.])/(opt/tokend|src)\b", rf"{self.folder}/\1", text)

    def _arg(self, argument: str) -> None:
        assert argument.startswith("PYTHON_IMAGE="), argument

    def _from(self, argument: str) -> None:
        assert argument.split(maxsplit=1)[0] == "${PYTHON_IMAGE}"
        self.n_stages += 1
        self.environ, self._folder = {}, Path("/")

    def _env(self, argument: str) -> None:
        here = self.here(argument).replace("$PATH", os.environ["PATH"])
        self.environ |= dict(each.split("=", 1) for each in shlex.split(here))

    def _workdir(self, argument: str) -> None:
        self._folder = Path(self.here(argument))
        self._folder.mkdir(parents=True, exist_ok=True)

    def _copy(self, argument: str) -> None:
        if argument.startswith("--from="):
            # The stages have one file system here.
            assert argument == "--from=build /opt/tokend /opt/tokend"
            return
        *sources, target = argument.split()
        for source in sources:
            kept = (
                self._folder / target / Path(source).name if target.endswith("/") else self._folder / target
            )
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, kept, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, kept)

    def _run(self, argument: str) -> None:
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
        done = subprocess.run(
            ["/bin/sh", "-euc", self.here(argument)],
            cwd=self._folder,
            env=environ | self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (argument, done.stdout[-2000:], done.stderr[-2000:])

    def _user(self, argument: str) -> None:
        self.user = argument

    def _expose(self, argument: str) -> None:
        assert argument.split() == ["50051", "9464"]

    def _entrypoint(self, argument: str) -> None:
        self.entrypoint = [self.here(each) for each in _exec_form(argument)]

    def _cmd(self, argument: str) -> None:
        self.command = _exec_form(argument)


def _exec_form(argument: str) -> list[str]:
    """The words of the form that needs no shell; the other form is refused."""
    words = json.loads(argument)
    assert isinstance(words, list)
    return words
