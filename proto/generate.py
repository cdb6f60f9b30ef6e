"""Generates client/tokend/v1/ from the protos, and checks the protos and what is committed.

The only generator, with nothing but the standard library: it makes a virtual environment of its own
(`.venv-proto` in the checkout), so that its pins never meet those of the product.

    python3 proto/generate.py              write client/tokend/v1/
    python3 proto/generate.py --check      exit 1 if that would change a file, or if buf objects to a proto
    python3 proto/generate.py --baseline   take the protos as the API that later changes must not break
"""

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

PROTO_ROOT = Path(__file__).resolve().parent
ROOT = PROTO_ROOT.parent
OUTPUT = ROOT / "client" / "tokend" / "v1"
ENVIRONMENT = ROOT / ".venv-proto"

# The API as last released, without comments; `buf breaking` compares with it, offline and in a shallow clone.
BASELINE = PROTO_ROOT / "baseline.binpb"

# grpcio-tools is old on purpose: generated code refuses runtimes older than its generator, so this version
# is the floor that pyproject.toml states for grpcio and, by the protoc inside, for protobuf.
# tests/contract/test_proto.py compares them.
PINS = (
    "grpcio-tools==1.72.2",
    "grpcio==1.72.2",
    "protobuf==6.33.6",
    "mypy-protobuf==5.1.0",
    "types-protobuf==6.32.1.20260221",
    "buf-bin==1.75.0",
)

# Only this file declares a service; for the others the gRPC plugins would write empty modules.
SERVICE = "tokend/v1/tokenizer_service.proto"


def _tool(name: str) -> str:
    """Returns the path of a program of the generator's environment."""
    return str(ENVIRONMENT / "bin" / name)


def _run(*command: str, cwd: Path = PROTO_ROOT) -> bool:
    """Runs a command, its output shown; returns whether it succeeded."""
    return subprocess.run(command, cwd=cwd, check=False).returncode == 0


def _prepare_environment() -> None:
    """Makes the virtual environment, unless it is there with these pins already."""
    stamp = ENVIRONMENT / "pins.txt"
    wanted = "\n".join((sys.version, *PINS, ""))
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return
    print(f"making {ENVIRONMENT.relative_to(ROOT)}", file=sys.stderr)
    venv.create(ENVIRONMENT, clear=True, with_pip=True)
    pip = (_tool("python"), "-m", "pip", "--disable-pip-version-check", "--quiet")
    if not _run(*pip, "install", *PINS):
        raise SystemExit("cannot install the generator; see pip's message above")
    stamp.write_text(wanted, encoding="utf-8")


def _sources() -> list[str]:
    """Returns the protos' paths below the proto root, as imports spell them."""
    return sorted(path.relative_to(PROTO_ROOT).as_posix() for path in PROTO_ROOT.rglob("*.proto"))


def _protoc(sources: Sequence[str], *outputs: str) -> None:
    command = (_tool("python"), "-m", "grpc_tools.protoc", f"--proto_path={PROTO_ROOT}", *outputs, *sources)
    # The plugins are found on the path, and are scripts of the environment.
    path = os.pathsep.join((str(ENVIRONMENT / "bin"), os.environ.get("PATH", os.defpath)))
    done = subprocess.run(
        command, check=False, env=os.environ | {"PATH": path}, capture_output=True, encoding="utf-8"
    )
    if done.returncode != 0:
        raise SystemExit(f"protoc failed:\n{done.stderr}")


def _generate(folder: Path) -> Path:
    """Generates everything below `folder` and returns the package's folder, tokend/v1 in it."""
    _protoc(_sources(), f"--python_out={folder}", f"--mypy_out={folder}")
    _protoc([SERVICE], f"--grpc_python_out={folder}", f"--mypy_grpc_out={folder}")
    return folder / "tokend" / "v1"


def _is_generated(path: Path) -> bool:
    """Returns whether a file of client/tokend/v1/ is the generator's; `__init__.py` is written by hand."""
    return "_pb2" in path.name and path.suffix in {".py", ".pyi"}


def _differences(fresh: Path) -> Iterator[str]:
    """Yields one line for each file in which `fresh` and the committed folder differ."""
    new = {path.name for path in fresh.iterdir()}
    old = {path.name for path in OUTPUT.iterdir() if _is_generated(path)}
    for name in sorted(new | old):
        if name not in old:
            yield f"missing: {name}"
        elif name not in new:
            yield f"no longer generated: {name}"
        elif not filecmp.cmp(fresh / name, OUTPUT / name, shallow=False):
            yield f"differs: {name}"


def _write(fresh: Path) -> None:
    """Replaces the generated files in client/tokend/v1/ by those of `fresh`."""
    for path in OUTPUT.iterdir():
        if _is_generated(path):
            path.unlink()
    for path in fresh.iterdir():
        shutil.copyfile(path, OUTPUT / path.name)


def _check_protos() -> bool:
    """Lets buf check style, comments, layout and compatibility; returns whether all is well."""
    return all(
        [
            _run(_tool("buf"), "lint"),
            _run(_tool("buf"), "format", "--diff", "--exit-code"),
            _run(_tool("buf"), "breaking", "--against", str(BASELINE)),
        ]
    )


def _take_baseline() -> bool:
    return _run(_tool("buf"), "build", "--exclude-source-info", "--output", str(BASELINE))


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the flags ask for and returns the exit code: 0 done, 1 a check failed."""
    parser = argparse.ArgumentParser(description="Generate client/tokend/v1/ from the protos.")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="change nothing; exit 1 if something is amiss")
    mode.add_argument("--baseline", action="store_true", help="take the protos as the API not to be broken")
    flags = parser.parse_args(arguments)
    _prepare_environment()
    if flags.baseline:
        return 0 if _take_baseline() else 1
    with tempfile.TemporaryDirectory() as folder:
        fresh = _generate(Path(folder))
        if not flags.check:
            _write(fresh)
            return 0
        differences = list(_differences(fresh))
    for line in differences:
        print(f"client/tokend/v1: {line}", file=sys.stderr)
    if differences:
        print("run `make generate`, and commit what it changes", file=sys.stderr)
    return 0 if _check_protos() and not differences else 1


if __name__ == "__main__":
    sys.exit(main())
