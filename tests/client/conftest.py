"""One test body for both clients: `connect` gives a client whose methods can be called plainly, whichever it is."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tokend
from tests.servers import RunningServer
from tests.tokenizers_for_tests import byte_level_bpe


class Awaited:
    """An AsyncClient or AsyncDecoder as if it were blocking: awaits what its methods return."""

    def __init__(self, target: Any, runner: asyncio.Runner) -> None:
        self._target, self._runner = target, runner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            async def in_loop() -> Any:
                answer = value(*args, **kwargs)
                return await answer if inspect.isawaitable(answer) else answer

            answer = self._runner.run(in_loop())
            if isinstance(answer, tokend.AsyncDecoder):
                return Awaited(answer, self._runner)
            return self._steps(answer) if inspect.isasyncgen(answer) else answer

        return call

    def _steps(self, answers: Any) -> Iterator[Any]:
        async def step() -> Any:
            return await anext(answers)

        async def close() -> None:
            await answers.aclose()

        try:
            while True:
                try:
                    answer = self._runner.run(step())
                except StopAsyncIteration:
                    return
                yield answer
        finally:
            self._runner.run(close())


@pytest.fixture(params=["blocking", "awaiting"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Make clients of one kind; they are closed after the test."""
    runner = asyncio.Runner()
    clients = []

    def make(target: str, **options: Any) -> Any:
        if request.param == "blocking":
            client: Any = tokend.Client(target, **options)
        else:
            client = Awaited(tokend.AsyncClient(target, **options), runner)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()
    runner.close()


@pytest.fixture(scope="session")
def byte_server(server_for: Callable[..., RunningServer]) -> RunningServer:
    """A real server on the tokenizer whose ids 0..255 are the byte values (262 and 263 are special)."""
    return server_for(byte_level_bpe())


@pytest.fixture
def client(connect: Callable[..., Any], byte_server: RunningServer) -> Any:
    """A client of each kind on the byte tokenizer."""
    return connect(byte_server.grpc)
