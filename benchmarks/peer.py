"""The peer: the `smg` gateway from PyPI as its users run it, which tokenizes over HTTP.

It has a virtual environment of its own in the cache. wrk (Debian) calls it where it is installed, else a small client
of this module.
"""

import http.client
import json
import re
import selectors
import shutil
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.call_load import Load
from benchmarks.measure import ProcessTree
from benchmarks.servers import CACHE, Server, pinned

__all__ = ["VERSION", "PeerMissing", "body", "install", "peer", "post", "run_http", "tokens"]

VERSION = "1.13.0"
_NAME = "bench"
_PATH = "/v1/tokenize"
_VENV = CACHE / f"smg-{VERSION}"
_READY_WITHIN_S = 60.0
_INSTALL_WITHIN_S = 240.0
_READ_BYTES = 1 << 16
_SILENT_S = 20.0
_WRK_SCRIPT = """\
local bodies, n = {}, 0
function init(args)
  for line in io.lines(args[1]) do bodies[#bodies + 1] = line end
  wrk.headers["Content-Type"] = "application/json"
end
function request()
  n = n % #bodies + 1
  return wrk.format("POST", nil, nil, bodies[n])
end
"""


class PeerMissing(Exception):
    """The peer cannot be had here; one line says why."""


def install() -> None:
    """Install the peer if it is not there.

    Raises:
        PeerMissing: That cannot be done.
    """
    if (_VENV / "bin" / "smg").exists():
        return
    print(f"installing smg {VERSION}, once ...", file=sys.stderr, flush=True)
    venv.create(_VENV, with_pip=True)
    command = [str(_VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", f"smg=={VERSION}"]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_INSTALL_WITHIN_S
        ).returncode
    except subprocess.TimeoutExpired:
        done = 1
    if done:
        shutil.rmtree(_VENV, ignore_errors=True)
        raise PeerMissing(f"smg {VERSION} cannot be installed with pip")


@contextmanager
def peer(tokenizer: Path, *, core: int | None) -> Iterator[Server]:
    """Run the peer on one tokenizer as long as the block lasts.

    Raises:
        PeerMissing: It is not installed (`make bench` installs it), or does not start.
    """
    executable = _VENV / "bin" / "smg"
    if not executable.exists():
        raise PeerMissing(f"smg {VERSION} is not installed; `make bench` does it")
    port, other_port = _free_ports()
    command = [str(executable), "launch", "--host", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(other_port)]
    process = subprocess.Popen(pinned(command, core), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server = Server(tree=ProcessTree(pid=process.pid), target=f"127.0.0.1:{port}", engine="smg")
    try:
        _wait_until_it_serves(server, tokenizer)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_it_serves(server: Server, tokenizer: Path) -> None:
    end_s = time.monotonic() + _READY_WITHIN_S
    registered = False
    while time.monotonic() < end_s:
        try:
            if not registered:
                registration = json.dumps({"name": _NAME, "source": str(tokenizer)}).encode()
                post(server, "/v1/tokenizers", registration)
                registered = True
            tokens(server, "a")
        except (OSError, http.client.HTTPException, RuntimeError):
            time.sleep(0.2)
        else:
            return
    raise PeerMissing(f"smg {VERSION} does not serve the tokenizer")


def post(server: Server, path: str, content: bytes) -> bytes:
    """Make one call; gives the answer's body.

    Raises:
        RuntimeError: The status is not one of success.
    """
    connection = http.client.HTTPConnection(server.target, timeout=60)
    try:
        connection.request("POST", path, content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = answer.read()
    finally:
        connection.close()
    if answer.status >= 300:
        raise RuntimeError(f"smg answered {answer.status}")
    return found


def body(prompt: str | list[str]) -> bytes:
    """The body of a call that tokenizes."""
    return json.dumps({"model": _NAME, "prompt": prompt}, ensure_ascii=False).encode()


def tokens(server: Server, text: str) -> list[int]:
    """The ids of one text."""
    found: list[int] = json.loads(post(server, _PATH, body(text)))["tokens"]
    return found


def run_http(server: Server, bodies: Sequence[bytes], *, seconds: float, connections: int, core: int) -> Load:
    """Call with one body after the other for some seconds, on many connections, each with one call at a time."""
    wrk = shutil.which("wrk")
    if wrk is None:
        return _run_own(server.target, bodies, seconds, connections)
    script, lines = CACHE / "wrk.lua", CACHE / "bodies.txt"
    script.write_text(_WRK_SCRIPT, encoding="utf-8")
    lines.write_bytes(b"\n".join(bodies))
    whole_seconds = max(1, round(seconds))
    command = [wrk, "-t1", f"-c{connections}", f"-d{whole_seconds}s", "-s", str(script)]
    command += [f"http://{server.target}{_PATH}", str(lines)]
    said = subprocess.run(
        pinned(command, core), check=True, capture_output=True, text=True, timeout=seconds + 60
    ).stdout
    counted = re.search(r"(\d+) requests in ([\d.]+)(m?s)", said)
    if counted is None or "Non-2xx" in said or "Socket errors" in said:
        raise RuntimeError("wrk reports failed calls")
    took_s = float(counted[2]) / (1000 if counted[3] == "ms" else 1)
    return Load(n_done=int(counted[1]), took_s=took_s)


def _run_own(target: str, bodies: Sequence[bytes], seconds: float, connections: int) -> Load:
    """The same without wrk."""
    host, _, port = target.rpartition(":")
    head = f"POST {_PATH} HTTP/1.1\r\nHost: {target}\r\nContent-Type: application/json\r\nContent-Length: "
    waiting = (f"{head}{len(each)}\r\n\r\n".encode() + each for each in bodies)
    n_done = 0
    with selectors.DefaultSelector() as selector:
        received: dict[socket.socket, bytes] = {}
        start_s = time.perf_counter()
        try:
            for _ in range(connections):
                opened = socket.create_connection((host, int(port)))
                received[opened] = b""
                selector.register(opened, selectors.EVENT_READ)
                opened.sendall(next(waiting))
            while received:
                ready = selector.select(_SILENT_S)
                if not ready:
                    raise RuntimeError("smg has not answered for 20 s")
                for key, _ in ready:
                    connection: socket.socket = key.fileobj
                    data = received[connection] + connection.recv(_READ_BYTES)
                    if not _is_whole(data):
                        received[connection] = data
                        continue
                    n_done += 1
                    received[connection] = b""
                    more = next(waiting, None) if time.perf_counter() - start_s < seconds else None
                    if more is not None:
                        connection.sendall(more)
                    else:
                        selector.unregister(connection)
                        connection.close()
                        del received[connection]
        finally:
            for connection in received:
                connection.close()
    return Load(n_done=n_done, took_s=time.perf_counter() - start_s)


def _is_whole(data: bytes) -> bool:
    head, end, content = data.partition(b"\r\n\r\n")
    if not end:
        return False
    if not head.startswith(b"HTTP/1.1 2"):
        raise RuntimeError("smg refused a call")
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    return length is not None and len(content) >= int(length[1])


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]
