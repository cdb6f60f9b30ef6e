"""The real Envoy, with the configuration that is shipped: only its addresses are the test's."""

import socket
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from tests.integration.wire import until
from tests.tools import tool

__all__ = ["SHIPPED", "RunningEnvoy"]

SHIPPED = Path(__file__).parents[2] / "deploy" / "envoy" / "envoy.yaml"


def shipped() -> dict[str, Any]:
    """The configuration as it is shipped."""
    return yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class RunningEnvoy:
    """Envoy before some servers; `address` is where clients go."""

    def __init__(self, folder: Path, servers: Sequence[str]) -> None:
        config = shipped()
        admin, port = _free_port(), _free_port()
        config["admin"]["address"]["socket_address"] |= {"port_value": admin}
        [listener] = config["static_resources"]["listeners"]
        listener["address"]["socket_address"] |= {"address": "127.0.0.1", "port_value": port}
        [cluster] = config["static_resources"]["clusters"]
        cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
            {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(number)}}}}
            for host, number in (server.rsplit(":", 1) for server in servers)
        ]
        path = folder / "envoy.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        self._admin = f"http://127.0.0.1:{admin}"
        self.address = f"127.0.0.1:{port}"
        command = [tool("envoy"), "-c", str(path), "--disable-hot-restart", "--concurrency", "2"]
        self._log = (folder / "envoy.log").open("w")
        self._process = subprocess.Popen([*command, "--log-level", "warning"], stderr=self._log)
        until(lambda: self.healthy() > 0)

    def healthy(self) -> int:
        """How many servers Envoy takes for healthy; 0 while it starts."""
        assert self._process.poll() is None, "Envoy has ended; see envoy.log"
        try:
            return int(self.stat("cluster.tokend.membership_healthy"))
        except OSError:
            return 0

    def stat(self, name: str) -> float:
        """Read one of Envoy's counters or gauges."""
        with urllib.request.urlopen(f"{self._admin}/stats?filter=^{name}$", timeout=10) as page:
            lines = page.read().decode().split()
        return float(lines[1]) if lines else 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._log.close()
