"""TLS for gRPC: the certificate that is in use at each handshake."""

from collections.abc import Callable

import grpc

from tokend_server.certificates import ServerCertificate

__all__ = ["server_credentials"]


def server_credentials(current: Callable[[], ServerCertificate]) -> grpc.ServerCredentials:
    """Make credentials that follow a certificate.

    Connections that are open stay as they are; each new one is shown what is in use then.

    Args:
        current: Returns what is in use; the same object as long as nothing changes. Whether clients need a certificate
            must not change.
    """
    shown = current()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Return what to show from now on; None: as before."""
        nonlocal shown
        certificate = current()
        if certificate is shown:
            return None
        shown = certificate
        return _configuration(certificate)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown),
        fetch,  # type: ignore[arg-type]  # None is allowed, its stubs do not say so
        require_client_authentication=shown.client_authorities is not None,
    )


def _configuration(certificate: ServerCertificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificate.key, certificate.chain)], root_certificates=certificate.client_authorities
    )
