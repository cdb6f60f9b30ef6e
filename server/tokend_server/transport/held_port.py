"""A TCP port that several processes listen on, held by one that does not.

The kernel spreads connections over the sockets that listen on a port with SO_REUSEPORT. It also lets everybody join
who sets that option, so that two servers would share a port without a word. Whoever holds the port keeps others out.
"""

import contextlib
import errno
import socket

from tokend_server.config import Address
from tokend_server.transport.host_names import resolve

__all__ = ["HeldPort"]

_WILDCARD = "0.0.0.0"  # noqa: S104 (compared with, not bound)
# A family or an address that this machine does not have; another one of the same name may do.
_ABSENT = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


class HeldPort:
    """A bound port that takes no connections. It is free again when every process has closed it."""

    def __init__(self, address: Address, *, shared: bool) -> None:
        """Take the port.

        Args:
            address: Where; port 0 takes a free one.
            shared: Whether others may be there already, or come later.

        Raises:
            OSError: The port is in use, the address is not this machine's, or the name is not known; the message names it and the setting.
        """
        self._sockets: list[socket.socket] = []
        port, absent, addresses = address.port, None, _addresses(address)
        try:
            for family, sockaddr in addresses:
                try:
                    held = _hold(family, (sockaddr[0], port, *sockaddr[2:]), exclusively=not shared)
                except OSError as problem:
                    if problem.errno not in _ABSENT:
                        raise
                    absent = problem
                    continue
                self._sockets.append(held)
                port = held.getsockname()[1]
            if not self._sockets:
                raise absent or OSError("the name has no address")
        except OSError as problem:
            self.close()
            reason = problem.strerror or str(problem)
            raise OSError(problem.errno, f"cannot listen on {address} (listen): {reason}") from None
        self.address = Address(host=address.host, port=port)

    def close(self) -> None:
        """Let go of the port in this process."""
        for each in self._sockets:
            each.close()


def _addresses(address: Address) -> list[tuple[socket.AddressFamily, tuple[object, ...]]]:
    """Return what gRPC will bind for an address."""
    found = resolve(address, "listen")
    if address.host == _WILDCARD and socket.has_dualstack_ipv6():
        # Of this wildcard gRPC makes one socket for both families.
        return [(socket.AF_INET6, ("::", address.port, 0, 0))]
    if address.host.lower() == "localhost" and all(family != socket.AF_INET6 for family, _ in found):
        # gRPC knows both loopbacks by this name, whatever the machine's own table says.
        found.append((socket.AF_INET6, ("::1", address.port, 0, 0)))
    return found


def _hold(family: socket.AddressFamily, sockaddr: tuple[object, ...], *, exclusively: bool) -> socket.socket:
    """Bind a socket that lets listeners of the same user join, once it is sure that there was none."""
    held = _socket(family)
    try:
        with contextlib.ExitStack() as stack:
            if exclusively:
                # Only an attempt to listen without SO_REUSEPORT is refused by everybody who listens or holds. It
                # stands until the port is held, so that no other server comes between.
                probe = stack.enter_context(_socket(family))
                probe.bind(sockaddr)
                probe.listen(1)
                sockaddr = probe.getsockname()
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(sockaddr)
            # The option that passes over an earlier server's closed connections would let others pass over us.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:
        held.close()
        raise
    return held


def _socket(family: socket.AddressFamily) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        # As gRPC binds: an IPv6 wildcard is for both families.
        with contextlib.suppress(OSError):
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return made
