"""OpenTelemetry traces, as an extra: one span a call, joined to the caller's trace. No text of a user is in them.

The whole of it hangs on the setting `traces`; off, nothing of OpenTelemetry is imported. Where spans go, how many and
under which name is told by OpenTelemetry's own environment variables, which its SDK reads.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tokend_server.logs import Field

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

__all__ = ["CallSpan", "Tracing", "problem_with"]

_PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_MODULE = "opentelemetry.exporter.otlp.proto.grpc"
_SERVICE = "tokend.v1.TokenizerService"
# What OpenTelemetry's conventions call a fault of the server.
_FAULTS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
# A stream of a million refused batches must not make a span of a million events.
_MAX_REFUSALS = 32
_counting = threading.Lock()


def problem_with(traces: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Tell in one line why there can be no traces as asked for; None: there can.

    Args:
        traces: The setting.
        environ: With OpenTelemetry's variables.
    """
    if traces == "off":
        return None
    if not _is_installed():
        return "traces: otlp needs OpenTelemetry's packages; install tokend[otel], or take --traces off"
    for variable in _PROTOCOL_VARIABLES:
        if environ.get(variable, "grpc") != "grpc":
            return f"traces: {variable} is {environ[variable]}; tokend sends OTLP over grpc only: unset it, or say grpc"
    return None


def _is_installed() -> bool:
    try:
        return find_spec(_MODULE) is not None
    except ModuleNotFoundError:
        return False


class Tracing:
    """Makes the spans of one process, and sends them in the background."""

    def __init__(self, *, version: str, exporter: "SpanExporter | None" = None) -> None:
        """Begin; after any fork, since a thread sends the spans.

        Args:
            version: Of the server.
            exporter: Takes the spans; None: OTLP over gRPC, to where the environment says.
        """
        # It is an extra: who does not ask for it need not have it.
        from opentelemetry import propagate, trace  # noqa: PLC0415
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        if exporter is None:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # noqa: PLC0415
                OTLPSpanExporter,
            )

            exporter = OTLPSpanExporter()
        own = Resource.create({"service.name": "tokend", "service.version": version})
        # The environment's name and attributes win.
        self._provider: TracerProvider = TracerProvider(
            resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tokend", version)
        self._trace = trace
        self._extract = propagate.extract

    def call(self, method: str, metadata: Sequence[tuple[str, str | bytes]]) -> "CallSpan":
        """Begin the span of a call, as a child of the caller's where the metadata names one.

        Args:
            method: Of TokenizerService.
            metadata: The caller's.
        """
        carrier = {key: value for key, value in metadata if isinstance(value, str)}
        name = f"{_SERVICE}/{method}"
        span = self._tracer.start_span(
            name,
            context=self._extract(carrier),
            kind=self._trace.SpanKind.SERVER,
            attributes={"rpc.system.name": "grpc", "rpc.method": name},
        )
        return CallSpan(span, self._use)

    @contextmanager
    def _use(self, span: "Span") -> Iterator[None]:
        with self._trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield

    def encoded(self, engine: str) -> None:
        """Note which engine has encoded texts of the call that this thread works on: its name, or `both`."""
        span = self._trace.get_current_span()
        if span.is_recording():
            known = getattr(span, "attributes", {}).get("tokend.engine", engine)
            span.set_attribute("tokend.engine", engine if known == engine else "both")

    def close(self, within_s: float) -> None:
        """Send what is left; after the time it is lost."""
        # A receiver that is down must not hold up the stop.
        closing = threading.Thread(target=self._provider.shutdown, name="tokend-traces", daemon=True)
        closing.start()
        closing.join(within_s)


class CallSpan:
    """The span of one call."""

    __slots__ = ("_n_refusals", "_span", "_use")

    def __init__(self, span: "Span", use: Callable[["Span"], AbstractContextManager[None]]) -> None:
        self._span = span
        self._use = use
        self._n_refusals = 0

    @property
    def trace_id(self) -> str:
        """The trace's id as other programs show it: 32 hexadecimal digits."""
        return f"{self._span.get_span_context().trace_id:032x}"

    def current(self) -> AbstractContextManager[None]:
        """Be the current span for the time of a `with` block."""
        return self._use(self._span)

    def begun(self, waited_s: float) -> None:
        """Note that a thread has taken the call up."""
        self._span.set_attribute("tokend.queue_seconds", waited_s)

    def refused(self, reason: str, facts: Mapping[str, Field]) -> None:
        """Note a refusal: of the call, or of a batch or a sequence in it."""
        # Several batches of a StreamEncode may be in work at once.
        with _counting:
            self._n_refusals += 1
            is_told = self._n_refusals <= _MAX_REFUSALS
        if is_told:
            attributes = {f"tokend.{name}": value for name, value in facts.items() if value is not None}
            self._span.add_event("refused", {"tokend.reason": reason, **attributes})

    def end(self, code: str, facts: Mapping[str, Field]) -> None:
        """End the span with gRPC's code and what the call was."""
        span = self._span
        span.set_attributes({f"tokend.{name}": value for name, value in facts.items() if value is not None})
        span.set_attribute("rpc.response.status_code", code)
        if self._n_refusals:
            span.set_attribute("tokend.n_refusals", self._n_refusals)
        if code != "OK":
            span.set_attribute("error.type", code)
        if code in _FAULTS:
            from opentelemetry.trace import StatusCode  # noqa: PLC0415 (as above)

            span.set_status(StatusCode.ERROR)
        span.end()
