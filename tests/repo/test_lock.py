"""What the server's image installs: pinned, hashed, complete, of known licences, and nothing besides."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.repo.licences import LOCK, PAGE, ROOT, licences, locked, page

EXTRAS = ("server", "native", "otel")
# Words of licences that a program under another licence may be shipped with.
FREE = re.compile(r"MIT|BSD|Apache|PSF|MPL-2.0|ISC|Python Software Foundation", re.IGNORECASE)


def pins() -> dict[str, str]:
    """What `make` installs everywhere: versions by name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def needed() -> set[str]:
    """Names of what the server needs here: its own dependencies, and theirs, as installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    waiting = [Requirement(each) for each in project["dependencies"]]
    waiting += [Requirement(each) for extra in EXTRAS for each in extras[extra]]
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name == "tokend":
            continue
        found.add(name)
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                theirs = map(Requirement, requires(name) or [])
                waiting += [
                    each for each in theirs if each.marker is None or each.marker.evaluate({"extra": extra})
                ]
    return found


def test_the_lock_has_what_the_server_needs_and_nothing_else():
    here = {
        canonicalize_name(each.name) for each in locked() if each.marker is None or each.marker.evaluate()
    }
    assert here == needed(), "`make lock` pins it again"


def test_the_lock_pins_what_is_tested():
    known = pins()
    assert locked()
    for each in locked():
        name = canonicalize_name(each.name)
        assert str(each.specifier) == f"=={known[name]}", f"{name}: `make lock` pins it again"


def test_each_locked_package_has_hashes_and_no_address():
    text = LOCK.read_text(encoding="utf-8")
    entries = re.split(r"\n(?=[a-zA-Z])", text.split("make lock\n", 1)[1])
    assert len(entries) == len(locked())
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry
    assert "://" not in text
    assert "-index" not in text


def test_the_page_of_licences_is_that_of_what_is_installed():
    assert PAGE.read_text(encoding="utf-8") == page(), "`make licences` makes it again"


def test_each_licence_lets_the_image_be_shipped():
    for name, (_, licence) in licences().items():
        for part in re.split(r" AND |; ", licence):
            assert FREE.search(part), f"{name}: {licence}"


@pytest.mark.skipif(
    not (os.environ.get("CI") or os.environ.get("TOKEND_TEST_INSTALL")),
    reason="downloads from the package registry; set TOKEND_TEST_INSTALL=1 (CI always runs it)",
)
def test_what_the_registry_has_is_what_was_locked(tmp_path):
    command = ["download", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    subprocess.run(
        [sys.executable, "-m", "pip", *command, "--requirement", LOCK, "--dest", tmp_path],
        check=True,
        timeout=240,
    )
    assert len(list(tmp_path.iterdir())) == len(
        [each for each in locked() if each.marker is None or each.marker.evaluate()]
    )
