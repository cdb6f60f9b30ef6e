"""A certificate that expires under a running server: who is connected stays so, and a new file mends it for the others."""

import datetime as dt
import os
import subprocess
import sys

import trustme

from tests.faults.clock import Clock, needs_clock
from tests.faults.conftest import one_front
from tests.integration.certificates import issue, trusting, write
from tests.integration.wire import until

CLIENT = """
import datetime as dt, sys
import tokend

def connect():
    tls = tokend.Tls(root_certificates=open(sys.argv[2], "rb").read())
    # A channel of its own would share the connection of another one.
    return tokend.Client(sys.argv[1], timeout_s=10, tls=tls, channel_options=[("grpc.use_local_subchannel_pool", 1)])

def outcome(client):
    try:
        return f"{len(client.encode('the').ids)} ids"
    except tokend.TokendError as error:
        return type(error).__name__

old = connect()
for _ in sys.stdin:
    with connect() as new:
        print(dt.datetime.now(tz=dt.UTC).date(), outcome(old), outcome(new), sep=",", flush=True)
"""
GOOD, REFUSED = "2 ids", "UnavailableError"


@needs_clock
@one_front
def test_when_a_certificate_expires_connections_stay_and_a_new_file_lets_others_in(
    server_with, tmp_path, tell
):
    ca, clock = trustme.CA(), Clock(tmp_path / "clock")
    (tmp_path / "ca.pem").write_bytes(trusting(ca))
    pems = write(tmp_path, issue(ca, days_left=30))
    server = server_with(*pems.flags(), env=clock.environment())
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, server.grpc, str(tmp_path / "ca.pem")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **clock.environment()},
    )

    def ask() -> tuple[dt.date, str, str]:
        """The day on the client's clock, what the old connection gave, and what a new one."""
        client.stdin.write("?\n")
        client.stdin.flush()
        day, old, new = client.stdout.readline().strip().split(",")
        return dt.date.fromisoformat(day), old, new

    def seen() -> tuple[str, str]:
        """The outcomes, once the client's clock has jumped."""
        while (answer := ask())[0] != clock.day():
            pass
        return answer[1:]

    assert seen() == (GOOD, GOOD)
    clock.jump("+60d")
    assert seen() == (GOOD, REFUSED)
    until(lambda: any("the certificate has expired" in line for line in server.stderr_lines))
    write(tmp_path, issue(ca, days_left=90))
    until(lambda: seen() == (GOOD, GOOD))
    client.communicate(timeout=20)
    assert client.returncode == 0
    tell(
        "the certificate expires, and is replaced",
        load="a connection, and new ones",
        lost="new connections, until the new file was there; none of the old one's calls",
        after="the log says so; the new certificate is shown without a restart",
    )
