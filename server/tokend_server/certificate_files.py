"""Certificates, keys and authorities, read from PEM and checked before use.

Imported by servers with TLS alone: the library that reads certificates takes 16 MB.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from tokend_server.certificates import ServerCertificate
from tokend_server.errors import CredentialsError

__all__ = ["CertificateFiles"]


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
