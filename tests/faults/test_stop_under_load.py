"""SIGTERM under load: whatever the server took up is answered; the rest is told, or sees, to go elsewhere."""

import re
import signal
import time

import pytest

from tests.faults.load import LARGE, Load
from tests.integration.wire import Wire, until

N_CONNECTIONS, N_ANSWERS = (32, 5_000) if LARGE else (8, 300)
HANDLED_WELL = re.compile(r" handled .*\bcode=(?:0|OK)\b.*\brequest_id=(load-\S+)")


@pytest.mark.parametrize("workers", [1, 2])
def test_no_accepted_call_is_lost_by_a_stop_under_load(server_with, stack, tell, workers):
    server = server_with("--workers", str(workers), "--log-level", "debug")
    wires = [stack.enter_context(Wire(server.grpc)) for _ in range(N_CONNECTIONS)]
    load = Load(wires, at_a_refusal="end")
    until(lambda: load.n_answered > N_ANSWERS, within_s=60)
    server.process.send_signal(signal.SIGTERM)
    stopped_s = time.monotonic()
    load.join(within_s=20)
    assert server.process.wait(20) == 0
    took_s = time.monotonic() - stopped_s
    assert server.stop() == 0
    assert load.n_wrong == 0
    accepted = {found[1] for line in server.stderr_lines if (found := HANDLED_WELL.search(line))}
    assert len(accepted) >= N_ANSWERS
    assert accepted == load.answered
    # Of the others the server has taken up none. gRPC drops with CANCELLED what arrives while it says farewell.
    codes = load.codes()
    assert codes.keys() <= {"UNAVAILABLE SHUTTING_DOWN", "UNAVAILABLE", "CANCELLED"}
    tell(
        f"SIGTERM, {workers} worker{'s' * (workers > 1)}",
        load=f"{len(wires)} connections, {load.a_second:.0f} calls a second",
        lost=f"none of {load.n_answered} that were taken up; not taken up: "
        + ", ".join(f"{n} {code}" for code, n in codes.items()),
        after=f"ended with 0 after {took_s:.1f} s",
    )
