"""The native front: HTTP/2 and gRPC in Rust, outside the GIL, before the grpcio server.

It takes the unary calls of TokenizerService itself and answers them with the same methods. Everything else (streams,
health, reflection, unknown methods) it passes to the grpcio server, which listens on a Unix socket of its own.
docs/adr/0012-native-front.md has the figures, what it cannot do, and what is worked around here.
"""

import contextlib
import io
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from pygrpc_native import EVENT_CALL, NativeGrpcFront

from tokend_server import logs
from tokend_server.config import Address
from tokend_server.cores import interrupting_nobody
from tokend_server.transport.host_names import resolve
from tokend_server.transport.routing import Router
from tokend_server.transport.status import Metadata
from tokend_server.transport.threads import CallThreads
from tokend_server.transport.unary import TakenCall, UnaryMethod

__all__ = ["NativeFront"]

_log = logs.get("native_front")

_RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
# Threads that receive calls and answer the small ones at once; more of them only take the GIL from each other.
_RECEIVERS = 4
# A receiver answers so many small calls in a row; the last of them waits for the others.
_CALLS_AT_ONCE = 8
# The front's end wakes one receiver alone; the others look for themselves.
_RECEIVE_MS = 200
# As in grpcio, which has no limit unless told.
_MAX_STREAMS = 2**31 - 1
# Above our own limit, which gives the status that grpcio gives. What is above this too ends with status UNKNOWN.
_METADATA_BYTES_READ = 2**20
# HTTP/2 counts so much for each pair, besides its text.
_METADATA_PAIR_BYTES = 32
# The front does not pass on that a client has left whose stream is blocked both ways, so such a stream ends by time.
_STALLED_S = 60.0
_POLL_S = 0.01
_LAST_BYTES_S = 0.05

_Metadata = Sequence[tuple[str, str | bytes]]


class _NativeCall(TakenCall):
    """A unary call that the front handed over."""

    __slots__ = ("_call_id", "_deadline_s", "_native", "_not_begun", "left")
    # The front knows no metadata of gRPC's own but the details.
    pushback = False

    def __init__(
        self,
        method: UnaryMethod[Any],
        metadata: _Metadata,
        *,
        native: NativeGrpcFront,
        call_id: int,
        remaining_s: float | None,
        not_begun: "dict[int, _NativeCall]",
    ) -> None:
        super().__init__(method, metadata)
        self._native = native
        self._call_id = call_id
        self._deadline_s = None if remaining_s is None else time.monotonic() + remaining_s
        self._not_begun = not_begun
        not_begun[call_id] = self
        self.left = False
        """The caller has cancelled before the work began."""

    def begins(self) -> bool:
        """Look whether the caller is still there, and its time not over; cancelling has no effect from here on."""
        del self._not_begun[self._call_id]
        return not self.left and self.time_remaining() != 0

    def time_remaining(self) -> float | None:
        """Return the seconds to the deadline, if there is one; 0 when it has passed."""
        return None if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())

    def respond(self, reply: bytes, trailer: Metadata) -> bool:
        """Send the answer."""
        return self._native.respond(self._call_id, reply, None, trailer)

    def fail(self, code: int, message: str, trailer: Metadata) -> None:
        """Send a status."""
        self._native.fail(self._call_id, code, message, trailer)


