"""Runs the ```console blocks of a page and gives the page with what they really print.

A block is lines `$ command` (and `> more of it`), each followed by what standard output and standard error show.
All blocks share one folder, and each is one shell, so that `$?` and files written before are there.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.client.cli_process import WITHIN_S, Cli

BLOCK = re.compile(r"^```console\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
MARK = "\x1e"


def page_as_run(page: str, target: str, folder: Path) -> str:
    """The same page, with the outputs of its blocks as they are against the server at `target`."""
    programs = folder / "programs"
    programs.mkdir()
    command = programs / "tokend"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tokend "$@"\n')
    command.chmod(0o755)
    shutil.copytree(programs, folder / "work" / ".programs")
    return BLOCK.sub(lambda block: _block_as_run(block[1], target, folder / "work"), page)


def commands_of(block: str) -> Iterator[str]:
    """The commands of a block, continuation lines included."""
    for first, more in re.findall(r"^\$ (.*)\n((?:^> .*\n)*)", block, flags=re.MULTILINE):
        yield "\n".join([first, *(line.removeprefix("> ") for line in more.splitlines())])


def _block_as_run(block: str, target: str, folder: Path) -> str:
    commands = list(commands_of(block))
    assert commands, block
    script = "".join(f"_s=$?; printf '{MARK}'; (exit $_s)\n{command}\n" for command in commands)
    environment = Cli(target).environment()
    environment["PATH"] = f"{folder / '.programs'}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"exec 2>&1\n{script}"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=WITHIN_S,
        check=False,
        cwd=folder,
        env=environment,
    )
    outputs = done.stdout.split(MARK)[1:]
    assert len(outputs) == len(commands), done.stdout
    shown = ""
    for command, output in zip(commands, outputs, strict=True):
        newline = "" if not output or output.endswith("\n") else "\n"
        prompted = "\n> ".join(command.splitlines())
        shown += f"$ {prompted}\n{output}{newline}"
    return f"```console\n{shown}```"
