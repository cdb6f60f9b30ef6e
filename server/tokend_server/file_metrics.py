"""What is counted of files that are read again when they change."""

from tokend_server.metric_cells import CellTable

__all__ = ["WATCHED_FILES", "FileMetrics"]

WATCHED_FILES = ("auth_tokens", "tls")


class FileMetrics:
    """The series of all such files."""

    def __init__(self, table: CellTable) -> None:
        self._table = table
        self._reloads = {
            (file, result): table.counter(
                "tokend_file_reloads",
                "Changed files that were read again, by what came of it.",
                {"file": file, "result": result},
            )
            for file in WATCHED_FILES
            for result in ("used", "refused")
        }
        self._stale = {
            file: table.gauge(
                "tokend_stale_files", "Workers that go on with an older file than there is.", {"file": file}
            )
            for file in WATCHED_FILES
        }

        self._expiry = table.least(
            "tokend_tls_certificate_expiry_timestamp_seconds",
            "When the certificate that is shown ends; 0: no TLS.",
        )

    def certificate(self, expires_s: float) -> None:
        """Say when the certificate in use ends, in seconds since 1970."""
        with self._table.lock:
            self._table.cells[self._expiry] = expires_s

    def judged(self, file: str, *, stale: bool, changed: bool) -> None:
        """Say that a file was looked at because it had changed.

        Args:
            file: One of `WATCHED_FILES`.
            stale: It cannot be used, and this process goes on with the older one.
            changed: It differs from what is, or was, in use.
        """
        with self._table.lock:
            cells = self._table.cells
            cells[self._stale[file]] = float(stale)
            if changed:
                cells[self._reloads[file, "refused" if stale else "used"]] += 1
