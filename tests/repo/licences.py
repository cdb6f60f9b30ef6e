"""The licences of what the server's image installs: `python -m tests.repo.licences` writes docs/licences.md."""

import json
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "deploy" / "docker" / "requirements.txt"
PAGE = ROOT / "docs" / "licences.md"
# Whose metadata name none: read from the licence file in the package.
BY_HAND = {"fastokens": "Apache-2.0"}
_HEAD = """\
# Licences

tokend is under the Apache License 2.0 ([LICENSE](../LICENSE)). Its server installs these packages, pinned in
`deploy/docker/requirements.txt`; the client alone needs grpcio, grpcio-status, protobuf and what these need. The
licences are those that the packages state. Native packages hold libraries of others, whose notices are in their
wheels. `make licences` makes this page, and a test compares it with what is installed.

| package | version | licence |
|---|---|---|
"""


def locked() -> list[Requirement]:
    """What the lock file pins, in its order."""
    lines = LOCK.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return [Requirement(line.split(" --hash=")[0]) for line in lines if line and not line.startswith("#")]


def licences() -> dict[str, tuple[str, str]]:
    """Version and licence of each locked package, as installed here, by its name."""
    names = [each.name for each in locked()]
    tool = Path(sys.executable).with_name("pip-licenses")
    found = subprocess.run(
        [tool, "--from=mixed", "--format=json", "--packages", *names],
        check=True,
        capture_output=True,
        text=True,
    )
    stated = {canonicalize_name(each["Name"]): each for each in json.loads(found.stdout)}
    return {
        name: (stated[name]["Version"], BY_HAND.get(name, " ".join(stated[name]["License"].split())))
        for name in map(canonicalize_name, names)
    }


def page() -> str:
    """The whole page."""
    rows = [f"| {name} | {version} | {licence} |\n" for name, (version, licence) in licences().items()]
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
