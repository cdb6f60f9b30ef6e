"""A wall clock that jumps by days, forwards and backwards, under a server with load: nobody notices."""

import datetime as dt
import os
import re
import signal
from pathlib import Path

import pytest

import tokend
from tests.faults.clock import Clock, needs_clock
from tests.faults.load import LARGE, Load
from tests.integration.wire import Wire, in_flight, one_sequence, until
from tests.integration.workers import readiness

JUMPS = ("+2d", "-2d", "+0")


@needs_clock
@pytest.mark.parametrize("workers", [1, 2] if LARGE else [2])
def test_a_wall_clock_that_jumps_changes_nothing(server_with, stack, tmp_path, tell, workers):
    clock = Clock(tmp_path / "clock")
    server = server_with(
        *("--workers", str(workers), "--keepalive-s", "2"),
        env=clock.environment(),
    )
    wires = [stack.enter_context(Wire(server.grpc)) for _ in range(4)]
    streams = [wire.stream("StreamDecode", timeout=None) for wire in wires]
    for stream in streams:
        stream.ask(one_sequence([0xF0]))
    load = Load(wires)
    try:
        for jump in JUMPS:
            clock.jump(jump)
            until(lambda: seen_by(server) == clock.day())
            answered = load.n_answered
            until(lambda: load.n_answered > answered + 200)  # noqa: B023
            assert readiness(server.ops)[0] == 200
    finally:
        load.stop()
    assert (load.n_wrong, load.failures) == (0, [])
    for stream in streams:
        assert stream.ask(one_sequence([0x9F, 0x99, 0x82])).sequences[0].text == "🙂"
        stream.rest()
    until(lambda: in_flight(server) == {})
    if workers > 1:
        # A dead worker is replaced by the monotonic clock too.
        clock.jump("-2d")
        os.kill(_a_worker(server), signal.SIGKILL)
        until(lambda: server.metric("tokend_worker_restarts_total") == 1)
        until(lambda: readiness(server.ops)[0] == 200)
    tell(
        f"the wall clock jumps by two days, both ways; {workers} worker{'s' * (workers > 1)}",
        load=f"{len(wires)} connections, {load.a_second:.0f} calls a second, open streams",
        lost=f"none of {load.n_answered}; no wrong answer",
        after="streams went on, timers kept their time",
    )


def seen_by(server) -> dt.date:
    """The day on the server's clock, as its log has it."""
    with tokend.Client(server.grpc) as client, pytest.raises(tokend.UnknownTokenIdError):
        client.decode([1_000_000])
    [*_, day] = [
        re.match(r"\d{4}-\d\d-\d\d", line) for line in server.stderr_lines if " refused " in line
    ] or [None]
    return dt.date.min if day is None else dt.date.fromisoformat(day[0])


def _a_worker(server) -> int:
    """The newest child of the parent; the ops port's is the oldest."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    return int(children[-1])
