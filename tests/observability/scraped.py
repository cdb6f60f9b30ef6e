"""Two real servers under a mixed load, and a real Prometheus that scrapes them."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.integration.tokens import ALL, new_token, write_tokens
from tests.observability.load import CALLERS, MixedLoad
from tests.observability.prometheus import Prometheus
from tests.servers import RunningServer

RULES = sorted((Path(__file__).parents[2] / "deploy/prometheus/rules").glob("*.yml"))


@dataclass(frozen=True, kw_only=True)
class Scraped:
    """What one asks after a load: the Prometheus, and when the load ran."""

    prometheus: Prometheus
    servers: tuple[RunningServer, ...]
    start: float
    end: float


@contextmanager
def scraped_servers(folder: Path, load: Sequence[tuple[float, float]], *flags: str) -> Iterator[Scraped]:
    """One process, and a server of two workers, after a load.

    Args:
        folder: For Prometheus' data, and the servers' file of tokens.
        load: Its parts one after the other: how many seconds, and the pause between two steps of a thread.
        flags: Of both servers.
    """
    tokens = {caller: new_token() for caller in CALLERS}
    tokens_file = write_tokens(
        folder / "tokens.toml", [(caller, ALL, token) for caller, token in tokens.items()]
    )
    every = ("--drain-grace-s", "2", "--auth-tokens-file", str(tokens_file), *flags)
    with ExitStack() as started:
        servers = []
        for workers in ("1", "2"):
            servers.append(RunningServer("--workers", workers, *every))
            started.callback(servers[-1].stop)
        prometheus = Prometheus(folder, [each.ops for each in servers], RULES)
        started.callback(prometheus.stop)
        start = time.time()
        for for_s, pause_s in load:
            mixed = MixedLoad([each.grpc for each in servers], tokens, pause_s=pause_s)
            mixed.run(for_s)
            assert not mixed.failures, mixed.failures
        yield Scraped(prometheus=prometheus, servers=tuple(servers), start=start, end=time.time())
