"""The flags that say which server to call and how, and the client that they make."""

import argparse
import os
from pathlib import Path

from tokend import Client, Tls
from tokend._cli.failures import bad_input
from tokend._target import Target

__all__ = ["add_connection_flags", "connect"]

_DEFAULT_TARGET = "127.0.0.1:50051"
_DEFAULT_TIMEOUT_S = "30"
_SHA256_DIGITS = 64
_PREFIX = "TOKEND_CLIENT_"


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    """Gives a command the flags of its connection; the environment gives their defaults."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--target",
        default=os.environ.get("TOKEND_TARGET") or _DEFAULT_TARGET,
        metavar="HOST:PORT",
        help=f"the server, or several with commas between (TOKEND_TARGET; default: {_DEFAULT_TARGET})",
    )
    group.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help=f"longest wait for an answer, inf for no limit (TOKEND_TIMEOUT_S; default: {_DEFAULT_TIMEOUT_S})",
    )
    group.add_argument(
        "--expected-fingerprint",
        type=_fingerprint,
        metavar="SHA256",
        help="fail if the server has another tokenizer file",
    )
    group.add_argument(
        "--auth-token",
        default=os.environ.get("TOKEND_TOKEN") or None,
        metavar="TOKEN",
        help="sent as a bearer token; better given as TOKEND_TOKEN, since other users see flags",
    )
    group.add_argument(
        "--allow-plaintext-token",
        action="store_true",
        default=_switch("ALLOW_PLAINTEXT_TOKEN"),
        help="let the token leave this machine unencrypted, where something else encrypts it",
    )
    group.add_argument(
        "--tls",
        action="store_true",
        default=_switch("TLS"),
        help="encrypt; the other --tls flags imply it (each also TOKEND_CLIENT_TLS...)",
    )
    for flag, value, meaning in (
        ("ca", "FILE", "PEM of the authorities to trust"),
        ("cert", "FILE", "PEM of the client's certificates"),
        ("key", "FILE", "PEM of the client's key"),
        ("server-name", "NAME", "the name in the server's certificate"),
    ):
        group.add_argument(
            f"--tls-{flag}",
            default=os.environ.get(f"{_PREFIX}TLS_{flag.upper().replace('-', '_')}") or None,
            metavar=value,
            help=meaning,
        )


def connect(arguments: argparse.Namespace) -> Client:
    """The client that a command line asks for; it connects at its first call."""
    tls = _tls(arguments)
    try:
        target = Target.read(arguments.target)
    except ValueError as error:
        said = "TOKEND_TARGET" if arguments.target == os.environ.get("TOKEND_TARGET") else "--target"
        raise bad_input(f"{said}: {error}") from error
    if arguments.auth_token and not (tls or arguments.allow_plaintext_token or target.is_loopback):
        raise bad_input(
            f"the token would go to {arguments.target} unencrypted; --tls or --tls-ca encrypts, --allow-plaintext-token "
            "sends it all the same"
        )
    return Client(
        arguments.target,
        timeout_s=_default_timeout_s() if arguments.timeout is None else arguments.timeout,
        expected_fingerprint=arguments.expected_fingerprint,
        token=arguments.auth_token,
        tls=tls,
        allow_plaintext_token=arguments.allow_plaintext_token,
    )


def _switch(name: str) -> bool:
    value = os.environ.get(_PREFIX + name, "").lower()
    if value not in {"", "0", "1", "false", "true"}:
        raise bad_input(f"{_PREFIX}{name} is neither true nor false")
    return value in {"1", "true"}


def _tls(arguments: argparse.Namespace) -> Tls | None:
    given = (arguments.tls_ca, arguments.tls_cert, arguments.tls_key, arguments.tls_server_name)
    if not arguments.tls and not any(given):
        return None
    if bool(arguments.tls_cert) != bool(arguments.tls_key):
        raise bad_input("--tls-cert and --tls-key go together: give both or neither")
    return Tls(
        root_certificates=_pem(arguments.tls_ca),
        certificate_chain=_pem(arguments.tls_cert),
        private_key=_pem(arguments.tls_key),
        server_name=arguments.tls_server_name,
    )


def _pem(path: str | None) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise bad_input(f"cannot read {path}: {error.strerror or error}") from error


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number of seconds above 0")
    return seconds


def _default_timeout_s() -> float:
    # Not a default of the flag: argparse would tell of a wrong one in the flag's name.
    try:
        return _seconds(os.environ.get("TOKEND_TIMEOUT_S") or _DEFAULT_TIMEOUT_S)
    except argparse.ArgumentTypeError as error:
        raise bad_input(f"TOKEND_TIMEOUT_S: {error}") from error


def _fingerprint(value: str) -> str:
    if len(value) != _SHA256_DIGITS or not set(value.lower()) <= set("0123456789abcdef"):
        raise argparse.ArgumentTypeError(
            "a sha256 of 64 hexadecimal digits is needed; `tokend info` prints it"
        )
    return value.lower()
