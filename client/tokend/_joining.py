"""Joins concurrent calls of one client into batches: what is waiting goes together, no call waits for a timer.

A call that finds nothing of its kind under way is sent as it is, in its caller's own task. Calls that come while it
is under way gather and go as one batch (`_flights.py` says when). What is wrong with one call never reaches another:
a batch that the server refuses is sent again in parts, the named call alone, so that its caller gets the very error
of a single call.
"""

import asyncio
import copy
import math
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from tokend import _calls, errors
from tokend._awaiting import CLOSED, AwaitingTransport
from tokend._flights import Flights
from tokend._joined_calls import JOINED_BYTES, JoinableCall, Kind, is_of_all, is_of_size
from tokend._known_limits import KnownLimits
from tokend._time_limits import TimeLimits

__all__ = ["Joiner"]

_IN_FLIGHT = 4
_LEAST_SHARE = 128
# A message of this size costs many times what its envelope does; a larger one would only make its first call wait.
_BATCH_CALLS = 1024
_BATCH_BYTES = 256 << 10
# How long calls may wait for those under way: one that hangs must not hold up all that come after it.
_PATIENCE_S = 0.1

Result = TypeVar("Result")


class _Call:
    """One caller who waits."""

    __slots__ = ("ends_at", "flight", "future", "item", "since", "size_bytes", "timeout_s")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, item: object, size_bytes: int, timeout_s: float | None
    ) -> None:
        self.item = item
        self.size_bytes = size_bytes
        self.future: asyncio.Future[Any] = loop.create_future()
        self.since = loop.time()
        self.timeout_s = timeout_s
        self.ends_at = math.inf if timeout_s is None else self.since + timeout_s
        self.flight: _Flight | None = None

    def expire(self) -> None:
        if not self.future.done():
            error = errors.DeadlineExceededError(f"no answer within {self.timeout_s:g} s")
            self.future.set_exception(error)
            self.left()

    def left(self) -> None:
        """Its caller is gone; the last one to go takes the RPC along."""
        if self.flight is not None:
            self.flight.n_callers -= 1
            if not self.flight.n_callers and self.flight.task is not None:
                self.flight.task.cancel()


class _Flight:
    """Calls that were sent together."""

    __slots__ = ("calls", "n_callers", "task")

    def __init__(self, calls: list[_Call]) -> None:
        self.calls = calls
        self.n_callers = len(calls)
        self.task: asyncio.Task[None] | None = None
        for call in calls:
            call.flight = self


