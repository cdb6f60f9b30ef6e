"""How the text of a setting is read and shown: one `Kind` for each sort of value. config.py names the settings."""

import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "ADDRESS",
    "BOOLEAN",
    "FILE_MODE",
    "OPS_ADDRESS",
    "PATH",
    "Address",
    "Kind",
    "Nowhere",
    "UnixAddress",
    "choice",
    "count",
    "count_or_auto",
    "seconds",
    "size",
    "texts",
]

_UNIX = "unix:"
_SUFFIXES = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A sort of value."""

    parse: Callable[[str], Any]
    """Raises ValueError or KeyError for any text that is not `expected`."""
    expected: str
    """What a usable value looks like, for the error."""
    show: Callable[[Any], str]
    """Gives TOML that `parse` reads back."""
    toml_types: tuple[type, ...]
    """What a TOML file may hold besides a string that `parse` reads."""
    placeholder: str
    """What stands behind the flag in `--help`."""
    repeatable: bool = False
    """The value is a tuple; the flag may be given several times, the environment separates by commas."""
    boolean: bool = False
    """The flag takes no value and has a `--no-` twin."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """A TCP address to listen on; port 0 asks for a free one."""

    host: str
    port: int = field(default=0)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, kw_only=True, slots=True)
class UnixAddress:
    """A Unix socket to listen on."""

    path: str
    is_loopback = True

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class Nowhere:
    """What is switched off listens nowhere."""

    def __str__(self) -> str:
        return "off"


def _quoted(value: object) -> str:
    """Return a TOML basic string."""
    escaped = []
    for character in str(value):
        if character in '"\\':
            escaped.append("\\" + character)
        elif character < " " or character == "\x7f":
            escaped.append(f"\\u{ord(character):04X}")
        else:
            escaped.append(character)
    return '"' + "".join(escaped) + '"'


def _address(text: str) -> Address | UnixAddress:
    if text.startswith(_UNIX):
        path = text.removeprefix(_UNIX)
        # An absolute path; unix:///path is how gRPC writes it too.
        path = path.removeprefix("//")
        if not path.startswith("/") or "\0" in path:
            raise ValueError(text)
        return UnixAddress(path=path)
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    # A bare IPv6 host is refused: in ::1:50051 nobody can tell where the port begins.
    if not colon or not host or (":" in host) != bracketed:
        raise ValueError(text)
    return Address(host=host, port=_whole(port, 0, 65535))


def _boolean(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.lower()]


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError(text)
    return Path(text)


def _file_mode(text: str) -> int:
    if not re.fullmatch("0?[0-7]{3}", text, re.ASCII):
        raise ValueError(text)
    mode = int(text, 8)
    if mode & 0o600 != 0o600:
        raise ValueError(text)
    return mode


def _whole(text: str, minimum: int, maximum: int) -> int:
    digits = text.replace("_", "")
    # int() alone would read signs, spaces and other scripts' digits; a setting is written plainly.
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
        raise ValueError(text)
    number = int(digits)
    if not minimum <= number <= maximum:
        raise ValueError(text)
    return number


_TCP = "HOST:PORT with a port of 0 to 65535, as 127.0.0.1:50051, 0.0.0.0:50051 or [::1]:0"
ADDRESS = Kind(
    parse=_address,
    expected=f"{_TCP}, or unix:/PATH",
    show=_quoted,
    toml_types=(),
    placeholder="HOST:PORT|unix:/PATH",
)
OPS_ADDRESS = Kind(
    parse=lambda text: Nowhere() if text.lower() == "off" else _address(text),
    expected=f"{_TCP}, unix:/PATH, or off",
    show=_quoted,
    toml_types=(),
    placeholder="HOST:PORT|unix:/PATH|off",
)
BOOLEAN = Kind(
    parse=_boolean,
    expected="true or false",
    show=lambda value: str(value).lower(),
    toml_types=(bool,),
    placeholder="",
    boolean=True,
)
FILE_MODE = Kind(
    parse=_file_mode,
    expected="permission bits in octal, as 0600 or 0660, that let the owner read and write",
    show=lambda mode: f'"{mode:04o}"',
    toml_types=(),
    placeholder="MODE",
)
PATH = Kind(parse=_path, expected="the path of a file", show=_quoted, toml_types=(), placeholder="PATH")


def choice(*allowed: str) -> Kind:
    """Make the kind of a word from a fixed list, in any case; the value has the case of the list."""
    by_lower = {word.lower(): word for word in allowed}
    return Kind(
        parse=lambda text: by_lower[text.lower()],
        expected="one of " + ", ".join(allowed),
        show=_quoted,
        toml_types=(),
        placeholder="|".join(allowed),
    )


def count(minimum: int, maximum: int) -> Kind:
    """Make the kind of a whole number within bounds, both included."""
    return Kind(
        parse=lambda text: _whole(text, minimum, maximum),
        expected=f"a whole number of {minimum} to {maximum}",
        show=str,
        toml_types=(int,),
        placeholder="N",
    )


def count_or_auto(minimum: int, maximum: int) -> Kind:
    """Make the kind of a whole number within bounds, or the word `auto`, whose value is 0."""
    plain = count(minimum, maximum)
    return Kind(
        parse=lambda text: 0 if text.lower() == "auto" else plain.parse(text),
        expected=f"{plain.expected}, or auto",
        show=lambda value: str(value or '"auto"'),
        toml_types=(int,),
        placeholder="N|auto",
    )


def size(minimum: int, maximum: int) -> Kind:
    """Make the kind of a number of bytes within bounds, plain or with KiB, MiB, GiB, kB, MB or GB behind it."""

    def parse(text: str) -> int:
        digits = text.rstrip("bBkKmMgGiI ")
        unit = _SUFFIXES[text[len(digits) :].strip().lower()]
        n_bytes = _whole(digits, 0, maximum) * unit
        if not minimum <= n_bytes <= maximum:
            raise ValueError(text)
        return n_bytes

    def show(n_bytes: int) -> str:
        shown = show_size(n_bytes)
        return shown if shown.isdigit() else _quoted(shown)

    return Kind(
        parse=parse,
        expected=f"a number of bytes of {show_size(minimum)} to {show_size(maximum)}, as 65536 or 16MiB",
        show=show,
        toml_types=(int,),
        placeholder="BYTES",
    )


def show_size(n_bytes: int) -> str:
    """Return a number of bytes with the largest binary unit that divides it: 16777216 is 16MiB."""
    for suffix in ("GiB", "MiB", "KiB"):
        unit = _SUFFIXES[suffix.lower()]
        if n_bytes and n_bytes % unit == 0:
            return f"{n_bytes // unit}{suffix}"
    return str(n_bytes)


def seconds(minimum: float, maximum: float) -> Kind:
    """Make the kind of a duration in seconds within bounds, both included; fractions are allowed."""

    def parse(text: str) -> float:
        duration_s = float(text)
        # Written so that NaN is refused too.
        if not minimum <= duration_s <= maximum:
            raise ValueError(text)
        return duration_s

    return Kind(
        parse=parse,
        expected=f"a number of seconds of {minimum:g} to {maximum:g}",
        show=repr,
        toml_types=(int, float),
        placeholder="SECONDS",
    )


def texts(placeholder: str) -> Kind:
    """Make the kind of a list of strings: a repeated flag, a comma-separated variable, a TOML array."""

    def show(value: Sequence[str]) -> str:
        return "[" + ", ".join(map(_quoted, value)) + "]"

    def parse(text: str) -> str:
        if not text:
            raise ValueError(text)
        return text

    return Kind(
        parse=parse,
        expected="a list of strings that are not empty",
        show=show,
        toml_types=(),
        placeholder=placeholder,
        repeatable=True,
    )
