import contextlib
import gzip
import http.client
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter

from tokend_server.config import Address
from tokend_server.transport.ops_http import OpsServer


class Readiness:
    reason: str | None = None

    def __call__(self) -> str | None:
        return self.reason


@pytest.fixture
def readiness():
    return Readiness()


@pytest.fixture
def server(readiness):
    registry = CollectorRegistry()
    Counter("seen", "Things seen.", registry=registry).inc(3)
    ops = OpsServer(Address(host="127.0.0.1", port=0), registry=registry, ready=readiness)
    ops.start()
    yield ops
    ops.stop()


def ask(server, target, method="GET", headers=None, body=None):
    connection = http.client.HTTPConnection(server.address.host, server.address.port, timeout=10)
    try:
        connection.request(method, target, body=body, headers=headers or {})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def test_metrics_shows_the_registry(server):
    answer, body = ask(server, "/metrics")
    assert answer.status == 200
    assert answer.getheader("Content-Type").startswith("text/plain")
    assert b"seen_total 3.0\n" in body


def test_metrics_speaks_openmetrics_to_who_asks(server):
    answer, body = ask(server, "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.getheader("Content-Type").startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_metrics_is_compressed_for_who_accepts_it(server):
    _, plain = ask(server, "/metrics")
    answer, body = ask(server, "/metrics", headers={"Accept-Encoding": "deflate, gzip;q=1.0"})
    assert answer.getheader("Content-Encoding") == "gzip"
    assert b"seen_total 3.0" in gzip.decompress(body)
    answer, body = ask(server, "/metrics", headers={"Accept-Encoding": "gzip;q=0"})
    assert (answer.getheader("Content-Encoding"), body) == (None, plain)


def test_healthz_says_that_the_process_runs(server, readiness):
    readiness.reason = "loading"
    answer, body = ask(server, "/healthz")
    assert (answer.status, body) == (200, b"ok\n")


def test_readyz_follows_the_server_and_gives_the_reason(server, readiness):
    assert ask(server, "/readyz")[0].status == 200
    readiness.reason = "draining"
    answer, body = ask(server, "/readyz")
    assert (answer.status, body) == (503, b"not ready: draining\n")
    readiness.reason = None
    assert ask(server, "/readyz")[0].status == 200


def test_the_index_lists_every_endpoint(server):
    answer, body = ask(server, "/")
    assert answer.status == 200
    assert answer.getheader("Content-Type").startswith("text/html")
    for path in (b"/metrics", b"/healthz", b"/readyz"):
        assert b'<a href="' + path + b'">' in body


def test_a_query_is_passed_over(server):
    assert ask(server, "/healthz?x=1")[0].status == 200


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "/../etc/passwd", "/metrics%00"])
def test_other_paths_are_not_found_and_not_echoed(server, path):
    answer, body = ask(server, path)
    assert answer.status == 404
    assert path.encode() not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_reads_are_answered(server, method):
    answer, _ = ask(server, "/metrics", method=method, body=b"x=1")
    assert answer.status == 405
    assert answer.getheader("Allow") == "GET, HEAD"
    assert answer.getheader("Connection") == "close"


def test_head_has_the_headers_alone(server):
    _, full = ask(server, "/metrics")
    answer, body = ask(server, "/metrics", method="HEAD")
    assert (answer.status, body) == (200, b"")
    assert int(answer.getheader("Content-Length")) == len(full)


@pytest.mark.parametrize(
    ("request_bytes", "start"),
    [
        (b"BREW /tea HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 501 "),
        (b"GET /tea HTTP/9.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 505 "),
        (b"\x16\x03\x01 nonsense of tea\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /" + b"tea" * 30_000 + b" HTTP/1.1\r\n\r\n", b"HTTP/1.1 414 "),
    ],
)
def test_what_is_no_usable_request_gets_a_status_that_quotes_nothing(server, request_bytes, start):
    with socket.create_connection((server.address.host, server.address.port), timeout=10) as connection:
        connection.sendall(request_bytes)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := connection.recv(4096):
                answer += chunk
    assert answer.startswith(start)
    assert b"tea" not in answer


def test_a_connection_is_kept_for_the_next_scrape(server):
    connection = http.client.HTTPConnection(server.address.host, server.address.port, timeout=10)
    try:
        for _ in range(3):
            connection.request("GET", "/healthz")
            answer = connection.getresponse()
            answer.read()
            assert not answer.will_close
    finally:
        connection.close()


def test_a_body_sent_with_a_get_is_not_taken_for_the_next_request(server):
    answer, _ = ask(server, "/healthz", body=b"GET /metrics HTTP/1.1\r\n\r\n")
    assert answer.status == 200
    assert answer.will_close


def test_a_check_that_fails_is_a_500_and_the_server_goes_on():
    def broken() -> str | None:
        raise RuntimeError("a secret")

    ops = OpsServer(Address(host="127.0.0.1", port=0), registry=CollectorRegistry(), ready=broken)
    ops.start()
    try:
        answer, body = ask(ops, "/readyz")
        assert answer.status == 500
        assert b"secret" not in body
        assert ask(ops, "/healthz")[0].status == 200
    finally:
        ops.stop()


def test_silent_and_dripping_clients_do_not_keep_others_out(server):
    # Not counted: threads that tests before this one left in this process.
    earlier = set(threading.enumerate())
    idle = [socket.create_connection((server.address.host, server.address.port)) for _ in range(200)]
    try:
        for connection in idle:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        started = time.monotonic()
        assert ask(server, "/healthz")[0].status == 200
        assert time.monotonic() - started < 2
        # 64 connections are kept; a thread whose connection was cut needs a moment to end.
        deadline = time.monotonic() + 10
        while len(set(threading.enumerate()) - earlier) > 70 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(set(threading.enumerate()) - earlier) <= 70
    finally:
        for connection in idle:
            connection.close()


def test_a_port_in_use_is_refused_before_serving_with_a_clear_line(server):
    with pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{server.address.port} \(ops_listen\)"):
        OpsServer(server.address, registry=CollectorRegistry(), ready=lambda: None)


def test_a_host_that_does_not_exist_is_refused_with_a_clear_line():
    with pytest.raises(OSError, match="cannot listen on no such host:1"):
        OpsServer(Address(host="no such host", port=1), registry=CollectorRegistry(), ready=lambda: None)


def test_the_port_is_free_again_after_stop():
    ops = OpsServer(Address(host="127.0.0.1", port=0), registry=CollectorRegistry(), ready=lambda: None)
    ops.start()
    kept = http.client.HTTPConnection(ops.address.host, ops.address.port, timeout=10)
    kept.request("GET", "/healthz")
    kept.getresponse().read()
    address = ops.address
    ops.stop()
    kept.close()
    again = OpsServer(address, registry=CollectorRegistry(), ready=lambda: None)
    again.stop()


def test_a_server_that_never_started_can_be_stopped():
    OpsServer(Address(host="127.0.0.1", port=0), registry=CollectorRegistry(), ready=lambda: None).stop()


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
def test_ipv6_addresses_work():
    ops = OpsServer(Address(host="::1", port=0), registry=CollectorRegistry(), ready=lambda: None)
    ops.start()
    try:
        assert ask(ops, "/healthz")[0].status == 200
        assert str(ops.address) == f"[::1]:{ops.address.port}"
    finally:
        ops.stop()


def test_many_scrapes_at_once_are_all_answered(server):
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda _: ask(server, "/metrics")[0].status, range(100)))
    assert statuses == [200] * 100
