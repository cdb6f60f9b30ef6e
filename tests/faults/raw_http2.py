"""HTTP/2 by hand, for clients that misbehave in ways that gRPC's own would not."""

import contextlib
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
from hyperframe.frame import ContinuationFrame, HeadersFrame

__all__ = ["RawHttp2", "connected"]


class RawHttp2:
    """One connection, on which calls are opened and then left in one bad way or another."""

    def __init__(self, peer: socket.socket) -> None:
        self._socket = peer
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self._h2.initiate_connection()
        self.is_cut = False
        """The server has had enough: it has closed the connection, or said that it will."""
        self._flush()

    def open(
        self, method: str, *, message: bytes | None = None, metadata: tuple[tuple[str, str], ...] = ()
    ) -> int:
        """Open a call, with one message if there is one; gives its stream."""
        stream = self._h2.get_next_available_stream_id()
        headers = [
            *((":method", "POST"), (":scheme", "http"), (":authority", "flood")),
            *((":path", f"/tokend.v1.TokenizerService/{method}"), ("te", "trailers")),
            ("content-type", "application/grpc"),
            *metadata,
        ]
        self._h2.send_headers(stream, headers)
        if message is not None:
            with contextlib.suppress(h2.exceptions.FlowControlError):
                self._h2.send_data(stream, struct.pack(">BI", 0, len(message)) + message)
        self._flush()
        return stream

    def reset(self, stream: int) -> None:
        """Leave a call, if the server has not ended it meanwhile."""
        with contextlib.suppress(h2.exceptions.StreamClosedError):
            self._h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        self._flush()

    def endless_headers(self, block: bytes) -> None:
        """Begin a call's headers with one frame, or go on with them, and never end them."""
        frame = ContinuationFrame(1) if self._begun else HeadersFrame(1)
        frame.data = block
        self._begun = True
        self._write(frame.serialize())

    _begun = False

    def hear(self) -> None:
        """Take what the server has sent, without waiting."""
        while not self.is_cut and select.select([self._socket], [], [], 0)[0]:
            try:
                data = self._socket.recv(65_536)
                events = self._h2.receive_data(data) if data else None
            except (OSError, h2.exceptions.ProtocolError):
                events = None
            if events is None or any(isinstance(each, h2.events.ConnectionTerminated) for each in events):
                self.is_cut = True
        self._flush()

    def _flush(self) -> None:
        self._write(self._h2.data_to_send())

    def _write(self, data: bytes) -> None:
        if data and not self.is_cut:
            try:
                self._socket.sendall(data)
            except OSError:
                self.is_cut = True


@contextmanager
def connected(target: str) -> Iterator[RawHttp2]:
    """Connect, for as long as the block lasts."""
    host, _, port = target.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as peer:
        yield RawHttp2(peer)
