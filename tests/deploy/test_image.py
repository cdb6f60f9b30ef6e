"""deploy/docker: linted, and its steps taken by hand, since no engine runs here that could build the image."""

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tokend
from tests.deploy.dockerfile import ROOT, Image, instructions
from tests.servers import RunningServer
from tests.tools import tool
from tokend_server.config import load

DOCKER = ROOT / "deploy" / "docker"
DOCKERFILES = sorted(DOCKER.glob("*Dockerfile"))
# It may read all, since this machine's Python may lie in a folder of root's; an image has it where everybody may.
AS_USER = "setpriv --reuid {0} --regid {0} --clear-groups --inh-caps +dac_read_search --ambient-caps +dac_read_search"
READ_ONLY = 'mount --bind / / && mount -o remount,bind,ro / && exec "$@"'


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_the_dockerfile_is_clean(path: Path):
    done = subprocess.run([tool("hadolint"), str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_build_gets_all_that_it_copies_and_nothing_else():
    wanted = {
        source
        for kind, argument in instructions(DOCKER / "Dockerfile")
        if kind == "COPY" and not argument.startswith("--from")
        for source in argument.split()[:-1]
    }
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == wanted


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The image's content, in a folder that everybody may read."""
    if os.environ.get("TOKEND_TEST_INSTALL") != "1" and "CI" not in os.environ:
        pytest.skip("installs from the package registry; set TOKEND_TEST_INSTALL=1 (CI always runs it)")
    folder = Path(tempfile.mkdtemp(prefix="tokend-image-"))
    folder.chmod(0o755)
    image = Image(folder)
    image.build(DOCKER / "Dockerfile")
    yield image
    shutil.rmtree(folder)


def test_the_image_has_two_stages_and_what_it_runs_is_no_root(image: Image):
    assert image.n_stages == 2
    assert image.user == "65532:65532"
    assert image.command == ["serve"]
    # The variables are settings, and their values good.
    load([], {name: value for name, value in image.environ.items() if name.startswith("TOKEND_")})


def test_what_is_installed_is_pinned(image: Image):
    listed = subprocess.run(
        [tool("python"), "-m", "pip", "--disable-pip-version-check", "list", "--format=freeze"]
        + [f"--path={each}" for each in image.folder.glob("opt/tokend/lib/python3*/site-packages")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    locked = (DOCKER / "requirements.txt").read_text(encoding="utf-8")
    pinned = {line.split(maxsplit=1)[0] for line in locked.splitlines() if "==" in line and line[0].isalpha()}
    unpinned = [each for each in listed if each.lower().replace("_", "-") not in pinned]
    assert [each.split("==")[0] for each in unpinned if not each.startswith("setuptools")] == ["tokend"]


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to become somebody else")
@pytest.mark.parametrize("read_only", [False, True], ids=["own-root", "read-only-root"])
def test_it_serves_as_a_user_that_may_write_nowhere(image: Image, *, read_only: bool):
    number = image.user.split(":")[0]
    as_user = AS_USER.format(number).split()
    if read_only:
        as_user = ["unshare", "--mount", "/bin/sh", "-euc", READ_ONLY, "sh", *as_user]
        probe = subprocess.run([*as_user, "/bin/true"], capture_output=True, text=True, check=False)
        if probe.returncode:
            pytest.skip(f"no mounts of one's own on this machine: {probe.stderr.strip()}")
    environ = {
        **image.environ,
        "HOME": "/nonexistent",
        "TOKEND_ENGINE": "reference",
        "TMPDIR": "/nonexistent",
    }
    for name in ("TOKEND_LISTEN", "TOKEND_OPS_LISTEN"):
        del environ[name]
    command = [*as_user, *image.entrypoint, *image.command]
    server = RunningServer(command=command, env=environ)
    try:
        with tokend.Client(server.grpc) as client:
            assert client.encode("Hello world").ids == [19888, 4803]
        assert f"Uid:\t{number}" in Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
    finally:
        assert server.stop() == 0


def test_the_installed_files_can_be_read_by_everybody(image: Image):
    for path in (image.folder / "opt" / "tokend").rglob("*"):
        assert path.is_symlink() or path.stat().st_mode & stat.S_IROTH, path
