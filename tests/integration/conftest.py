"""Servers and channels that the wire tests share: one server for each front, tokenizer and set of flags.

Every test that uses one of them runs on both fronts.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration.wire import Wire
from tests.integration.workers import Fleet
from tests.servers import RunningServer, ServersByFlags, impatient
from tests.tokenizers_for_tests import byte_level_bpe

# Small enough that a test can pass each of them with a small message.
SMALL_LIMITS = {
    "--max-text-bytes": 8_000,
    "--max-batch-texts": 4,
    "--max-batch-bytes": 20_000,
    "--max-message-bytes": 65_536,
    "--max-ids": 1_000,
    "--max-sequences-per-stream": 2,
    "--max-streams": 4,
    "--max-stop-strings": 2,
    "--max-stop-bytes": 8,
}
# It panics on a text that begins with a letter: the library slices at the border that the empty match gives.
PANICS_BEFORE_LETTERS = {"type": "Replace", "pattern": {"Regex": r"^(?=\p{L})"}, "content": " "}


NATIVE = pytest.param(
    "native",
    marks=pytest.mark.skipif(find_spec("pygrpc_native") is None, reason="tokend[native] is not installed"),
)


@pytest.fixture(scope="session", params=["grpcio", NATIVE])
def front(request: pytest.FixtureRequest) -> str:
    """What the servers of this test listen with."""
    return request.param


@pytest.fixture(scope="session")
def server_for(tokenizer_file: Callable[[str], Path], front: str) -> Iterator[Callable[..., RunningServer]]:
    """As the one of all tests, on either front."""
    # Shorter than what the tests wait for, and longer than a test leaves its answers unread.
    command = impatient(6.0) if front == "native" else None
    servers = ServersByFlags(tokenizer_file, "--front", front, command=command)
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def server(server_for: Callable[..., RunningServer]) -> RunningServer:
    """A server on the embedded default tokenizer."""
    return server_for()


@pytest.fixture(scope="session")
def wire_to(server_for: Callable[..., RunningServer]) -> Iterator[Callable[[RunningServer], Wire]]:
    """Give the session's channel to a server."""
    del server_for  # Its servers stop after these channels have closed.
    wires: dict[str, Wire] = {}

    def connect(server: RunningServer) -> Wire:
        if server.grpc not in wires:
            wires[server.grpc] = Wire(server.grpc)
        return wires[server.grpc]

    yield connect
    for wire in wires.values():
        wire.channel.close()


@pytest.fixture(scope="session")
def byte_server(server_for: Callable[..., RunningServer]) -> RunningServer:
    """A server on BL, whose ids 0..255 are the byte values (262 `<|bos|>`, 263 `<|end|>` are special)."""
    return server_for(byte_level_bpe())


@pytest.fixture(scope="session")
def limited_server(server_for: Callable[..., RunningServer]) -> RunningServer:
    """The same under limits that a small message passes."""
    flags = [str(each) for pair in SMALL_LIMITS.items() for each in pair]
    return server_for(byte_level_bpe(), *flags)


@pytest.fixture(scope="session")
def panicking_server(server_for: Callable[..., RunningServer]) -> RunningServer:
    """BL behind a normalizer on which the library panics where a text begins with a letter."""
    return server_for(byte_level_bpe(normalizer=PANICS_BEFORE_LETTERS), "--log-level", "debug")


@pytest.fixture
def wire(wire_to: Callable[[RunningServer], Wire], byte_server: RunningServer) -> Wire:
    """A channel to the server on BL."""
    return wire_to(byte_server)


@pytest.fixture
def limited(wire_to: Callable[[RunningServer], Wire], limited_server: RunningServer) -> Wire:
    """A channel to the server with small limits."""
    return wire_to(limited_server)


@pytest.fixture
def fleet_of(tokenizer_file: Callable[[str], Path], front: str) -> Iterator[Callable[..., Fleet]]:
    """Start a server with so many workers, on either front; all of them end well."""
    running: list[Fleet] = []

    def start(n_workers: int | str, *flags: str, tokenizer: Path | None = None) -> Fleet:
        tokenizer = tokenizer or tokenizer_file(byte_level_bpe())
        fixed = ("--workers", str(n_workers), "--front", front, "--drain-grace-s", "2")
        fleet = Fleet(*fixed, *flags, tokenizer=tokenizer)
        running.append(fleet)
        return fleet

    yield start
    assert [fleet.stop() for fleet in running] == [0] * len(running)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What a test opens in it is closed at its end."""
    with ExitStack() as stack:
        yield stack
