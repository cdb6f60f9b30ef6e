"""Host names of addresses to listen on."""

import errno
import socket

from tokend_server.config import Address

__all__ = ["Resolved", "resolve"]

Resolved = list[tuple[socket.AddressFamily, tuple[object, ...]]]


def resolve(address: Address, setting: str) -> Resolved:
    """Return the families and socket addresses that an address stands for.

    Args:
        address: Where to listen.
        setting: Which setting named it, for the error.

    Raises:
        OSError: The host name cannot be resolved; one line that names address and setting.
    """
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError) as problem:
        # Of a name that can be none, with an empty part or one that is too long, Python raises UnicodeError.
        reason = problem.strerror if isinstance(problem, OSError) else "it is no host name"
        raise OSError(
            errno.EADDRNOTAVAIL,
            f"cannot listen on {address} ({setting}): the name {address.host} cannot be resolved: {reason}",
        ) from None
    return [(family, sockaddr) for family, _, _, _, sockaddr in found]
