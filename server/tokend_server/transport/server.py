"""The gRPC server itself: its port, its options, its threads, its way of stopping."""

import time
from collections.abc import Callable
from typing import Any

import grpc

from tokend_server.certificates import ServerCertificate
from tokend_server.config import Address, UnixAddress
from tokend_server.cores import interrupting_nobody
from tokend_server.metrics import Metrics
from tokend_server.transport.calls import CallScope
from tokend_server.transport.companions import Companions
from tokend_server.transport.fronts import listen
from tokend_server.transport.grpcio_calls import GrpcioCalls
from tokend_server.transport.routing import SERVICE, Router, UnknownMethods
from tokend_server.transport.serving_thread import stop_that_began
from tokend_server.transport.tls import server_credentials

__all__ = ["GrpcServer"]

# Above gRPC's own default of 1,000 it refuses bursts of new streams.
_MAX_PENDING_REQUESTS = 16_384
# Of one stream, beyond the message that is read: enough for 1 GB/s at a round trip of a millisecond.
_READ_AHEAD_BYTES = 1 << 20
# A client may ping each 10 s, as many do; gRPC's default of 5 minutes would end its connection.
_MIN_PING_INTERVAL_MS = 5_000
# How long a client may take to answer our own ping.
_MOST_PING_ANSWER_S = 20.0


class GrpcServer:
    """One gRPC server on one port, with health and reflection beside the service."""

    def __init__(
        self,
        address: Address | UnixAddress,
        router: Router,
        scope: CallScope,
        metrics: Metrics,
        *,
        front: str,
        socket_mode: int,
        reflection: bool,
        certificate: Callable[[], ServerCertificate] | None,
        keepalive_s: float,
        max_connection_age_s: float | None,
        max_connection_age_grace_s: float | None,
        max_metadata_bytes: int,
        max_message_bytes: int,
        share_port: bool,
    ) -> None:
        """Bind the port.

        Args:
            address: Where to listen; port 0 takes a free one.
            router: Makes the handlers of our own service.
            scope: What its calls share with reflection: who may call.
            metrics: Counts the calls that nothing serves.
            front: What listens, `grpcio` or `native`; behind a native front this server has the streams.
            socket_mode: Who may connect to a Unix socket, by its file mode.
            reflection: Whether reflection is answered.
            certificate: Returns what new connections are shown; None: no TLS. Not with the native front.
            keepalive_s: How long a connection may be silent before its client is asked whether it is still there.
            max_connection_age_s: After how long a connection's client is to make a new one; None: never. Not with the
                native front.
            max_connection_age_grace_s: How long what is open on it may go on; None: to its end.
            max_metadata_bytes: Most metadata of one call.
            max_message_bytes: Largest message, either way.
            share_port: Let other servers listen on the same port.

        Raises:
            OSError: The address cannot be bound, or the front is not installed.
        """
        self._threads = router.threads
        keepalive_ms = (round(keepalive_s * 1000), round(min(keepalive_s, _MOST_PING_ANSWER_S) * 1000))
        # The first server of a process starts the threads that read and write its sockets.
        with interrupting_nobody():
            self._server = grpc.server(
                GrpcioCalls(self._threads),
                options=[
                    ("grpc.max_receive_message_length", max_message_bytes),
                    ("grpc.max_send_message_length", max_message_bytes),
                    ("grpc.so_reuseport", int(share_port)),
                    ("grpc.server.max_pending_requests", _MAX_PENDING_REQUESTS),
                    # One hard limit: between a soft and a hard one gRPC refuses at random.
                    # By itself gRPC reads ever further ahead of a stream that is not read on: tens of MB for each.
                    ("grpc.http2.bdp_probe", 0),
                    ("grpc.http2.lookahead_bytes", _READ_AHEAD_BYTES),
                    ("grpc.max_metadata_size", max_metadata_bytes),
                    ("grpc.absolute_max_metadata_size", max_metadata_bytes),
                    *_ages(max_connection_age_s, max_connection_age_grace_s),
                    ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
                    ("grpc.keepalive_time_ms", keepalive_ms[0]),
                    ("grpc.keepalive_timeout_ms", keepalive_ms[1]),
                    # Without it a ping has a minute, whatever the line above says (tried with grpcio 1.85).
                    ("grpc.http2.ping_timeout_ms", keepalive_ms[1]),
                    ("grpc.keepalive_permit_without_calls", 1),
                    # A client of which nothing is heard is sent nothing either: its pings must not run out.
                    ("grpc.http2.max_pings_without_data", 0),
                ],
            )
        self._server.add_generic_rpc_handlers((router,))
        self._companions = Companions(self._server, SERVICE.full_name, scope, reflection=reflection)
        self._server.add_generic_rpc_handlers((UnknownMethods(metrics),))
        self._front = listen(
            front,
            address,
            self._server,
            router,
            self._threads,
            credentials=None if certificate is None else server_credentials(certificate),
            socket_mode=socket_mode,
            max_message_bytes=max_message_bytes,
            max_metadata_bytes=max_metadata_bytes,
            keepalive_ms=keepalive_ms,
            share_port=share_port,
        )
        self.address = self._front.address
        self._stopping: Any = None

    def start(self) -> None:
        """Listen; calls are answered as admission lets them in."""
        self._server.start()
        self._front.start()

    def set_serving(self, *, serving: bool) -> None:
        """Tell `grpc.health.v1`, for the whole server and for the service by name."""
        self._companions.set_serving(serving=serving)

    def begin_stop(self, grace_s: float) -> None:
        """Tell every client to take its next call elsewhere (GOAWAY); calls and streams that are open go on.

        Args:
            grace_s: After so long, what is still open is cancelled.
        """
        self._deadline_s = time.monotonic() + grace_s
        if self._front.sends_clients_away:
            self._stop_server()

    def finish_stop(self) -> None:
        """Wait for the calls that are open, and let go of everything."""
        if self._stopping is None:
            self._stop_server()
        if not self._stopping.wait(self._time_left_s()):
            # gRPC's own thread does it at the same time, where there was one to be had.
            self._server.stop(None).wait()
        self._front.close(self._time_left_s())
        self._threads.shutdown()

    def _stop_server(self) -> None:
        try:
            self._stopping = self._server.stop(self._time_left_s())
        except RuntimeError:
            # The system lets no more threads be started, and gRPC wanted one to wait for the end of the grace.
            self._stopping = stop_that_began(self._server)
        # A watch that came through a proxy speaks for this server alone: its client asks again, and gets another.
        self._companions.end_streams()

    def _time_left_s(self) -> float:
        return max(0.0, self._deadline_s - time.monotonic())


def _ages(age_s: float | None, grace_s: float | None) -> list[tuple[str, int]]:
    """Return gRPC's options for the age of connections; it varies the age by a tenth by itself."""
    named = {"grpc.max_connection_age_ms": age_s, "grpc.max_connection_age_grace_ms": grace_s}
    return [(name, round(value_s * 1000)) for name, value_s in named.items() if value_s is not None]
