"""Servers that a test may start, stop and kill."""

from collections.abc import Iterator

import pytest

from tests.balancing.backends import Backends

N_SERVERS = 3


@pytest.fixture(scope="session")
def session_backends() -> Iterator[Backends]:
    """The servers of all tests here."""
    backends = Backends(N_SERVERS)
    yield backends
    backends.close()


@pytest.fixture
def aging_backends() -> Iterator[Backends]:
    """Two servers whose clients have to connect anew every two seconds."""
    backends = Backends(2, "--max-connection-age-s", "2")
    yield backends
    backends.close()


@pytest.fixture
def backends(session_backends: Backends) -> Backends:
    """Three servers that run, and no other, whatever the test before has done to them."""
    session_backends.restore(N_SERVERS)
    return session_backends