class NativeFront:
    """Listens in place of the grpcio server, and answers the unary calls."""

    # Its one way to say GOAWAY is its end.
    sends_clients_away = False

    def __init__(
        self,
        address: Address,
        server: grpc.Server,
        router: Router,
        threads: CallThreads,
        *,
        max_message_bytes: int,
        max_metadata_bytes: int,
        keepalive_ms: tuple[int, int],
        share_port: bool,
    ) -> None:
        """Bind the port, and a Unix socket for the grpcio server.

        Args:
            address: Where to listen; port 0 takes a free one.
            server: Answers what is passed on; not started yet.
            router: Has the unary methods.
            threads: What answers unary calls that are not small.
            max_message_bytes: Largest message, either way.
            max_metadata_bytes: Most metadata of one call.
            keepalive_ms: After how long a silence a client is asked whether it is there, and how long it may take to say so.
            share_port: Let other servers listen on the same port.

        Raises:
            OSError: The address cannot be bound, or there is no folder for the socket.
        """
        self._max_message_bytes = max_message_bytes
        self._max_metadata_bytes = max_metadata_bytes
        self._router = router
        self._threads = threads
        self._methods: Sequence[UnaryMethod[Any]] = tuple(router.unary.values())
        self._not_begun: dict[int, _NativeCall] = {}
        self._closed = threading.Event()
        self._running: list[threading.Thread] = []
        try:
            # It prints in its own words why it cannot bind.
            with contextlib.redirect_stderr(io.StringIO()):
                self._native = NativeGrpcFront(
                    str(address),
                    [(path, False) for path in router.unary],
                    call_details=True,
                    max_concurrent_streams=_MAX_STREAMS,
                    max_metadata_size=_METADATA_BYTES_READ,
                    keepalive_time_ms=keepalive_ms[0],
                    keepalive_timeout_ms=keepalive_ms[1],
                    keepalive_permit_without_calls=True,
                    reuse_port=share_port,
                    # Only these tell when an answer is on its way, which a stop has to wait for.
                    metrics=True,
                )
        except OSError as problem:
            resolve(address, "listen")
            raise OSError(
                problem.errno,
                f"cannot listen on {address} (listen): the port is in use, or the address is not this machine's",
            ) from None
        self.address = Address(host=address.host, port=self._native.bound_port)
        self._folder = _private_folder()
        try:
            socket_path = str(self._folder / "grpc.sock")
            server.add_insecure_port(f"unix:{socket_path}")
        except RuntimeError:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._native.close()
            raise OSError(
                0, f"front: no Unix socket can be made in {self._folder}; name another folder in TMPDIR"
            ) from None
        self._native.set_fallback(socket_path)

    def start(self) -> None:
        """Let clients in."""
        with interrupting_nobody():
            self._native.start()
        for run, name in [(self._receive, "tokend-native")] * _RECEIVERS + [(self._watch, "tokend-stalled")]:
            thread = threading.Thread(target=run, name=name, daemon=True)
            thread.start()
            self._running.append(thread)

    def close(self, within_s: float) -> None:
        """Send what is answered, close all connections, and let go of port and socket.

        Args:
            within_s: How long calls in work, and answers on their way, may take.
        """
        deadline_s = time.monotonic() + within_s
        while self._n_open() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        # What is sent has left for the socket; a moment for what is still being written there.
        time.sleep(_LAST_BYTES_S)
        self._closed.set()
        self._native.close()
        for thread in self._running:
            thread.join(timeout=1)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _n_open(self) -> int:
        """Count the calls that are not answered to the last byte, those that were passed on included."""
        counted = self._native.metrics()
        if counted is None:
            return 0
        return sum(
            method["started"] - sum(ended["count"] for ended in method["status"].values())
            for method in counted["methods"].values()
        )

    def _watch(self) -> None:
        while not self._closed.wait(_STALLED_S / 4):
            n_streams = self._router.live.end_stalled(_STALLED_S)
            if n_streams:
                _log.warning(
                    "streams ended whose clients took no answer", n_streams=n_streams, after_s=_STALLED_S
                )

    def _receive(self) -> None:
        """Take calls until the front closes."""
        while (events := self._native.recv_batch_details(_CALLS_AT_ONCE, _RECEIVE_MS)) is not None:
            for kind, call_id, number, data, _, details in events:
                if kind == EVENT_CALL and data is not None and details is not None:
                    metadata, _, remaining_s = details
                    if not self._admits(call_id, self._methods[number], data, metadata):
                        continue
                    call = _NativeCall(
                        self._methods[number],
                        metadata,
                        native=self._native,
                        call_id=call_id,
                        remaining_s=remaining_s,
                        not_begun=self._not_begun,
                    )
                    call.take(data, self._threads)
                elif (waiting := self._not_begun.get(call_id)) is not None:
                    # It need not be begun any more. In a call that is in work there is nothing to stop.
                    waiting.left = True

    def _admits(self, call_id: int, method: UnaryMethod[Any], data: bytes, metadata: _Metadata) -> bool:
        """Refuse what grpcio refuses before a handler sees it, in its words."""
        metadata_bytes = sum([len(key) + len(value) + _METADATA_PAIR_BYTES for key, value in metadata])
        if len(data) > self._max_message_bytes:
            reason = f"Received message larger than max ({len(data)} vs. {self._max_message_bytes})"
        elif metadata_bytes > self._max_metadata_bytes:
            reason = f"Received metadata larger than max ({metadata_bytes} vs. {self._max_metadata_bytes})"
        else:
            return True
        self._native.fail(call_id, _RESOURCE_EXHAUSTED, f"SERVER: {reason}")
        method.arrived(metadata).end(_RESOURCE_EXHAUSTED)
        return False


def _private_folder() -> Path:
    """Make a folder for the socket that nobody else can reach; a read-only root file system has one in memory."""
    for parent in (None, "/dev/shm"):  # noqa: S108 (mkdtemp makes a folder of this user's alone)
        try:
            return Path(tempfile.mkdtemp(prefix="tokend-", dir=parent))
        except OSError:
            continue
    raise OSError(0, "front: native needs a folder for a Unix socket; name one that can be written in TMPDIR")
