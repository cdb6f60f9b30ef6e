"""Servers and connections of this folder, one for each tokenizer and session."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import tokend
from tests.client.conftest import connect  # noqa: F401 (a fixture: one test body for both clients)
from tests.engine.fast_for_tests import save_verdict
from tests.equivalence.served import Served, connected
from tests.equivalence.subjects import Subject
from tests.servers import RunningServer


@pytest.fixture(scope="session")
def server_of(
    server_for: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Subject], RunningServer]:
    """The session's server for a tokenizer; skips where a package of the zoo is not there."""
    states: dict[str, Path] = {}

    def get(subject: Subject) -> RunningServer:
        source = subject.source()
        if not subject.fast:
            return server_for(source)
        if subject.name not in states:
            states[subject.name] = tmp_path_factory.mktemp("state")
            save_verdict(source, states[subject.name])
        server = server_for(source, "--engine", "auto", "--state-dir", str(states[subject.name]))
        assert server.facts["engine"] == "fastokens"
        return server

    return get


@pytest.fixture(scope="session")
def served_of(
    server_of: Callable[[Subject], RunningServer], tokenizer_file: Callable[[str], Path]
) -> Iterator[Callable[[Subject], Served]]:
    """A connection to that server, with the reference beside it."""
    found: dict[str, Served] = {}
    with ExitStack() as stack:

        def get(subject: Subject) -> Served:
            if subject.name not in found:
                source = subject.source()
                path = tokenizer_file(source) if isinstance(source, str) else source
                found[subject.name] = stack.enter_context(connected(server_of(subject), path))
            return found[subject.name]

        yield get


@pytest.fixture(scope="session")
def client_of(server_for: Callable[..., RunningServer]) -> Iterator[Callable[..., tokend.Client]]:
    """Give the session's client of a server on a tokenizer file (a path, a JSON text, or None: the default)."""
    clients: dict[str, tokend.Client] = {}

    def of(tokenizer: Path | str | None = None, *flags: str) -> tokend.Client:
        target = server_for(tokenizer, *flags).grpc
        if target not in clients:
            clients[target] = tokend.Client(target, wait_for_ready=True)
        return clients[target]

    yield of
    for client in clients.values():
        client.close()


@pytest.fixture(scope="session")
def streamed() -> Callable[..., list[str]]:
    """Send a sequence, message by message, and give the text of each answer and of the end.

    Each message goes out only when the one before it has its answer.
    """

    def send(client: tokend.Client, messages: list[list[int]], **options: object) -> list[str]:
        with client.decoder(**options) as decoder:
            return [*(decoder.push(ids) for ids in messages), decoder.finish()]

    return send
