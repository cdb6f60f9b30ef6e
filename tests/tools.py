"""Programs that the tests run and that `make tools` installs: skipped where they are not there, but not in CI."""

import os
import shutil
import sys
from pathlib import Path

import pytest

__all__ = ["tool"]


def tool(name: str) -> str:
    """The path of a program; skips the test where it is not installed.

    With `TOKEND_ZOO_REQUIRED=1` (as CI sets it) one that is not there fails the test.
    """
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        reason = f"{name} is not installed: run 'make tools'"
        if os.environ.get("TOKEND_ZOO_REQUIRED") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found
