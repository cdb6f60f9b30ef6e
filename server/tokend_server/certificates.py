"""The server's certificate that is in use, and the watch for its end. What reads one: certificate_files.py."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tokend_server import logs

__all__ = ["ExpiryWatch", "ServerCertificate"]

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
