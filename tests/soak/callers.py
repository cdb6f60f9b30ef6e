"""The callers of a soak: processes of their own, with real clients, that can be asked to hold still for a moment."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import tokend
from tests.equivalence.reference import Reference
from tests.soak.turns import Expected, WrongAnswer, turns

__all__ = ["Callers", "Tally"]

_ANSWER_WITHIN_S = 120
_TAKERS = 4
_AT_ONCE_IN_WARM_UP = 16
# Each connects anew after so many turns, so that connections come and go.
_TURNS_A_CLIENT = 200


@dataclass(kw_only=True, slots=True)
class Tally:
    """What callers have asked for and got."""

    taken: Counter[str] = field(default_factory=Counter)
    """Turns, by their name."""
    wrong: list[str] = field(default_factory=list)
    """Wrong answers: the turn, and what repeats it."""
    lost: list[str] = field(default_factory=list)
    """Turns that ended in an error that was not asked for."""

    def add(self, other: "Tally") -> "Tally":
        """Add another one to this one."""
        self.taken += other.taken
        self.wrong += other.wrong
        self.lost += other.lost
        return self


class Threaded:
    """The blocking client, called through threads so that the same body serves both."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            return await asyncio.to_thread(method, *arguments, **options)

        return call

    async def encode_stream(self, texts: Iterable[str]) -> AsyncIterator[Any]:
        for each in await asyncio.to_thread(lambda: list(self._client.encode_stream(texts))):
            yield each

    def decoder(self) -> "Threaded":
        return Threaded(self._client.decoder())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._client.close)


@dataclass(frozen=True, kw_only=True, slots=True)
class Orders:
    """What one process of callers is to do."""

    target: str
    tokenizer: Path
    blocking: bool
    seed: int
    turns_a_second: float
    warm_up: int

    def connect(self) -> Any:
        """A new client, for `async with`."""
        if self.blocking:
            return Threaded(tokend.Client(self.target, connections=2))
        return tokend.AsyncClient(self.target, connections=2)


class _Process:
    """One process of callers, on its event loop."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._expected = Expected(Reference(orders.tokenizer))
        self._turns = turns()
        self._names = list(self._turns)
        self._weights = [weight for _, weight in self._turns.values()]
        self._tally = Tally()
        self._go = asyncio.Event()
        self._still = asyncio.Condition()
        self._n_moving = 0

    async def run(self, parent: Connection) -> None:
        """Take turns until the parent says stop."""
        await self._warm_up()
        takers = [asyncio.create_task(self._take(n)) for n in range(_TAKERS)]
        self._go.set()
        while (order := await asyncio.to_thread(parent.recv)) != "stop":
            if order == "hold":
                self._go.clear()
                async with self._still:
                    await self._still.wait_for(lambda: not self._n_moving)
                parent.send(self._tally)
            else:
                self._go.set()
        for taker in takers:
            taker.cancel()

    async def _warm_up(self) -> None:
        """Take turns without a pause, many at a time: pools get their full size, and the engine's caches of words fill up.

        At the rate of later they would take hours, and look like a leak meanwhile.
        """
        seeds = iter(range(self._orders.warm_up))

        async def some(client: Any) -> None:
            for n in seeds:
                chance = random.Random(f"{self._orders.seed} warm {n}")
                [name] = chance.choices(self._names, self._weights)
                await self._one(client, name, chance.getrandbits(32))

        async with self._orders.connect() as client:
            await asyncio.gather(*(some(client) for _ in range(_AT_ONCE_IN_WARM_UP)))

    @asynccontextmanager
    async def _moving(self) -> AsyncIterator[None]:
        """Wait for leave to go on, and be counted while the block runs."""
        await self._go.wait()
        self._n_moving += 1
        try:
            yield
        finally:
            self._n_moving -= 1
            async with self._still:
                self._still.notify_all()

    async def _take(self, n: int) -> None:
        chance = random.Random(f"{self._orders.seed} {n}")
        pause_s = _TAKERS / self._orders.turns_a_second
        while True:
            async with self._orders.connect() as client:
                for _ in range(_TURNS_A_CLIENT):
                    async with self._moving():
                        await self._one(
                            client, chance.choices(self._names, self._weights)[0], chance.getrandbits(32)
                        )
                    await asyncio.sleep(chance.uniform(0, 2 * pause_s))

    async def _one(self, client: Any, name: str, seed: int) -> None:
        turn, _ = self._turns[name]
        self._tally.taken[name] += 1
        try:
            await turn(client, self._expected, random.Random(seed))
        except WrongAnswer:
            self._tally.wrong.append(f"{name}, seed {seed}")
        except tokend.TokendError as error:
            self._tally.lost.append(f"{name}, seed {seed}: {type(error).__name__} {error.reason}")


def _live(orders: Orders, parent: Connection) -> None:
    async def run() -> None:
        await _Process(orders).run(parent)

    asyncio.run(run())


class Callers:
    """Two processes of callers: one with `Client`, one with `AsyncClient`."""

    def __init__(
        self, target: str, tokenizer: Path, *, turns_a_second: float, seed: int, warm_up: int = 6_000
    ) -> None:
        """Start them; they begin at once.

        Args:
            target: The server.
            tokenizer: The file that it serves.
            turns_a_second: Of both together.
            seed: Of the turns and their texts.
            warm_up: So many turns of each process without a pause, at the start.
        """
        context = get_context("spawn")
        self._ends: list[Connection] = []
        self._processes = []
        for n, blocking in enumerate((True, False)):
            ours, theirs = context.Pipe()
            orders = Orders(
                target=target,
                tokenizer=tokenizer,
                blocking=blocking,
                seed=2 * seed + n,
                turns_a_second=turns_a_second / 2,
                warm_up=warm_up,
            )
            process = context.Process(target=_live, args=(orders, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        """Their processes."""
        return [process.pid for process in self._processes if process.pid is not None]

    def hold(self, *, within_s: float = _ANSWER_WITHIN_S) -> Tally:
        """Let each finish its turn, or its warm-up, and hold still; gives what they have done so far.

        Raises:
            RuntimeError: One does not come to rest, or has died.
        """
        for end in self._ends:
            end.send("hold")
        total = Tally()
        for end in self._ends:
            if not end.poll(within_s):
                raise RuntimeError(f"callers are stuck: no rest within {within_s:g} s")
            total.add(end.recv())
        return total

    def go_on(self) -> None:
        """Let them take turns again."""
        for end in self._ends:
            end.send("go")

    def stop(self) -> None:
        """End them."""
        for end, process in zip(self._ends, self._processes, strict=True):
            if process.is_alive():
                end.send("stop")
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
            end.close()
