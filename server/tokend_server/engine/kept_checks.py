"""Results of the checks at load, kept on disk: nothing that went into them changes, so neither do they.

A result counts only for the very same file, control tokens, library and code of this package. What cannot be read or
written costs the time of the check, and nothing else.
"""

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from tokend_server.engine.special_tokens import ControlTokens
from tokend_server.engine.state_files import read_state, write_state
from tokend_server.engine.tokenizer_file import REFERENCE_VERSION, TokenizerFile

__all__ = ["KeptChecks"]

_Result = TypeVar("_Result", str, bool, dict[str, Any])


class KeptChecks:
    """The results of one file's checks."""

    def __init__(self, folder: Path | None, file: TokenizerFile, control: ControlTokens) -> None:
        """Reads what is kept.

        Args:
            folder: Where it is kept; None: nowhere, so that each check is made.
            file: The file that is checked.
            control: Its control tokens.
        """
        self._key = {
            "fingerprint": file.fingerprint,
            "control_tokens": sorted(control.ids),
            "reference_version": REFERENCE_VERSION,
            "code": _code(),
        }
        digest = hashlib.sha256(json.dumps(self._key).encode()).hexdigest()
        self._path = None if folder is None else folder / f"checks-{file.fingerprint[:16]}-{digest[:16]}.json"
        self._results = self._read()
        self._n_kept = len(self._results)

    def result(self, name: str, check: Callable[[], _Result]) -> _Result:
        """Returns the kept result of a check, or makes the check.

        Args:
            name: Of the check.
            check: Gives a result of one type; what it raises is not kept.
        """
        kept = self._results.get(name)
        if kept is None:
            kept = self._results[name] = check()
        return cast("_Result", kept)

    def keep(self) -> None:
        """Writes the results of the checks that were made, if any."""
        if self._path is None or len(self._results) == self._n_kept:
            return
        try:
            write_state(self._path, {"key": self._key, "results": self._results})
        except OSError:
            # The store of verdicts, in the same folder, says so.
            return
        self._n_kept = len(self._results)

    def _read(self) -> dict[str, Any]:
        if self._path is None:
            return {}
        try:
            content = read_state(self._path)
            return dict(content["results"]) if content["key"] == self._key else {}
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return {}


@cache
def _code() -> str:
    """The sha256 of this package's sources: a version number alone would not tell of a change in a checkout."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
