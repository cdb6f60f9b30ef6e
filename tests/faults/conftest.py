"""What the fault tests share: servers on either front, and the word on each fault for docs/reliability.md."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.conftest import fleet_of, front, stack
from tests.servers import RunningServer
from tests.tokenizers_for_tests import byte_level_bpe

__all__ = ["fleet_of", "front", "one_front", "stack"]

one_front = pytest.mark.parametrize("front", ["grpcio"], indirect=True)
"""For faults that never reach what listens."""

# A server that looks for readers that do not read, and verifies an engine, in seconds instead of a minute.
_QUICK = """
import sys
from functools import partial
from tests.engine.fast_for_tests import QUICK
from tokend_server import loading
loading.EngineChoice = partial(loading.EngineChoice, extent=QUICK)
if "native" in sys.argv:
    from tokend_server.transport import native_front
    native_front._STALLED_S = 6.0
from tokend_server.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def tell(front: str) -> Callable[..., None]:
    """Note what a fault did, for `make reliability-table`; without that nobody asks."""

    def note(fault: str, *, load: str, lost: str, after: str) -> None:
        path = os.environ.get("TOKEND_TEST_FAULT_RESULTS")
        if path:
            with Path(path).open("a", encoding="utf-8") as file:
                row = {"fault": fault, "front": front, "load": load, "lost": lost, "after": after}
                file.write(json.dumps(row) + "\n")

    return note


@pytest.fixture
def server_with(tokenizer_file: Callable[[str], Path], front: str) -> Iterator[Callable[..., RunningServer]]:
    """Start a server of the test's own on the byte tokenizer; it ends well, or has ended well."""
    with ExitStack() as running:

        def start(
            *flags: str,
            tokenizer: Path | None = None,
            env: dict[str, str] | None = None,
            around: tuple[str, ...] = (),
        ) -> RunningServer:
            server = RunningServer(
                *("--front", front, "--drain-grace-s", "2", *flags),
                tokenizer=tokenizer or tokenizer_file(byte_level_bpe()),
                env=None if env is None else {**os.environ, **env},
                command=(*around, sys.executable, "-c", _QUICK, "serve"),
            )
            running.callback(_ends_well, server)
            return server

        yield start


def _ends_well(server: RunningServer) -> None:
    assert server.stop() == 0
