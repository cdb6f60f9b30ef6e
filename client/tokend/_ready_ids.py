"""Going through async iterables of the caller."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any

from tokend._arguments import packed_item

__all__ = ["ReadyIds", "as_async"]


class ReadyIds:
    """Draws ids from an async iterable ahead of need, and hands out all that have come, joined.

    While the server works on one message the next ids gather here, so that a stream that falls behind sends
    fewer and larger messages. It never waits for more than one id, and never draws more than 1,024 items ahead.
    """

    _AHEAD = 1024

    def __init__(self, ids: AsyncIterable[Any]) -> None:
        self._ids = ids
        self._ready: list[bytes] = []
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._task = asyncio.ensure_future(self._draw())
        self._task.add_done_callback(lambda _: self._changed.set())

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._ready:
            if self._task.done():
                self._task.result()  # raises the caller's own exception
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        joined = b"".join(self._ready)
        self._ready.clear()
        self._has_room.set()
        return joined

    async def close(self) -> None:
        """Stops drawing."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # looked at, so that the loop does not report it as lost

    async def _draw(self) -> None:
        position = 0
        async for item in self._ids:
            packed = packed_item(item, position)
            position += len(packed) // 4
            self._ready.append(packed)
            self._changed.set()
            if len(self._ready) >= self._AHEAD:
                self._has_room.clear()
                await self._has_room.wait()


async def as_async(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    """Goes through a plain or an async iterable."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
        return
    for item in items:
        yield item
