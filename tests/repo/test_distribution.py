"""The wheel is a product too: built, installed bare and with the server, and used."""

import os
import subprocess
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not (os.environ.get("CI") or os.environ.get("TOKEND_TEST_INSTALL")),
    reason="installs from the package registry; set TOKEND_TEST_INSTALL=1 (CI always runs it)",
)


def run(*command: str | Path, **options) -> str:
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True, **options).stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The wheel and the sdist of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    builder = folder / "builder"
    venv.create(builder, with_pip=True)
    run(builder / "bin/pip", "install", "--quiet", "build")
    run(builder / "bin/python", "-m", "build", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return wheel, sdist


def installed(folder: Path, requirement: str) -> Path:
    venv.create(folder, with_pip=True)
    run(folder / "bin/pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", requirement)
    return folder / "bin"


def test_what_is_in_the_wheel(built):
    with zipfile.ZipFile(built[0]) as archive:
        names = set(archive.namelist())
    assert {
        "tokend/py.typed",
        "tokend/v1/tokenizer_service_pb2.py",
        "tokend/v1/tokenizer_service_pb2.pyi",
        "tokend_server/py.typed",
        "tokend_server/data/default/tokenizer.json",
        "tokend_server/data/default/SOURCES.md",
    } <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "benchmarks"))]


def test_what_is_in_the_sdist(built):
    with tarfile.open(built[1]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"LICENSE", "proto/tokend/v1/types.proto", "client/tokend/client.py", "CHANGELOG.md"} <= names


def test_the_bare_install_is_the_client_alone(built, tmp_path):
    binaries = installed(tmp_path / "bare", str(built[0]))
    imported = run(
        binaries / "python", "-c", "import tokend, sys; print(tokend.Client, 'numpy' in sys.modules)"
    )
    assert imported.strip().endswith("False")
    packages = run(binaries / "pip", "list", "--format", "freeze").lower()
    assert "tokenizers" not in packages
    serve = subprocess.run([binaries / "tokend", "serve"], capture_output=True, text=True, check=False)
    assert serve.returncode == 2
    assert "tokend[server]" in serve.stderr


def test_the_server_install_serves(built, tmp_path):
    binaries = installed(tmp_path / "full", f"{built[0]}[server]")
    server = subprocess.Popen(
        [binaries / "tokend", "serve", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        target = server.stdout.readline().split("grpc=")[1].split()[0]
        ids = run(binaries / "tokend", "encode", "--target", target, "Hello, world!")
        assert run(binaries / "tokend", "decode", "--target", target, *ids.split()) == "Hello, world!"
    finally:
        server.terminate()
        assert server.wait(30) == 0
        server.stdout.close()
