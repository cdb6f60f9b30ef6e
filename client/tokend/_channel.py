"""How this client connects: addresses, credentials and every channel option, in one place.

Nothing connects when a client is made, only at its first call: a client made before a fork is safe in the child.
"""

import json
import re
from dataclasses import dataclass, field

import grpc
import grpc.aio

from tokend._target import Target
from tokend._version import __version__

__all__ = ["MAX_MESSAGE_BYTES", "ConnectionSettings", "Tls"]

MAX_MESSAGE_BYTES = 64 << 20
"""The largest message either way; the server has the same."""

_UNARY_METHODS = (
    "Encode",
    "BatchEncode",
    "CountTokens",
    "Decode",
    "BatchDecode",
    "GetTokenizer",
    "LookupTokens",
)
_SERVICE = "tokend.v1.TokenizerService"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Encrypted connections.

    >>> Tls(server_name="tokend.internal").server_name
    'tokend.internal'
    """

    root_certificates: bytes | None = None
    """PEM of the authorities that are trusted; None: those that gRPC ships with."""
    private_key: bytes | None = field(default=None, repr=False)
    """PEM of the client's own key, for servers that ask for one."""
    certificate_chain: bytes | None = None
    """PEM of the client's own certificates; goes with `private_key`."""
    server_name: str | None = None
    """The name in the server's certificate, where the target's is another."""

    def __post_init__(self) -> None:
        if (self.private_key is None) != (self.certificate_chain is None):
            raise ValueError("private_key and certificate_chain go together: give both or neither")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Where and how to connect; checked when made, used at the first call."""

    target: Target
    connections: int
    token: str | None = field(repr=False)
    tls: Tls | None
    allow_plaintext_token: bool
    channel_options: tuple[tuple[str, int | str], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.connections, int) or isinstance(self.connections, bool):
            raise TypeError(f"connections is an int, not {type(self.connections).__name__}")
        if self.connections < 1:
            raise ValueError(f"connections is {self.connections}; at least 1 is needed")
        if self.target.authority is not None and self.tls is not None and self.tls.server_name is None:
            raise ValueError(
                "several addresses with tls need Tls(server_name=...), the name in the certificates of all of them"
            )
        # Anything else would break the header that carries it; the token itself stays out of the message.
        if self.token is not None and not re.fullmatch(r"[\x21-\x7e]+", self.token):
            raise ValueError("token may hold printable ASCII without spaces only")
        if self.token is not None and not (
            self.tls is not None or self.allow_plaintext_token or self.target.is_loopback
        ):
            raise ValueError(
                f"the token would go to {self.target.shown} unencrypted: use tls, or say allow_plaintext_token=True if "
                "something else encrypts the connection"
            )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of every call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token is not None else ()

    def options(self) -> tuple[tuple[str, int | str], ...]:
        """The channel options, gRPC's own names; the caller's own come last and win."""
        options: list[tuple[str, int | str]] = [
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.primary_user_agent", f"tokend-python/{__version__}"),
            ("grpc.service_config", self._service_config()),
            ("grpc.enable_retries", 1),
            # A dead peer is noticed within 40 s of a call. Idle connections are left alone: servers and proxies
            # that count pings (gRPC's own default is strict there) would close them.
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            # Without it a ping has a minute, whatever the line above says (tried with grpcio 1.85).
            ("grpc.http2.ping_timeout_ms", 10_000),
            ("grpc.http2.max_pings_without_data", 0),
            # gRPC's default backs off up to two minutes: a server that came back would stay unseen. The "min"
            # is in truth the time that one attempt to connect may take.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            ("grpc.min_reconnect_backoff_ms", 5_000),
        ]
        if self.target.is_loopback:
            options.append(("grpc.enable_http_proxy", 0))
        if self.target.is_balanced:
            # gRPC asks the name again when a connection ends, but at most each 30 s unless told: a restart of all
            # servers one by one may be over by then.
            options.append(("grpc.dns_min_time_between_resolutions_ms", 2_000))
        if self.target.authority is not None:
            options.append(("grpc.default_authority", self.target.authority))
        if self.connections > 1:
            # Channels to one address would share one connection.
            options.append(("grpc.use_local_subchannel_pool", 1))
        if self.tls is not None and self.tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self.tls.server_name))
        return (*options, *self.channel_options)

    def open_channel(self) -> grpc.Channel:
        """A channel for threads."""
        if self.tls is None:
            return grpc.insecure_channel(self.target.uri, options=self.options())
        return grpc.secure_channel(self.target.uri, self._credentials(self.tls), options=self.options())

    def open_aio_channel(self) -> grpc.aio.Channel:
        """A channel for the running event loop."""
        if self.tls is None:
            return grpc.aio.insecure_channel(self.target.uri, options=self.options())
        return grpc.aio.secure_channel(self.target.uri, self._credentials(self.tls), options=self.options())

    @staticmethod
    def _credentials(tls: Tls) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            root_certificates=tls.root_certificates,
            private_key=tls.private_key,
            certificate_chain=tls.certificate_chain,
        )

    def _service_config(self) -> str:
        config: dict[str, object] = {
            "methodConfig": [
                {
                    # Named one by one: a stream that was started is never sent again by gRPC.
                    "name": [{"service": _SERVICE, "method": method} for method in _UNARY_METHODS],
                    "retryPolicy": {
                        "maxAttempts": 5,
                        "initialBackoff": "0.05s",
                        "maxBackoff": "1s",
                        "backoffMultiplier": 2,
                        # CANCELLED, where we did not cancel: a server that stops tells its clients to leave, and gRPC
                        # cancels what reaches it before they have heard. No call has effects, so it may go again.
                        "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
                    },
                }
            ],
            # When most calls fail, retries would only add to the load: they pause until calls succeed again.
            "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.5},
        }
        if self.target.is_balanced:
            config["loadBalancingConfig"] = [{"round_robin": {}}]
            # Servers that load their tokenizer, or drain, are passed over.
            config["healthCheckConfig"] = {"serviceName": _SERVICE}
        return json.dumps(config)
