"""Programs and modules that the tests use and that `make tools` installs: where missing they skip, but not in CI."""

import importlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

__all__ = ["module", "tool"]


def tool(name: str) -> str:
    """The path of a program; skips the test where it is not installed.

    With `TOKEND_ZOO_REQUIRED=1` (as CI sets it) one that is not there fails the test.
    """
    # Not from anywhere on PATH: another version of it may render, or complain, in another way.
    return shutil.which(name, path=str(Path(sys.executable).parent)) or _missing(name)


def module(name: str) -> Any:
    """A module, in the same way."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return _missing(name)


def _missing(name: str) -> NoReturn:
    reason = f"{name} is not installed: run 'make tools'"
    if os.environ.get("TOKEND_ZOO_REQUIRED") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
