"""Unary gRPC calls from memory: many at a time, and cheap enough that the server is what is measured.

A client of grpcio's costs more than the servers it would measure. This one writes HTTP/2 frames that are made
beforehand and looks at nothing of an answer but whether it has a message.

Source: RFC 9113 (frames), RFC 7541 (header block), and gRPC's PROTOCOL-HTTP2.
"""

import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Load", "run_calls"]

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM = _ACK = 1
_END_HEADERS = 4
_FRAME_HEADER = 9
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_LARGEST_WINDOW = 2**31 - 1
_FIRST_WINDOW = 65_535
_LARGEST_MESSAGE = 16_000
_READ_BYTES = 1 << 18
_SILENT_S = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What a pass of calls came to."""

    n_done: int
    took_s: float


def run_calls(
    target: str,
    method: str,
    messages: Sequence[bytes],
    *,
    seconds: float,
    connections: int = 4,
    width: int = 16,
) -> Load:
    """Calls a method with one message after the other, until the time is over or they are used up.

    Args:
        target: Where the server listens, `host:port`.
        method: Its full name, `/package.Service/Method`.
        messages: Serialized requests; each is sent once.
        seconds: How long new calls begin.
        connections: TCP connections.
        width: Calls that each of them has in flight.

    Raises:
        RuntimeError: A call was refused, or the server went away or silent.
    """
    waiting = iter(messages)
    with selectors.DefaultSelector() as selector:
        opened = [_Connection(target, method) for _ in range(connections)]
        try:
            for connection in opened:
                selector.register(connection.socket, selectors.EVENT_READ, connection)
            start_s = time.perf_counter()
            end_s = start_s + seconds
            for connection in opened:
                connection.call(waiting, width)
            while any(connection.n_open for connection in opened):
                ready = selector.select(_SILENT_S)
                if not ready:
                    raise RuntimeError("the server has not answered for 20 s")
                now_s = time.perf_counter()
                for key, _ in ready:
                    connection = key.data
                    connection.receive()
                    connection.call(waiting if now_s < end_s else iter(()), width)
            took_s = time.perf_counter() - start_s
        finally:
            for connection in opened:
                connection.socket.close()
    return Load(n_done=sum(connection.n_done for connection in opened), took_s=took_s)


class _Connection:
    """One HTTP/2 connection."""

    def __init__(self, target: str, method: str) -> None:
        host, _, port = target.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.n_open = 0
        self.n_done = 0
        self._next_stream = 1
        self._window = _FIRST_WINDOW
        self._rest = b""
        self._with_message: set[int] = set()
        headers = [
            (b":path", method.encode()),
            (b":authority", target.encode()),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            (b"user-agent", b"tokend-bench"),
        ]
        # The first call teaches the server's table its headers (method POST and scheme http stand in the static
        # one); later calls name their places there, as clients do.
        literal = b"".join(_literal(name, value) for name, value in headers)
        self._first_block: bytes | None = b"\x83\x86" + literal
        self._block = b"\x83\x86" + bytes(0x80 | (62 + n) for n in reversed(range(len(headers))))
        settings = (4).to_bytes(2, "big") + _LARGEST_WINDOW.to_bytes(4, "big")
        wider = (_LARGEST_WINDOW - _FIRST_WINDOW).to_bytes(4, "big")
        self.socket.sendall(
            _PREFACE + _frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW_UPDATE, 0, 0, wider)
        )

    def call(self, messages: Iterator[bytes], width: int) -> None:
        """Begin calls until so many are in flight."""
        frames = []
        while self.n_open < width and self._window >= _LARGEST_MESSAGE:
            message = next(messages, None)
            if message is None:
                break
            if len(message) > _LARGEST_MESSAGE - 5:
                raise ValueError("a message is too large for one frame")
            block, self._first_block = self._first_block or self._block, None
            body = b"\0" + len(message).to_bytes(4, "big") + message
            frames.append(_frame(_HEADERS, _END_HEADERS, self._next_stream, block))
            frames.append(_frame(_DATA, _END_STREAM, self._next_stream, body))
            self._window -= len(body)
            self._next_stream += 2
            self.n_open += 1
        if frames:
            self.socket.sendall(b"".join(frames))

    def receive(self) -> None:
        """Take what has come."""
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise RuntimeError("the server has closed a connection")
        data, at = self._rest + data, 0
        while len(data) - at >= _FRAME_HEADER:
            end = at + _FRAME_HEADER + int.from_bytes(data[at : at + 3], "big")
            if end > len(data):
                break
            stream = int.from_bytes(data[at + 5 : at + 9], "big")
            self._take(data[at + 3], data[at + 4], stream, data[at + _FRAME_HEADER : end])
            at = end
        self._rest = data[at:]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _DATA:
            if payload:
                self._with_message.add(stream)
        elif kind == _HEADERS:
            if flags & _END_STREAM:
                if stream not in self._with_message:
                    raise RuntimeError("a call was refused")
                self._with_message.discard(stream)
                self.n_open -= 1
                self.n_done += 1
        elif kind == _WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind in {_SETTINGS, _PING} and not flags & _ACK:
            self.socket.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind in {_RST_STREAM, _GOAWAY}:
            raise RuntimeError("the server has ended a call or its connection")


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """A header that goes into the table; all are shorter than 127 bytes."""
    return b"\x40" + bytes((len(name),)) + name + bytes((len(value),)) + value
