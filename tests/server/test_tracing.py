"""What decides whether there are traces; the spans themselves are in tests/integration/test_traces.py."""

import subprocess
import sys

import pytest

from tokend_server import tracing
from tokend_server.tracing import problem_with


def test_off_has_no_problem_whatever_the_environment_says():
    assert problem_with("off", {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}) is None


def test_without_the_extra_the_start_says_what_to_install(monkeypatch):
    def none_found(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(tracing, "find_spec", none_found)
    assert problem_with("otlp", {}) == (
        "traces: otlp needs OpenTelemetry's packages; install tokend[otel], or take --traces off"
    )


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"])
def test_only_grpc_is_spoken(variable):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="tokend[otel] is not installed")
    assert problem_with("otlp", {variable: "grpc"}) is None
    assert variable in problem_with("otlp", {variable: "http/protobuf"})


@pytest.mark.parametrize("module", ["tokend_server.app", "tokend_server.__main__", "tokend", "tokend.aio"])
def test_who_asks_for_no_traces_imports_nothing_of_opentelemetry(module):
    code = f"import sys, {module}; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
