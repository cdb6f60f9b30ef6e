"""The files that say who may call: read at the start, and again when they change."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokend_server import logs
from tokend_server.certificates import ExpiryWatch, ServerCertificate
from tokend_server.config import Settings
from tokend_server.metrics import MOST_NAMES, CallerNames, Metrics
from tokend_server.service.access import Access, Tokens
from tokend_server.service.token_file import parse_tokens
from tokend_server.watched_files import FileWatch, WatchedFiles

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Credentials", "caller_names", "read_credentials", "warn_of_exposure"]

_log = logs.get("security")


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """What was read before any fork."""

    tokens: WatchedFiles[Tokens] | None
    """None: everybody may call everything."""
    tls: WatchedFiles[ServerCertificate] | None
    """None: connections are not encrypted."""

    def refresh(self) -> None:
        """Read the files again, in a worker that may be younger than they are.

        Raises:
            CredentialsError: They are not right now.
        """
        for files in (self.tokens, self.tls):
            if files is not None:
                files.refresh()

    def begin(self, metrics: Metrics) -> "CredentialsInForce":
        """Follow the files from now on, on a thread; after any fork."""
        looks: list[Callable[[], None]] = []
        access = None
        if self.tokens is not None:
            access = Access(self.tokens.value)
            in_force = access

            def use(tokens: Tokens) -> None:
                # Before the first call, so that their series exist at zero.
                for name in tokens.names:
                    metrics.callers.place(name)
                in_force.tokens = tokens

            self.tokens.follow(use, metrics.files)
            looks.append(self.tokens.look)
        tls = self.tls
        if tls is not None:
            tls.follow(lambda certificate: metrics.files.certificate(certificate.expires_s), metrics.files)
            expiry = ExpiryWatch(lambda: tls.value)
            expiry.look()
            looks += [tls.look, expiry.look]
        return CredentialsInForce(
            access=access,
            certificate=None if tls is None else lambda: tls.value,
            watch=FileWatch(looks) if looks else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CredentialsInForce:
    """What follows the files in one process that serves."""

    access: "Access | None"
    certificate: "Callable[[], ServerCertificate] | None"
    """Returns what a new connection is shown; None: no TLS."""
    watch: FileWatch | None

    def end(self) -> None:
        """Follow them no more."""
        if self.watch is not None:
            self.watch.end()


def read_credentials(settings: Settings) -> Credentials:
    """Read the files that the settings name; no thread is left.

    Raises:
        CredentialsError: One cannot be read, or is wrong.
    """
    path = settings.auth_tokens_file
    return Credentials(
        tokens=None
        if path is None
        else WatchedFiles("auth_tokens", [path], lambda data: parse_tokens(data[0], str(path))),
        tls=_read_tls(settings),
    )


def _read_tls(settings: Settings) -> WatchedFiles[ServerCertificate] | None:
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    # Who has no TLS need not have its library in memory.
    from tokend_server.certificate_files import CertificateFiles  # noqa: PLC0415

    files = CertificateFiles(
        chain=settings.tls_cert_file,
        key=settings.tls_key_file,
        client_authorities=settings.tls_client_ca_file,
    )
    return WatchedFiles("tls", files.paths, files.read)


def warn_of_exposure(settings: Settings) -> None:
    """Warn if others than this machine reach the gRPC port, and can listen in or need nothing to call."""
    if settings.listen.is_loopback:
        return
    encrypted = settings.tls_cert_file is not None
    asks_who = settings.auth_tokens_file is not None or settings.tls_client_ca_file is not None
    if not (encrypted and asks_who):
        _log.warning(
            "gRPC listens beyond this machine without TLS, or without asking who calls; docs/security.md has what helps",
            listen=str(settings.listen),
            encrypted=encrypted,
            asks_who=asks_who,
        )


def caller_names(settings: Settings) -> CallerNames:
    """Make the table of names for the metrics of all processes of a server."""
    return CallerNames(MOST_NAMES if settings.auth_tokens_file is not None else 0)
