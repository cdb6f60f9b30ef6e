"""Clients of real servers, one for each tokenizer file and set of flags, kept for the session."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tokend
from tests.servers import RunningServer


@pytest.fixture(scope="session")
def connect(server_for: Callable[..., RunningServer]) -> Iterator[Callable[..., tokend.Client]]:
    """Give the session's client of a server on a tokenizer file (a path, a JSON text, or None: the default)."""
    clients: dict[str, tokend.Client] = {}

    def to(tokenizer: Path | str | None = None, *flags: str) -> tokend.Client:
        target = server_for(tokenizer, *flags).grpc
        if target not in clients:
            clients[target] = tokend.Client(target, wait_for_ready=True)
        return clients[target]

    yield to
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
