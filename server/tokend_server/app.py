"""The one place where a server is put together, started and stopped."""

import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tokend._version import __version__
from tokend_server import logs
from tokend_server.config import Address, Nowhere, Settings, UnixAddress
from tokend_server.cores import usable_cores
from tokend_server.credentials import (
    Credentials,
    CredentialsInForce,
    caller_names,
    read_credentials,
    warn_of_exposure,
)
from tokend_server.engine.frozen import FrozenTokenizer
from tokend_server.engine.special_tokens import SpecialTokenPolicy
from tokend_server.loading import Served, load_served
from tokend_server.metrics import Metrics, methods_of
from tokend_server.native_stderr import StderrGuard
from tokend_server.service.admission import Admission, ServingState
from tokend_server.service.decode import DecodeService
from tokend_server.service.encode import EncodeService
from tokend_server.service.info import InfoService
from tokend_server.service.limits import Limits
from tokend_server.service.work import Budget
from tokend_server.tracing import Tracing
from tokend_server.transport.calls import CallScope
from tokend_server.transport.decode_methods import DecodeMethods
from tokend_server.transport.encode_methods import EncodeMethods
from tokend_server.transport.info_methods import InfoMethods
from tokend_server.transport.ops_http import OpsServer
from tokend_server.transport.options import EncodeOptionsReader
from tokend_server.transport.routing import SERVICE, Answers, Router
from tokend_server.transport.server import GrpcServer
from tokend_server.transport.streaming import LiveStreams
from tokend_server.transport.threads import CallThreads

__all__ = ["App", "Share", "announce", "open_ops", "ready_line", "unary_threads", "where"]

