"""Small JSON files in the state folder: whole or not there, whoever stops when."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["read_state", "write_state"]

_MOST_BYTES = 4 * 1024 * 1024


def read_state(path: Path) -> Any:  # noqa: ANN401 (whatever stands there)
    """Returns what a file holds.

    Raises:
        OSError: It is not there, or cannot be read.
        ValueError, RecursionError: It is no JSON.
    """
    with path.open("rb") as file:
        # What is cut off here is no JSON either.
        return json.loads(file.read(_MOST_BYTES))


def write_state(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a file, in place of an earlier one; its folder is made, for this user alone.

    Raises:
        OSError: It cannot be written; nothing is changed.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Moved into place when it is whole: a reader, or a start after a crash, finds all of it or none.
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.stem}-", delete=False
    ) as file:
        try:
            file.write(json.dumps(content, indent=1))
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
