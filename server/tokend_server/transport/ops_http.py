"""The ops port: /metrics, /healthz, /readyz and a page that lists them, over plain HTTP/1.1.

It is bounded, since anybody who reaches the port may talk to it: reads only, a time-out on each read and write, and
a fixed number of connections, of which the oldest makes room for a new one. Nothing of a request is logged.
"""

import contextlib
import gzip
import html
import socket
import socketserver
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from tokend_server import logs
from tokend_server.config import Address, UnixAddress
from tokend_server.transport.host_names import Resolved, resolve
from tokend_server.transport.unix_socket import UnixSocketFile

__all__ = ["OpsServer"]

_log = logs.get("ops")
_MAX_CONNECTIONS = 64
# Longer than a scrape interval, so that a scraper keeps its connection.
_IDLE_TIMEOUT_S = 75
_POLL_INTERVAL_S = 0.2
_PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    status: HTTPStatus
    body: bytes
    content_type: str = _PLAIN
    encoding: str | None = None


class OpsServer:
    """Serves the ops endpoints of one server on a port of its own."""

    def __init__(
        self,
        address: Address | UnixAddress,
        *,
        registry: CollectorRegistry,
        ready: Callable[[], str | None],
        socket_mode: int = 0o600,
    ) -> None:
        """Bind the port; connections wait in the listen queue until `start`.

        Args:
            address: Where to listen; port 0 takes a free one.
            registry: What /metrics shows.
            socket_mode: Who may connect to a Unix socket, by its file mode.
            ready: Returns None when the server can take calls, else the reason why not, in a few words.

        Raises:
            OSError: the address cannot be bound; the message names it and the setting.
        """
        self._asked = address
        self._registry = registry
        self._ready = ready
        self._one_page = threading.Lock()
        self._routes: dict[str, tuple[str, Callable[[_Handler], _Answer]]] = {
            "/": ("this page", lambda _: self._index()),
            "/metrics": ("what the server counts, for Prometheus", self._metrics),
            "/healthz": ("200 while the process runs", lambda _: _Answer(status=HTTPStatus.OK, body=b"ok\n")),
            "/readyz": (
                "200 while the server takes calls, else 503 and the reason",
                lambda _: self._readyz(),
            ),
        }
        self._file: UnixSocketFile | None = None
        found = [] if isinstance(address, UnixAddress) else resolve(address, "ops_listen")
        try:
            if isinstance(address, UnixAddress):
                self._file = UnixSocketFile(address, "ops_listen", socket_mode)
                with self._file.bound():
                    self._listener = _Listener(address, self._answer)
            else:
                self._listener = _Listener(found, self._answer)
        except OSError as problem:
            if isinstance(address, UnixAddress):
                raise
            reason = problem.strerror or str(problem)
            raise OSError(problem.errno, f"cannot listen on {address} (ops_listen): {reason}") from None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> Address | UnixAddress:
        """Where the server listens, with the port that it really has."""
        if isinstance(self._asked, UnixAddress):
            return self._asked
        host, port = self._listener.server_address[:2]
        return Address(host=str(host), port=int(port))

    def start(self) -> None:
        """Answer requests, on threads of this server's own."""
        self._thread = threading.Thread(
            target=self._listener.serve_forever, args=(_POLL_INTERVAL_S,), name="ops-http", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Close the port and every connection; a server that never started only gives its port back."""
        if self._thread is not None:
            self._listener.shutdown()
            self._thread.join()
        self._listener.server_close()
        if self._file is not None:
            self._file.remove()

    def _answer(self, handler: "_Handler") -> _Answer:
        route = self._routes.get(handler.path.split("?", 1)[0])
        if route is None:
            return _Answer(status=HTTPStatus.NOT_FOUND, body=b"not found; / lists what there is\n")
        try:
            return route[1](handler)
        except Exception as error:  # noqa: BLE001 (a scraper gets an answer whatever an endpoint does)
            _log.error("an ops endpoint failed", error=error)
            return _Answer(
                status=HTTPStatus.INTERNAL_SERVER_ERROR, body=b"this endpoint failed; the log has more\n"
            )

    def _index(self) -> _Answer:
        lines = "".join(
            f'<li><a href="{path}">{path}</a> {html.escape(meaning)}</li>\n'
            for path, (meaning, _) in self._routes.items()
            if path != "/"
        )
        page = (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>tokend</title></head>\n'
            f"<body><h1>tokend: ops port</h1>\n<ul>\n{lines}</ul></body></html>\n"
        )
        return _Answer(status=HTTPStatus.OK, body=page.encode(), content_type="text/html; charset=utf-8")

    def _readyz(self) -> _Answer:
        reason = self._ready()
        if reason is None:
            return _Answer(status=HTTPStatus.OK, body=b"ready\n")
        return _Answer(status=HTTPStatus.SERVICE_UNAVAILABLE, body=f"not ready: {reason}\n".encode())

    def _metrics(self, handler: "_Handler") -> _Answer:
        encoder, content_type = choose_encoder(handler.headers.get("Accept", ""))
        # One page at a time: many scrapers take no more of the GIL from the calls than one does.
        with self._one_page:
            body = encoder(self._registry)
        encoding = None
        if _accepts_gzip(handler.headers.get("Accept-Encoding", "")):
            # The lowest level takes a millisecond or two and makes the page 20 times smaller.
            body, encoding = gzip.compress(body, compresslevel=1), "gzip"
        return _Answer(status=HTTPStatus.OK, body=body, content_type=content_type, encoding=encoding)


def _accepts_gzip(header: str) -> bool:
    for offer in header.split(","):
        coding, _, weight = offer.replace(" ", "").partition(";")
        if coding.lower() == "gzip":
            return weight not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False


class _Listener(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """One daemon thread a connection, at most `_MAX_CONNECTIONS` of them."""

    daemon_threads = True
    block_on_close = False
    # Only the time-wait of an earlier server is passed over; a living one keeps its port.
    allow_reuse_address = True
    request_queue_size = _MAX_CONNECTIONS

    def __init__(self, address: UnixAddress | Resolved, answer: Callable[["_Handler"], _Answer]) -> None:
        self.answer = answer
        self._connections: OrderedDict[socket.socket, None] = OrderedDict()
        self._lock = threading.Lock()
        if isinstance(address, UnixAddress):
            self.address_family = socket.AF_UNIX
            super().__init__(address.path, _UnixHandler)  # type: ignore[arg-type]  # typed for IPv4 alone
            return
        self.address_family, sockaddr = address[0]
        super().__init__(sockaddr, _Handler)  # type: ignore[arg-type]  # typed for IPv4 alone

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 (socketserver's types)
        oldest = None
        with self._lock:
            self._connections[request] = None
            if len(self._connections) > _MAX_CONNECTIONS:
                oldest, _ = self._connections.popitem(last=False)
        if oldest is not None:
            _cut(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 (socketserver's types)
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            left = list(self._connections)
        for connection in left:
            _cut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 (socketserver's types)
        """Say nothing: a client that goes away is no event, and what an endpoint raises is logged before."""


def _cut(connection: socket.socket) -> None:
    # Only shut down: its thread wakes up from its read and closes it.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """Reads requests and writes what the server's `answer` returns."""

    server: _Listener
    protocol_version = "HTTP/1.1"
    server_version = "tokend"
    sys_version = ""
    timeout = _IDLE_TIMEOUT_S
    # Head and body leave in one packet; in two, a delayed acknowledgement costs 40 ms.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            # Its body would be taken for the next request.
            self.close_connection = True
        self._write(self.server.answer(self))

    do_HEAD = do_GET  # noqa: N815 (the base finds it by this name)

    def _refuse(self) -> None:
        # A body may follow that nobody reads.
        self.close_connection = True
        self._write(_Answer(status=HTTPStatus.METHOD_NOT_ALLOWED, body=b"GET and HEAD only\n"))

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815 (the base finds them by these names)

    def _write(self, answer: _Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if answer.encoding is not None:
            self.send_header("Content-Encoding", answer.encoding)
        if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002 (the base's texts quote the request)
        """Answer what is no HTTP request with its status alone."""
        self.close_connection = True
        # Of a request line that it cannot read the base takes the version for 0.9, whose answers have no status.
        self.request_version = self.protocol_version
        status = HTTPStatus(code)
        self._write(_Answer(status=status, body=f"{status.phrase}\n".encode()))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Log nothing: a path may hold anything."""


class _UnixHandler(_Handler):
    """The same on a Unix socket, which has no packets to put off."""

    disable_nagle_algorithm = False