_log = logs.get("app")
_MAX_CONNECTION_AGE_S = 1800.0
_MOST_UNARY_THREADS = 4
# A tenth of Python's own.
_SWITCH_INTERVAL_S = 0.0005
# How long the last spans may take to be sent at the end.
_LAST_SPANS_S = 3.0
# Streams are flushed at the end of the grace time, and unary calls that came just before it need a moment too.
_LAST_ANSWERS_S = 2.0
_STATES = {ServingState.LOADING: "loading the tokenizer", ServingState.DRAINING: "shutting down"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What one of several workers has from the process that started it."""

    address: Address
    """Where all of them listen, with its real port."""
    metrics: Metrics
    """On a row of this worker's own."""
    served: Served
    credentials: Credentials


class App:
    """One server: gRPC, the ops port and the tokenizer behind them. Or one worker of a server, without the ops port.

    The order of starting: ports, so that one in use ends the start at once; then the tokenizer, while calls are
    refused with TOKENIZER_LOADING; then health. The order of stopping is the other way round.
    """

    def __init__(self, settings: Settings, share: Share | None = None) -> None:
        """Bind the ports.

        Args:
            settings: What is asked for.
            share: For a worker, what it shares with others; None: this process is the whole server.

        Raises:
            OSError: A port cannot be bound; the message names it and the setting.
            CredentialsError: A file of tokens or certificates cannot be used.
        """
        self._settings = settings
        credentials = read_credentials(settings) if share is None else share.credentials
        if share is None:
            warn_of_exposure(settings)
        self._limits = _limits(settings)
        self._live = LiveStreams()
        self._share = share
        self.metrics = (
            Metrics(methods_of(SERVICE), version=__version__, callers=caller_names(settings))
            if share is None
            else share.metrics
        )
        self.metrics.worker.become("starting")
        self.metrics.max_streams.add(settings.max_streams)
        n_unary_threads = unary_threads(settings)
        self.metrics.unary_threads.add(n_unary_threads)
        self._admission = _admission(settings, self.metrics)
        self._scope = CallScope(self._admission, self._limits)
        self._tracing = self._scope.tracing = (
            None if settings.traces == "off" else Tracing(version=__version__)
        )
        self._router = Router(self._scope, self.metrics, self._live, CallThreads(n_unary_threads))
        # Before the ports: gRPC's core prints in its own words why one cannot be bound.
        self._stderr_guard = StderrGuard(self.metrics.native_stderr_lines.add)
        self._credentials: CredentialsInForce = credentials.begin(self.metrics)
        self._scope.access = self._credentials.access
        try:
            self._grpc = GrpcServer(
                settings.listen if share is None else share.address,
                self._router,
                self._scope,
                self.metrics,
                front=settings.front,
                socket_mode=settings.listen_mode,
                reflection=settings.reflection,
                certificate=self._credentials.certificate,
                keepalive_s=settings.keepalive_s,
                max_connection_age_s=_max_connection_age_s(settings),
                max_connection_age_grace_s=settings.max_connection_age_grace_s,
                max_metadata_bytes=settings.max_metadata_bytes,
                max_message_bytes=settings.max_message_bytes,
                share_port=settings.allow_port_sharing or share is not None,
            )
            self._ops = None
            if share is None:
                self._ops = open_ops(settings, self.metrics, self._why_not_ready)
        except OSError:
            self._credentials.end()
            self._stderr_guard.close()
            raise
        self._served: Served | None = None
        self._stopped = threading.Lock()

    @property
    def grpc_address(self) -> Address | UnixAddress:
        """Where gRPC listens, with its real port."""
        return self._grpc.address

    def start(self) -> str:
        """Listen, load the tokenizer if none is shared, and serve.

        Returns:
            The ready line; "" of a worker.

        Raises:
            TokenizerFileError: The tokenizer file cannot be served; nothing was served.
        """
        # Others get Python's lock sooner from a thread that works on something large: docs/adr/0014-small-and-large.md.
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._grpc.start()
        if self._share is not None:
            self._serve(self._share.served)
            return ""
        if self._ops is not None:
            self._ops.start()
        started_s = time.monotonic()
        served = load_served(self._settings)
        self._serve(served)
        announce(served.tokenizer, load_s=time.monotonic() - started_s)
        return ready_line(served.tokenizer, grpc=self.grpc_address, ops=where(self._ops), workers=1)

    def _serve(self, served: Served) -> None:
        self._served, tokenizer = served, served.tokenizer
        default_policy = SpecialTokenPolicy[self._settings.default_special_tokens]
        answers = Answers.of(
            EncodeMethods(EncodeService(tokenizer, self._limits), EncodeOptionsReader(default_policy)),
            DecodeMethods(DecodeService(tokenizer, self._limits), self.metrics.live_sequences),
            InfoMethods(InfoService(tokenizer, self._limits)),
        )
        self._router.serve(answers, tokenizer.fingerprint)
        served.begin(self.metrics, self._tracing)
        self._admission.state = ServingState.SERVING
        self._grpc.set_serving(serving=True)
        self.metrics.worker.become("serving")

    def _why_not_ready(self) -> str | None:
        return _STATES.get(self._admission.state)

    def stop(self) -> None:
        """Drain and stop; a second call does nothing.

        NOT_SERVING comes first, then GOAWAY: clients take their next calls elsewhere. What still comes is refused, calls
        in flight finish, open streams get the grace time to end by themselves, and are then flushed and ended.
        """
        if not self._stopped.acquire(blocking=False):
            return
        grace_s = self._settings.drain_grace_s
        self._grpc.set_serving(serving=False)
        was_serving = self._admission.state is ServingState.SERVING
        self._admission.state = ServingState.DRAINING
        self.metrics.worker.become("draining")
        self._grpc.begin_stop(grace_s + _LAST_ANSWERS_S)
        if was_serving:
            _log.info("draining", grace_s=grace_s)
            self._live.drain(grace_s)
        self._grpc.finish_stop()
        self._credentials.end()
        if self._served is not None:
            self._served.end()
        if self._tracing is not None:
            self._tracing.close(_LAST_SPANS_S)
        if self._ops is not None:
            self._ops.stop()
        if was_serving:
            _log.info("stopped")
        self._stderr_guard.close()


def open_ops(settings: Settings, metrics: Metrics, ready: Callable[[], str | None]) -> OpsServer | None:
    """Bind the ops port, unless it is switched off.

    Raises:
        OSError: It cannot be bound; the message names it and the setting.
    """
    if isinstance(settings.ops_listen, Nowhere):
        return None
    return OpsServer(
        settings.ops_listen, registry=metrics.registry, ready=ready, socket_mode=settings.listen_mode
    )


def where(ops: OpsServer | None) -> str:
    """Return where the ops port is, for the ready line."""
    return str(Nowhere() if ops is None else ops.address)


def ready_line(tokenizer: FrozenTokenizer, *, grpc: Address | UnixAddress, ops: str, workers: int) -> str:
    """Return what the server says on stdout once it serves."""
    return (
        f"tokend ready grpc={grpc} ops={ops} "
        f"tokenizer={tokenizer.fingerprint[:12]} engine={tokenizer.encoder.status.name} workers={workers}"
    )


def announce(tokenizer: FrozenTokenizer, *, load_s: float) -> None:
    """Log what is served, and what an operator should know of the file."""
    _log.info(
        "serving",
        tokenizer=tokenizer.name,
        fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocabulary.size,
        streaming=tokenizer.decoder.mode,
        round_trip_exact=tokenizer.round_trip.exact,
        load_s=round(load_s, 3),
    )
    for warning in tokenizer.warnings:
        _log.warning("about the tokenizer file", warning=warning)
    if tokenizer.uncontrolled_tokens:
        _log.info(
            "added tokens in brackets that are parsed out of text even under TEXT; see --control-tokens",
            n_tokens=len(tokenizer.uncontrolled_tokens),
            tokens=" ".join(tokenizer.uncontrolled_tokens),
        )


def unary_threads(settings: Settings) -> int:
    """Return how many threads of one worker answer messages of medium size: an engine keeps 32 MB and more for each."""
    n_cores = usable_cores()
    share = math.ceil(n_cores / (settings.workers or n_cores))
    return settings.unary_threads or min(share, _MOST_UNARY_THREADS)


def _max_connection_age_s(settings: Settings) -> float | None:
    if settings.max_connection_age_s is None and settings.front == "grpcio":
        return _MAX_CONNECTION_AGE_S
    return settings.max_connection_age_s


def _admission(settings: Settings, metrics: Metrics) -> Admission:
    # Half for each kind, so that neither the streams, which wait, nor the unary calls, which do not, get all.
    half = {"max_texts": settings.max_work_texts // 2, "max_bytes": settings.max_work_bytes // 2}
    unary, stream = metrics.unary_work, metrics.stream_work
    for kind in (unary, stream):
        kind.max_texts.set(half["max_texts"])
        kind.max_text_bytes.set(half["max_bytes"])
    return Admission(
        max_streams=settings.max_streams,
        unary_work=Budget(**half, texts=unary.texts, text_bytes=unary.text_bytes),
        stream_work=Budget(**half, texts=stream.texts, text_bytes=stream.text_bytes),
    )


def _limits(settings: Settings) -> Limits:
    return Limits(
        max_text_bytes=settings.max_text_bytes,
        max_batch_texts=settings.max_batch_texts,
        max_batch_bytes=settings.max_batch_bytes,
        max_ids=settings.max_ids,
        max_sequences_per_stream=settings.max_sequences_per_stream,
        max_streams=settings.max_streams,
        max_message_bytes=settings.max_message_bytes,
        max_stop_strings=settings.max_stop_strings,
        max_stop_bytes=settings.max_stop_bytes,
    )
