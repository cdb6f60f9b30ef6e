"""What a client's target names: one server, a name that may stand for many, or several addresses."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

__all__ = ["Target"]

_SCHEME = re.compile(r"^([a-z0-9+.-]+):(?!\d+$)(?://[^/]*/|//)?", re.IGNORECASE)
_UNIX = ("unix:", "unix-abstract:")
_WEB = ("http://", "https://")
_SEVERAL = "several addresses are IP addresses with a port each, like '10.0.0.7:50051'"

_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect, in gRPC's own words, and what kind of place that is."""

    uri: str
    """What gRPC resolves."""
    shown: str
    """As the caller gave it."""
    is_loopback: bool
    """It cannot leave this machine, so that no proxy may stand between."""
    is_balanced: bool
    """It may stand for several servers: calls take turns over them."""
    authority: str | None = None
    """What to call the servers, where gRPC would make a name of all addresses together."""

    @classmethod
    def read(cls, target: str | Sequence[str]) -> Self:
        """Reads a target: one, or several addresses as a sequence or with commas between.

        Raises:
            TypeError: It is neither.
            ValueError: It is empty or begins with http://, or what stands among several is no address.

        >>> Target.read(["127.0.0.1:50051", "127.0.0.1:50052"]).uri
        'ipv4:127.0.0.1:50051,127.0.0.1:50052'
        """
        if not isinstance(target, str):
            if not isinstance(target, Sequence) or not all(isinstance(each, str) for each in target):
                raise TypeError(
                    f"target is a str like 'host:port', or several of them, not {type(target).__name__}"
                )
            target = ",".join(target)
        if not target:
            raise ValueError("target is empty; give 'host:port'")
        if target.lower().startswith(_WEB):
            raise ValueError(
                "target is an address of the web; give 'host:port' alone, and tls where it is encrypted"
            )
        return cls._several(target) if "," in target else cls._one(target)

    @classmethod
    def _one(cls, target: str) -> Self:
        if target.startswith(_UNIX):
            return cls(uri=target, shown=target, is_loopback=True, is_balanced=False)
        host = _host(target)
        address = _address(host)
        is_loopback = address.is_loopback if address is not None else host.lower() == "localhost"
        return cls(
            uri=target,
            shown=target,
            is_loopback=is_loopback,
            is_balanced=not is_loopback and address is None,
        )

    @classmethod
    def _several(cls, target: str) -> Self:
        places = [place.strip() for place in re.sub(r"^ipv[46]:", "", target).split(",")]
        addresses = [_checked_address(place) for place in places]
        versions = {address.version for address in addresses}
        if len(versions) > 1:
            raise ValueError("target mixes IPv4 and IPv6 addresses; gRPC takes several of one kind only")
        return cls(
            uri=f"ipv{versions.pop()}:{','.join(places)}",
            shown=target,
            is_loopback=all(address.is_loopback for address in addresses),
            is_balanced=True,
            authority=places[0],
        )


def _checked_address(place: str) -> _Ip:
    host = _host(place)
    address = _address(host)
    if address is None or not re.fullmatch(r"(?:\[.+\]|[^:]+):\d+", place):
        raise ValueError(
            f"{_SEVERAL}; {place!r} is none. A name that stands for all of them is a target by itself"
        )
    return address


def _host(target: str) -> str:
    rest = _SCHEME.sub("", target)
    if rest.startswith("["):
        return rest[1:].partition("]")[0]
    return rest.rpartition(":")[0] if rest.count(":") == 1 else rest


def _address(host: str) -> _Ip | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