class _Lane:
    """The calls of one kind: those under way, and those that gather meanwhile. There is none while there are none."""

    def __init__(self, joiner: "Joiner", kind: Kind[Any, Any], most_in_flight: int) -> None:
        self._joiner = joiner
        self._waiting: deque[_Call] = deque()
        self._departure_planned = False
        self._patience: asyncio.TimerHandle | None = None
        self.loop = asyncio.get_running_loop()
        self.kind = kind
        self.flights = Flights(most=most_in_flight, least_share=_LEAST_SHARE)

    def add(self, call: _Call) -> None:
        self._waiting.append(call)
        self._plan()

    def landed(self, n_calls: int) -> None:
        self.flights.end(n_calls)
        self._plan_or_end()

    def close(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        for call in self._waiting:
            if not call.future.done():
                call.future.set_exception(errors.CallCancelledError(CLOSED))
        self._waiting.clear()

    def _plan(self) -> None:
        if self._departure_planned or not self._waiting:
            return
        if self.flights.next_size(len(self._waiting)):
            # At the end of this turn of the loop: whoever is about to call in it goes along.
            self._departure_planned = True
            self.loop.call_soon(self._depart)
        elif self._patience is None:
            self._patience = self.loop.call_later(_PATIENCE_S, self._lose_patience)

    def _depart(self) -> None:
        self._departure_planned = False
        while n_calls := self.flights.next_size(len(self._waiting)):
            self._send(n_calls)
        self._plan_or_end()

    def _plan_or_end(self) -> None:
        if self._waiting:
            self._plan()
        elif not self.flights.under_way:
            self._joiner.forget(self)

    def _lose_patience(self) -> None:
        self._patience = None
        if self._departure_planned or not self._waiting:
            return
        if self._waiting[0].since <= self.loop.time() - _PATIENCE_S:
            self._send(len(self._waiting))
        self._plan()

    def _send(self, n_calls: int) -> None:
        calls: list[_Call] = []
        size_bytes = 0
        while self._waiting and len(calls) < min(n_calls, _BATCH_CALLS):
            call = self._waiting[0]
            if size_bytes + call.size_bytes > _BATCH_BYTES and calls:
                break
            self._waiting.popleft()
            if not call.future.done():
                calls.append(call)
                size_bytes += call.size_bytes
        if calls:
            self.flights.start(len(calls))
            self._joiner.fly(self, _Flight(calls))


class Joiner:
    """Runs the joinable calls of one client."""

    def __init__(
        self,
        transport: AwaitingTransport,
        known: KnownLimits,
        limits: TimeLimits,
        *,
        connections: int,
        joins: bool,
    ) -> None:
        self._transport = transport
        self._known = known
        self._limits = limits
        self._in_flight = _IN_FLIGHT * connections
        self._joins = joins
        self._closed = False
        self._lanes: dict[object, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, call: JoinableCall[Result], timeout_s: float | None) -> Result:
        """Runs a call, alone or with others.

        Raises:
            TokendError: The call failed, as it would have failed alone.
        """
        kind, item, size_bytes = call
        if not self._joins or self._closed or size_bytes > JOINED_BYTES:
            return await self._transport.run(kind.alone(item), timeout_s)
        lane = self._lanes.get(kind.key)
        if lane is None:
            lane = self._lanes[kind.key] = _Lane(self, kind, self._in_flight)
            lane.flights.start(1)
            try:
                return await self._transport.run(kind.alone(item), timeout_s)
            finally:
                lane.landed(1)
        waiting = _Call(lane.loop, item, size_bytes, timeout_s)
        lane.add(waiting)
        if timeout_s is not None:
            self._limits.add(waiting)
        try:
            result: Result = await waiting.future
        except asyncio.CancelledError:
            waiting.left()
            raise
        finally:
            self._limits.discard(waiting)
        return result

    def close(self) -> None:
        """Ends the calls that wait; those under way end with their connections."""
        self._closed = True
        for lane in self._lanes.values():
            lane.close()

    def forget(self, lane: _Lane) -> None:
        """Drops a lane with nothing in it."""
        lane.close()
        self._lanes.pop(lane.kind.key, None)

    def fly(self, lane: _Lane, flight: _Flight) -> None:
        """Sends calls that are to travel together."""
        flight.task = asyncio.get_running_loop().create_task(self._fly(lane, flight))
        self._tasks.add(flight.task)
        flight.task.add_done_callback(self._tasks.discard)

    async def _fly(self, lane: _Lane, flight: _Flight) -> None:
        try:
            await self._answer(lane.kind, flight.calls)
        finally:
            # Only where the task was cancelled, or the loop is going down, is any call still without an answer.
            _fail(flight.calls, errors.CallCancelledError(CLOSED))
            lane.landed(len(flight.calls))

    async def _answer(self, kind: Kind[Any, Any], sent: Sequence[_Call]) -> None:
        """Gets each call its result or its own error."""
        calls = [call for call in sent if not call.future.done()]
        if not calls:
            return
        items = [call.item for call in calls]
        timeout_s = max(call.ends_at for call in calls) - asyncio.get_running_loop().time()
        limit_s = None if timeout_s == math.inf else max(timeout_s, 0.0)
        try:
            if len(calls) == 1:
                results = [await self._transport.run(kind.alone(items[0]), limit_s)]
            else:
                results = await self._transport.run(kind.together(items), limit_s)
        except errors.TokendError as error:
            if len(calls) == 1 or is_of_all(error):
                _fail(calls, error)
                return
            refusal = error
        except Exception as error:  # noqa: BLE001 (whatever it is, the callers have to hear of it)
            _fail(calls, errors.CallCancelledError(CLOSED) if self._closed else error)
            return
        else:
            for call, result in zip(calls, results, strict=True):
                if not call.future.done():
                    call.future.set_result(result)
            return
        if is_of_size(refusal) and self._known.limits is None:
            with suppress(errors.TokendError):
                self._known.limits = (await self._transport.run(_calls.tokenizer_info(), limit_s)).limits
        await _side_by_side(self._answer(kind, part) for part in _parts(kind, calls, refusal))


def _parts(
    kind: Kind[Any, Any], calls: Sequence[_Call], refusal: errors.TokendError
) -> Iterable[Sequence[_Call]]:
    """How calls are sent again that were refused together."""
    middle = len(calls) // 2
    if is_of_size(refusal):
        return calls[:middle], calls[middle:]
    place = None if refusal.index is None else kind.place([call.item for call in calls], refusal.index)
    if place is None or place >= len(calls):
        # It may be any of them.
        return [[call] for call in calls]
    # Those before it were found good. Those after it go in halves, so that many bad ones among them take a number of
    # rounds that only grows with the logarithm.
    rest = calls[place + 1 :]
    middle = len(rest) // 2
    return calls[:place], calls[place : place + 1], rest[:middle], rest[middle:]


def _fail(calls: Sequence[_Call], error: Exception) -> None:
    """Gives each caller who waits an exception of its own: they add their tracebacks to it."""
    for call in calls:
        if not call.future.done():
            own = copy.copy(error)
            own.__cause__ = error.__cause__
            call.future.set_exception(own)


async def _side_by_side(parts: "Iterable[Coroutine[Any, Any, None]]") -> None:
    async with asyncio.TaskGroup() as group:
        for part in parts:
            group.create_task(part)
