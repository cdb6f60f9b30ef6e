"""What both clients are made with, checked once, and the parts of a call that need no transport."""

from collections.abc import AsyncIterable, Iterable, Sequence

from tokend._arguments import checked_count, checked_flag, checked_timeout
from tokend._batches import BatchCutter
from tokend._channel import ConnectionSettings, Tls
from tokend._encode_window import EncodeWindow
from tokend._known_limits import KnownLimits
from tokend._requests import EncodeSettings, checked_fingerprint, encode_settings
from tokend._target import Target
from tokend.options import EncodeOptions

__all__ = ["ClientSettings"]

_IN_FLIGHT = 8


class ClientSettings:
    """The checked arguments of a client, and the server's limits once they are known."""

    def __init__(
        self,
        target: str | Sequence[str],
        *,
        connections: int,
        timeout_s: float,
        expected_fingerprint: str | None,
        token: str | None,
        tls: Tls | bool | None,
        allow_plaintext_token: bool,
        wait_for_ready: bool,
        channel_options: Sequence[tuple[str, int | str]],
    ) -> None:
        if tls is not None and not isinstance(tls, bool | Tls):
            raise TypeError(f"tls is a bool or a tokend.Tls, not {type(tls).__name__}")
        if isinstance(tls, bool):
            tls = Tls() if tls else None
        self.connection = ConnectionSettings(
            target=Target.read(target),
            connections=connections,
            token=token,
            tls=tls,
            allow_plaintext_token=checked_flag(allow_plaintext_token, "allow_plaintext_token"),
            channel_options=tuple(channel_options),
        )
        self.timeout_s = checked_timeout(timeout_s, None)
        self.wait_for_ready = checked_flag(wait_for_ready, "wait_for_ready")
        self.fingerprint = None if expected_fingerprint is None else checked_fingerprint(expected_fingerprint)
        self.known = KnownLimits()
        """The server's limits, asked for once, when texts first have to be cut into batches."""

    def timeout(self, timeout_s: float | None) -> float | None:
        """The time limit of one call: its own, or the client's."""
        return checked_timeout(timeout_s, self.timeout_s)

    def encoding(self, keywords: EncodeOptions, *, pairs: bool = False) -> EncodeSettings:
        """The options of an encode call."""
        return encode_settings(keywords, fingerprint=self.fingerprint, pairs=pairs)

    def cutter(self, batch_texts: int, batch_bytes: int) -> BatchCutter:
        """What cuts the texts of a stream."""
        return BatchCutter(
            max_texts=self.known.batch_texts(batch_texts), max_bytes=self.known.batch_bytes(batch_bytes)
        )

    @staticmethod
    def window(settings: EncodeSettings, in_flight: int = _IN_FLIGHT) -> EncodeWindow:
        """The state of one encode stream."""
        return EncodeWindow(settings=settings, in_flight=in_flight)

    @staticmethod
    def check_stream(texts: object, batch_texts: int, batch_bytes: int, in_flight: int) -> None:
        """Checks the arguments of `encode_stream`."""
        if isinstance(texts, str | bytes) or not isinstance(texts, Iterable | AsyncIterable):
            raise TypeError(f"texts is an iterable of str, not {type(texts).__name__}")
        checked_count(batch_texts, "batch_texts", least=1)
        checked_count(batch_bytes, "batch_bytes", least=1)
        checked_count(in_flight, "in_flight", least=1)
