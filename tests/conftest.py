"""Fixtures that every test may use: tokenizers by name, and real servers that live as long as the session."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import RunningServer, ServersByFlags
from tokend_server.engine.frozen import FrozenTokenizer

# No deadlines: these machines are shared, and a slow example is no fault. CI tries the same examples each time, so
# that a red run can be had again; `make fuzz` is for finding new ones.
_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("local", deadline=None, suppress_health_check=_QUIET)
settings.register_profile("ci", parent=settings.get_profile("local"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# For every server that a test starts: verification in the background would take the machine from the tests. Those that
# are about the fast engine ask for it with `--engine auto` and a `--state-dir` of their own.
os.environ.setdefault("TOKEND_ENGINE", "reference")

# What servers keep from one start to the next is the session's own, and not the user's.
_STATE = tempfile.TemporaryDirectory(prefix="tokend-tests-")
os.environ["XDG_STATE_HOME"] = _STATE.name


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Write a tokenizer.json once and give its path; the same JSON gives the same path."""
    folder = tmp_path_factory.mktemp("tokenizers")
    paths: dict[str, Path] = {}

    def write(tokenizer_json: str) -> Path:
        if tokenizer_json not in paths:
            path = folder / f"small-{len(paths)}.json"
            path.write_text(tokenizer_json, encoding="utf-8")
            paths[tokenizer_json] = path
        return paths[tokenizer_json]

    return write


@pytest.fixture(scope="session")
def frozen(tokenizer_file: Callable[[str], Path]) -> Callable[..., FrozenTokenizer]:
    """Load a tokenizer.json, given as text, as the server loads it; once for the session."""
    loaded: dict[tuple[str, tuple[str, ...]], FrozenTokenizer] = {}

    def load(tokenizer_json: str, *control_tokens: str) -> FrozenTokenizer:
        key = (tokenizer_json, control_tokens)
        if key not in loaded:
            loaded[key] = FrozenTokenizer.load(tokenizer_file(tokenizer_json), control_tokens=control_tokens)
        return loaded[key]

    return load


@pytest.fixture(scope="session")
def server_for(tokenizer_file: Callable[[str], Path]) -> Iterator[Callable[..., RunningServer]]:
    """Start a server for a tokenizer file (a path, a JSON text, or None: the default) and flags; once a session."""
    servers = ServersByFlags(tokenizer_file)
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def server(server_for: Callable[..., RunningServer]) -> RunningServer:
    """A server on the embedded default tokenizer."""
    return server_for()
