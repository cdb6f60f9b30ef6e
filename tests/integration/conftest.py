"""Servers and channels that the wire tests share: one server for each tokenizer and set of flags, a session long."""

from collections.abc import Callable, Iterator

import pytest

from tests.integration.wire import Wire
from tests.servers import RunningServer
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
