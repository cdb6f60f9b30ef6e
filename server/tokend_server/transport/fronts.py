"""What listens on the port: grpcio's own server, or the native front before it. Chosen by the setting `front`."""

import errno
from typing import Protocol

import grpc

from tokend_server.config import Address, UnixAddress
from tokend_server.transport.host_names import resolve
from tokend_server.transport.routing import Router
from tokend_server.transport.threads import CallThreads
from tokend_server.transport.unix_socket import UnixSocketFile

__all__ = ["Front", "listen"]

_MISSING = "front: native needs the package pygrpc-native; install tokend[native], or take --front grpcio"


class Front(Protocol):
    """The listener of one server. Behind it is a grpcio server, which starts before it and stops before it."""

    sends_clients_away: bool
    """Its clients hear of the server's stop at once and leave; else the server has to stay for them, and refuse."""

    @property
    def address(self) -> Address | UnixAddress:
        """Where it really listens."""
        ...

    def start(self) -> None:
        """Let clients in."""
        ...

    def close(self, within_s: float) -> None:
        """Let go of the port, once what was answered is sent, or after a time."""
        ...


def listen(
    name: str,
    address: Address | UnixAddress,
    server: grpc.Server,
    router: Router,
    threads: CallThreads,
    *,
    credentials: grpc.ServerCredentials | None,
    socket_mode: int,
    max_message_bytes: int,
    max_metadata_bytes: int,
    keepalive_ms: tuple[int, int],
    share_port: bool,
) -> Front:
    """Bind the port of a server.

    Args:
        name: `grpcio` or `native`.
        address: Where to listen; port 0 takes a free one.
        server: Answers what the front does not; not started yet.
        router: Has the unary methods, for a front that answers them itself.
        threads: What answers unary calls.
        credentials: For TLS, which the native front has not; None: none.
        socket_mode: Who may connect to a Unix socket, by its file mode.
        max_message_bytes: Largest message, either way.
        max_metadata_bytes: Most metadata of one call.
        keepalive_ms: After how long a silence a client is asked whether it is there, and how long it may take to say so.
        share_port: Let other servers listen on the same port.

    Raises:
        OSError: The address cannot be bound, or the front is not installed; one line says which.
    """
    if name == "grpcio":
        return _GrpcioFront(address, server, credentials, socket_mode)
    if not isinstance(address, Address):
        raise OSError(errno.EADDRNOTAVAIL, f"the native front cannot listen on {address} (listen)")
    try:
        # It is an extra: who does not ask for it need not have it.
        from tokend_server.transport.native_front import NativeFront  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        if missing.name != "pygrpc_native":
            raise
        raise OSError(errno.ENOENT, _MISSING) from None
    return NativeFront(
        address,
        server,
        router,
        threads,
        max_message_bytes=max_message_bytes,
        max_metadata_bytes=max_metadata_bytes,
        keepalive_ms=keepalive_ms,
        share_port=share_port,
    )


class _GrpcioFront:
    """The grpcio server's own port; the server starts and stops it."""

    sends_clients_away = True

    def __init__(
        self,
        address: Address | UnixAddress,
        server: grpc.Server,
        credentials: grpc.ServerCredentials | None,
        socket_mode: int,
    ) -> None:
        self._server, self._credentials = server, credentials
        self._file: UnixSocketFile | None = None
        self.address = address
        if isinstance(address, Address):
            self.address = Address(host=address.host, port=self._bind(address))
        else:
            self._file = UnixSocketFile(address, "listen", socket_mode)
            with self._file.bound():
                self._bind(address)

    def _bind(self, address: Address | UnixAddress) -> int:
        try:
            if self._credentials is None:
                return self._server.add_insecure_port(str(address))
            return self._server.add_secure_port(str(address), self._credentials)
        except RuntimeError:
            if isinstance(address, Address):
                # gRPC does not tell of a name that has no address; only now, since it knows some by itself.
                resolve(address, "listen")
            raise OSError(
                errno.EADDRNOTAVAIL,
                f"cannot listen on {address} (listen): the port is in use, or the address is not this machine's",
            ) from None

    def start(self) -> None:
        """Do nothing: the server listens since it started."""

    def close(self, within_s: float) -> None:
        """Remove a Unix socket's file; the server has stopped listening."""
        del within_s
        if self._file is not None:
            self._file.remove()
