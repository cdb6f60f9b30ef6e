"""Certificates for tests, made where they are needed."""

import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509

NAMES = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Pems:
    """Where a server finds its certificate."""

    chain: Path
    key: Path

    def flags(self) -> tuple[str, ...]:
        return ("--tls-cert-file", str(self.chain), "--tls-key-file", str(self.key))


def issue(ca: trustme.CA, *, days_left: float = 30, days_old: float = 1) -> trustme.LeafCert:
    """Have an authority make a server's certificate."""
    now = datetime.now(UTC)
    return ca.issue_cert(
        *NAMES, not_before=now - timedelta(days=days_old), not_after=now + timedelta(days=days_left)
    )


def chain_of(leaf: trustme.LeafCert) -> bytes:
    """The certificates of a leaf, as one PEM."""
    return b"".join(each.bytes() for each in leaf.cert_chain_pems)


def write(folder: Path, leaf: trustme.LeafCert, key_of: trustme.LeafCert | None = None) -> Pems:
    """Put a certificate, and its key or that of another, where a server looks."""
    pems = Pems(folder / "tls.crt", folder / "tls.key")
    for path, data in ((pems.chain, chain_of(leaf)), (pems.key, (key_of or leaf).private_key_pem.bytes())):
        fresh = path.with_suffix(".new")
        fresh.write_bytes(data)
        fresh.replace(path)
    return pems


def expires_s(leaf: trustme.LeafCert) -> float:
    """When a certificate ends."""
    return certificate(leaf).not_valid_after_utc.timestamp()


def certificate(leaf: trustme.LeafCert) -> x509.Certificate:
    return x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes())


def serial(leaf: trustme.LeafCert) -> int:
    return certificate(leaf).serial_number


def shown_serial(target: str) -> int:
    """The number of the certificate that a server shows to a new connection."""
    host, port = target.rsplit(":", 1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port)), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=host) as encrypted,
    ):
        return x509.load_der_x509_certificate(encrypted.getpeercert(binary_form=True)).serial_number


def trusting(ca: trustme.CA) -> bytes:
    return ca.cert_pem.bytes()


__all__ = ["Pems", "chain_of", "expires_s", "issue", "serial", "shown_serial", "trusting", "write"]
