"""Few threads call the engines, however many calls and streams there are: each thread costs tens of megabytes for good."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import tokend
from tests.servers import RunningServer
from tokend_server import app, config
from tokend_server.cores import usable_cores

N_CALLERS = 24
THREADS_PER_FRONT = {"grpcio": 1, "native": 4}
"""That answer small calls where they come in."""

SERVER = """
import os, sys, threading
from tokend_server.__main__ import main
from tokend_server.engine.encoder import Encoder

def telling(method):
    def told(*arguments):
        os.write(callers, f"{threading.get_native_id()} {threading.current_thread().name}\\n".encode())
        return method(*arguments)
    return told

callers = os.open(os.environ["CALLERS"], os.O_WRONLY | os.O_APPEND)
Encoder.encode_packed = telling(Encoder.encode_packed)
Encoder.count = telling(Encoder.count)
sys.exit(main())
"""


@pytest.mark.parametrize("front", THREADS_PER_FRONT)
def test_engines_are_called_by_few_threads(front: str, tmp_path):
    told = tmp_path / "callers"
    told.touch()
    server = RunningServer(
        "--front",
        front,
        command=[sys.executable, "-c", SERVER, "serve"],
        env={**os.environ, "CALLERS": str(told)},
    )
    try:
        with (
            ThreadPoolExecutor(N_CALLERS) as pool,
            tokend.Client(server.grpc, connections=4) as client,
        ):
            list(pool.map(lambda n: _ask_everything(client, n), range(3 * N_CALLERS)))
    finally:
        assert server.stop() == 0
    callers = set(told.read_text().splitlines())
    names = {each.split(maxsplit=1)[1] for each in callers}
    assert {"tokend-unary", "tokend-large", "tokend-huge"} <= names
    assert "tokend-stream" not in names
    assert len(callers) <= THREADS_PER_FRONT[front] + min(4, usable_cores()) + 2 * usable_cores()


def _ask_everything(client: tokend.Client, n: int) -> None:
    for n_words in (10, 1_000, 10_000):
        client.count(f"word{n} " * n_words)
    assert len(list(client.encode_stream([f"text {n} {part}" for part in range(3)]))) == 3
    assert len(list(client.encode_stream([f"text {n} " * 3_000] * 8))) == 8
    if n % N_CALLERS == 0:
        client.count(f"word{n} " * 200_000)


@pytest.mark.parametrize(
    ("cores", "flags", "n_threads"),
    [
        (1, [], 1),
        (2, [], 2),
        (16, [], 4),
        (2, ["--workers", "4"], 1),
        (16, ["--workers", "6"], 3),
        (16, ["--workers", "auto"], 1),
        (2, ["--unary-threads", "9"], 9),
        (8, ["--unary-threads", "auto"], 4),
    ],
)
def test_a_worker_has_threads_for_its_share_of_the_cores(monkeypatch, cores, flags, n_threads):
    monkeypatch.setattr(app, "usable_cores", lambda: cores)
    assert app.unary_threads(config.load(flags, {}).settings) == n_threads
