"""kill -9 of a worker under load: it takes its own calls along, and nothing else."""

import os
import signal
import time

import grpc

from tests.faults.load import LARGE, Load
from tests.integration.wire import failure_of, in_flight, one_sequence, until
from tests.integration.workers import counters, worker_of

N_CONNECTIONS, N_KILLS = (12, 5) if LARGE else (3, 1)


def test_a_worker_killed_under_load_takes_only_its_own_calls_along(fleet_of, stack, tell):
    fleet = fleet_of(2)
    wires = fleet.connect(stack, a_worker=N_CONNECTIONS)
    streams = [wire.stream("StreamDecode", timeout=None) for wire in wires]
    for stream in streams:
        stream.ask(one_sequence(b"a"))
    load, back_after_s = Load(wires), []
    try:
        before = counters(fleet)
        for n in range(N_KILLS):
            answered, doomed = load.n_answered, fleet.pids()["worker 0"]
            until(lambda: load.n_answered > answered + 200)  # noqa: B023 (waited for here)
            os.kill(doomed, signal.SIGKILL)
            killed_s = time.monotonic()
            until(lambda: fleet.pids()["worker 0"] != doomed)  # noqa: B023
            back_after_s.append(time.monotonic() - killed_s)
            after = counters(fleet)
            assert {name for name, value in before.items() if after[name] < value} == set()
            before = after
            assert fleet.metric("tokend_worker_restarts_total") == n + 1
        answered = load.n_answered
        until(lambda: load.n_answered > answered + 200)
    finally:
        load.stop()
    assert load.n_wrong == 0
    assert {failure.code for failure in load.failures} == {grpc.StatusCode.UNAVAILABLE}
    # What is open elsewhere goes on; what was open there has ended, and no longer counts as open.
    alive = [stream for stream in streams if goes_on(stream)]
    assert 0 < len(alive) < len(streams)
    assert sum(in_flight(fleet).values()) == 2 * len(alive)
    for stream in streams:
        stream.cancel()
    until(lambda: in_flight(fleet) == {})
    assert len({worker_of(wire) for wire in fleet.connect(stack)}) == 2
    tell(
        f"kill -9 of one of 2 workers, {N_KILLS} times",
        load=f"{len(wires)} connections, {load.a_second:.0f} calls a second",
        lost=f"{len(load.failures)} of {load.n_answered + len(load.failures)} calls, all UNAVAILABLE; no wrong answer",
        after=f"worker back after {max(back_after_s):.1f} s at most; no counter ran back",
    )


def goes_on(stream) -> bool:
    try:
        return stream.ask(one_sequence(b"b")).sequences[0].text == "b"
    except grpc.RpcError:
        assert failure_of(stream.call).code == grpc.StatusCode.UNAVAILABLE
        return False
