"""A peer that goes silent: TCP stays open, and nothing comes any more, as behind a cable that was pulled."""

import contextlib
import select
import socket
import threading
from typing import Self

__all__ = ["SilentProxy"]


class SilentProxy:
    """Passes bytes both ways until it is told to pass none; closes nothing meanwhile."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.n_connections = 0
        """Connections that were made to it so far."""
        self._silent = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def target(self) -> str:
        """Where to connect instead."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def fall_silent(self) -> None:
        """Pass nothing from now on."""
        self._silent.set()

    def _run(self) -> None:
        peers: dict[socket.socket, socket.socket] = {}
        while not self._closed.is_set():
            if self._silent.wait(0.0):
                self._closed.wait(0.05)
                continue
            ready, _, _ = select.select([self._listener, *peers], [], [], 0.05)
            for each in ready:
                if each is self._listener:
                    client, _ = each.accept()
                    self.n_connections += 1
                    server = socket.create_connection(self._target)
                    peers |= {client: server, server: client}
                    self._sockets += [client, server]
                else:
                    self._pass_on(each, peers)

    @staticmethod
    def _pass_on(source: socket.socket, peers: dict[socket.socket, socket.socket]) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = source.recv(65_536)
        sink = peers[source]
        if data:
            with contextlib.suppress(OSError):
                sink.sendall(data)
            return
        del peers[source]
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()
        for each in (self._listener, *self._sockets):
            each.close()
