"""The caller's trace, for the metadata of a call: where the program uses OpenTelemetry, and only there.

OpenTelemetry is no dependency of this client. A program that has loaded it gets its current span told to the server
(W3C `traceparent`), so that the server's span becomes a child of it.
"""

import sys

__all__ = ["trace_metadata"]


def trace_metadata() -> tuple[tuple[str, str], ...]:
    """The metadata that names the current span; empty where there is none, or no OpenTelemetry.

    >>> trace_metadata()
    ()
    """
    # Who makes spans has loaded it; looking it up costs a call some 50 ns.
    if "opentelemetry.trace" not in sys.modules:
        return ()
    from opentelemetry import propagate  # noqa: PLC0415 (no dependency of ours)

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    # gRPC takes keys in small letters only.
    return tuple((key.lower(), value) for key, value in carrier.items())
