"""The server's certificate and key, and the authorities of its clients: read from PEM, and checked before use."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from tokend_server import logs
from tokend_server.errors import CredentialsError

__all__ = ["CertificateFiles", "ExpiryWatch", "ServerCertificate"]

_log = logs.get("tls")
_DAY_S = 86_400.0
# It is warned of so long before the end, or in the last fifth of a life that is short.
_WARN_BEFORE_S = 14 * _DAY_S
_LAST_PART = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerCertificate:
    """What the server shows to clients, and whom it trusts of them."""

    key: bytes = field(repr=False)
    """PEM."""
    chain: bytes = field(repr=False)
    """PEM, the server's own certificate first."""
    client_authorities: bytes | None = field(repr=False)
    """PEM; None: clients need no certificate."""
    lives_s: float
    """How long the certificate is valid in all, in seconds."""
    expires_s: float
    """When the first certificate of the chain to do so ends, as seconds since 1970."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CertificateFiles:
    """Where they are."""

    chain: Path
    key: Path
    client_authorities: Path | None

    @property
    def paths(self) -> Sequence[Path]:
        """The files, in the order of `read`."""
        named = (self.chain, self.key, self.client_authorities)
        return [path for path in named if path is not None]

    def read(self, data: Sequence[bytes]) -> ServerCertificate:
        """Check what the files hold, so that no handshake has to fail of it.

        Raises:
            CredentialsError: Not PEM, an encrypted key, a key that is not the certificate's, expired, or not yet valid.
        """
        chain, key = data[0], data[1]
        authorities = data[2] if len(data) > 2 else None
        certificates = _certificates(self.chain, chain)
        if _public_key(self.key, key) != certificates[0].public_key().public_bytes(
            Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        ):
            raise CredentialsError(f"{self.key} is not the key of the first certificate in {self.chain}")
        for certificate in certificates:
            _check_time(self.chain, certificate)
        if authorities is not None and self.client_authorities is not None:
            _certificates(self.client_authorities, authorities)
        own = certificates[0]
        return ServerCertificate(
            key=key,
            chain=chain,
            client_authorities=authorities,
            lives_s=(own.not_valid_after_utc - own.not_valid_before_utc).total_seconds(),
            expires_s=min(each.not_valid_after_utc for each in certificates).timestamp(),
        )


def _certificates(path: Path, data: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        raise CredentialsError(f"{path}: there is no certificate in PEM form in it") from None


def _public_key(path: Path, data: bytes) -> bytes:
    try:
        key = load_pem_private_key(data, password=None)
    except TypeError:
        raise CredentialsError(
            f"{path}: the key is encrypted, and nobody is here to type its password"
        ) from None
    except Exception:  # noqa: BLE001 (whatever it is: its words may quote the key)
        raise CredentialsError(f"{path}: there is no private key in PEM form in it") from None
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _check_time(path: Path, certificate: x509.Certificate) -> None:
    now = datetime.now(UTC)
    if now >= certificate.not_valid_after_utc:
        raise CredentialsError(
            f"{path}: a certificate expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        )
    if now < certificate.not_valid_before_utc:
        raise CredentialsError(
            f"{path}: a certificate is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on only"
        )


class ExpiryWatch:
    """Warns in the log before a certificate ends, once a day, and when it has ended."""

    def __init__(
        self, current: Callable[[], ServerCertificate], clock: Callable[[], float] = time.time
    ) -> None:
        self._current, self._clock = current, clock
        self._warned_of: ServerCertificate | None = None
        self._next_s = 0.0
        self._was_over = False

    def look(self) -> None:
        """Warn, if it is time."""
        certificate, now_s = self._current(), self._clock()
        left_s = certificate.expires_s - now_s
        is_over = left_s <= 0
        if left_s > min(_WARN_BEFORE_S, certificate.lives_s / _LAST_PART):
            return
        if certificate is self._warned_of and now_s < self._next_s and is_over is self._was_over:
            return
        self._warned_of, self._next_s, self._was_over = certificate, now_s + _DAY_S, is_over
        if is_over:
            _log.error("the certificate has expired; clients refuse to connect until its file is replaced")
        else:
            _log.warning(
                "the certificate is about to expire; replace its file", left_hours=round(left_s / 3600, 1)
            )
