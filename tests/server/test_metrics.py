import math
import threading
import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tokend.v1 import tokenizer_service_pb2
from tokend_server.errors import Reason
from tokend_server.metric_cells import CellTable
from tokend_server.metrics import Method, Metrics, methods_of
from tokend_server.service.usage import Usage

SERVICE = tokenizer_service_pb2.DESCRIPTOR.services_by_name["TokenizerService"]
HEALTH = Method(service="grpc.health.v1.Health", name="Check", type="unary")
WORKING = ["BatchDecode", "BatchEncode", "CountTokens", "Decode", "Encode", "StreamDecode", "StreamEncode"]


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def metrics(clock):
    return Metrics([*methods_of(SERVICE), HEALTH], version="1.2.3", clock=clock)


def path(name: str) -> str:
    return f"/tokend.v1.TokenizerService/{name}"


def scrape(metrics: Metrics) -> dict[tuple[str, frozenset], float]:
    """Every sample of a scrape, by name and labels, read from the text as Prometheus reads it."""
    text = generate_latest(metrics.registry).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    found = [
        v for (n, has), v in scrape(metrics).items() if n == name and labels.items() <= dict(has).items()
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def buckets(metrics: Metrics, name: str, **labels: str) -> dict[float, float]:
    return {
        float(dict(has)["le"]): v
        for (n, has), v in scrape(metrics).items()
        if n == f"{name}_bucket" and labels.items() <= dict(has).items()
    }


def test_methods_are_read_from_the_descriptor():
    methods = {each.name: each for each in methods_of(SERVICE)}
    assert len(methods) == 10
    assert methods["Encode"].path == path("Encode")
    assert methods["Encode"].type == "unary"
    assert methods["StreamDecode"].type == "bidi_stream"
    assert methods["DownloadTokenizer"].type == "server_stream"


def test_every_series_exists_at_zero_before_the_first_call(metrics):
    shown = scrape(metrics)
    ours = {
        key: v
        for key, v in shown.items()
        if key[0].startswith(("grpc_server_", "tokend_"))
        and "_info" not in key[0]
        and not key[0].startswith("tokend_worker_")  # this process has used some already
    }
    assert ours
    assert set(ours.values()) == {0.0}
    assert value(metrics, "grpc_server_handled_total", grpc_method="Encode", grpc_code="Unavailable") == 0
    for reason in Reason:
        assert value(metrics, "tokend_refusals_total", method="BatchEncode", reason=reason) == 0
    assert sorted(
        dict(has)["method"] for (name, has) in shown if name == "tokend_request_tokens_count"
    ) == WORKING  # fmt: skip


def test_no_call_makes_a_new_series(metrics):
    before = scrape(metrics).keys()
    for i in range(1000):
        call = metrics.method(f"/made.up.Service/Method{i}").started()
        call.begun()
        call.handled(12)
    metrics.method(path("Encode")).refused("A_REASON_NOBODY_KNOWS")
    metrics.method(path("Encode")).started().handled(99)
    assert scrape(metrics).keys() == before
    assert value(metrics, "grpc_server_handled_total", grpc_method="other", grpc_code="Unimplemented") == 1000
    assert value(metrics, "tokend_refusals_total", method="Encode", reason="INTERNAL") == 1
    assert value(metrics, "grpc_server_handled_total", grpc_method="Encode", grpc_code="Unknown") == 1


def test_a_unary_call_moves_the_names_that_dashboards_know(metrics, clock):
    call = metrics.method(path("Encode")).started()
    assert value(metrics, "tokend_in_flight_calls", method="Encode") == 1
    clock.now_s += 0.02
    call.begun()
    call.received()
    clock.now_s += 0.3
    call.sent()
    call.handled(0, amounts=Usage(n_tokens=5, n_texts=1, text_bytes=20, characters=18))
    labels = {"grpc_type": "unary", "grpc_service": "tokend.v1.TokenizerService", "grpc_method": "Encode"}
    assert value(metrics, "grpc_server_started_total", **labels) == 1
    assert value(metrics, "grpc_server_msg_received_total", **labels) == 1
    assert value(metrics, "grpc_server_msg_sent_total", **labels) == 1
    assert value(metrics, "grpc_server_handled_total", **labels, grpc_code="OK") == 1
    assert value(metrics, "grpc_server_handling_seconds_sum", **labels) == pytest.approx(0.32)
    assert value(metrics, "tokend_queue_seconds_sum", method="Encode") == pytest.approx(0.02)
    assert value(metrics, "tokend_work_seconds_sum", method="Encode") == pytest.approx(0.3)
    assert value(metrics, "tokend_in_flight_calls", method="Encode") == 0
    assert value(metrics, "tokend_request_tokens_count", method="Encode") == 1
    assert value(metrics, "tokend_request_tokens_sum", method="Encode") == 5
    assert value(metrics, "tokend_tokens_total", method="Encode") == 5
    assert value(metrics, "tokend_texts_total", method="Encode") == 1
    assert value(metrics, "tokend_text_bytes_total", method="Encode") == 20
    assert value(metrics, "tokend_characters_total", method="Encode") == 18
    assert value(metrics, "tokend_tokens_total", method="BatchEncode") == 0


def test_waiting_for_a_thread_is_part_of_the_latency(metrics, clock):
    calls = [metrics.method(path("Encode")).started() for _ in range(10)]
    for call in calls:
        call.begun()
        clock.now_s += 0.25  # exact in binary, so that the fourth ends at the bound itself
        call.handled(0)
    assert buckets(metrics, "grpc_server_handling_seconds", grpc_method="Encode")[1.0] == 4
    assert value(metrics, "grpc_server_handling_seconds_sum", grpc_method="Encode") == 0.25 * 55
    assert buckets(metrics, "tokend_queue_seconds", method="Encode")[0.00005] == 1


def test_buckets_fit_short_texts_and_requests_of_a_million_tokens(metrics):
    for name, labels in (
        ("grpc_server_handling_seconds", {"grpc_method": "Encode"}),
        ("tokend_queue_seconds", {"method": "Encode"}),
        ("tokend_work_seconds", {"method": "Encode"}),
        ("tokend_message_seconds", {"method": "StreamDecode"}),
    ):
        bounds = sorted(buckets(metrics, name, **labels))
        # An Encode of a short text takes tens of microseconds, and a batch of 48 MiB tens of seconds.
        assert len([bound for bound in bounds if bound < 0.0005]) >= 5
        assert bounds[-2] >= 60
    tokens = sorted(buckets(metrics, "tokend_request_tokens", method="Encode"))
    assert tokens[0] == 1
    assert len([bound for bound in tokens[:-1] if bound >= 1_000_000]) >= 4


def test_a_call_that_ends_twice_counts_once(metrics):
    call = metrics.method(path("StreamDecode")).started()
    assert value(metrics, "tokend_live_streams", method="StreamDecode") == 1
    call.handled(1)
    call.handled(0)
    assert value(metrics, "tokend_live_streams", method="StreamDecode") == 0
    assert value(metrics, "grpc_server_handled_total", grpc_method="StreamDecode", grpc_code="Canceled") == 1
    assert value(metrics, "grpc_server_handled_total", grpc_method="StreamDecode", grpc_code="OK") == 0


def test_a_streams_totals_move_before_its_sequences_end(metrics):
    decode = metrics.work("StreamDecode")
    metrics.live_sequences.add(2)
    decode.moved(Usage(n_tokens=3, n_texts=0, text_bytes=9, characters=3))
    assert value(metrics, "tokend_tokens_total", method="StreamDecode") == 3
    assert value(metrics, "tokend_request_tokens_count", method="StreamDecode") == 0
    decode.moved(Usage(n_tokens=1, n_texts=1, text_bytes=1, characters=1))
    decode.sequence_ended(4)
    decode.message_took(0.001)
    metrics.live_sequences.add(-1)
    assert value(metrics, "tokend_request_tokens_sum", method="StreamDecode") == 4
    assert value(metrics, "tokend_live_sequences") == 1
    assert value(metrics, "tokend_message_seconds_count", method="StreamDecode") == 1


def test_special_text_and_unknown_ids_belong_to_their_side(metrics):
    metrics.work("Encode").answered(Usage(special_texts=2, unknown_ids=9))
    metrics.work("Decode").answered(Usage(special_texts=9, unknown_ids=3))
    assert value(metrics, "tokend_special_text_total", method="Encode") == 2
    assert value(metrics, "tokend_unknown_ids_total", method="Decode") == 3


def test_other_services_have_calls_but_no_tokens(metrics):
    metrics.method("/grpc.health.v1.Health/Check").started().handled(0)
    assert value(metrics, "grpc_server_handled_total", grpc_method="Check", grpc_code="OK") == 1
    assert not [
        has for (name, has) in scrape(metrics) if name.startswith("tokend_") and ("method", "Check") in has
    ]


def test_latency_buckets_fit_work_below_a_millisecond_and_a_minute(metrics):
    bounds = sorted(buckets(metrics, "grpc_server_handling_seconds", grpc_method="Encode"))
    assert len([bound for bound in bounds if bound < 0.005]) >= 4
    assert bounds[-2] >= 10
    assert bounds[-1] == math.inf


def test_token_buckets_reach_ten_million(metrics):
    bounds = sorted(buckets(metrics, "tokend_request_tokens", method="Encode"))
    assert bounds[0] == 1
    assert bounds[-2] >= 10_000_000


@pytest.mark.parametrize("name", ["lone \ud800 surrogate", 'quote " back \\ slash\nline', "\0", "日本"])
def test_no_name_of_a_tokenizer_breaks_a_scrape(metrics, name):
    metrics.set_tokenizer(fingerprint="ab" * 32, name=name)
    assert value(metrics, "tokend_tokenizer_info", fingerprint="ab" * 32) == 1


def test_a_later_tokenizer_info_replaces_the_earlier(metrics):
    metrics.set_tokenizer(fingerprint="a", engine="reference")
    metrics.set_tokenizer(fingerprint="a", engine="fast")
    assert value(metrics, "tokend_tokenizer_info", fingerprint="a") == 1


def test_the_build_and_the_process_are_told(metrics):
    assert value(metrics, "tokend_build_info", version="1.2.3") == 1
    assert value(metrics, "process_resident_memory_bytes") > 0


def test_the_page_is_valid_openmetrics(metrics):
    metrics.work("Encode").answered(Usage(n_tokens=5, n_texts=1, text_bytes=20, characters=18))
    text = openmetrics.generate_latest(metrics.registry).decode()
    families = {family.name: family for family in parse_openmetrics(text)}
    assert {"tokend_tokens", "tokend_request_tokens", "grpc_server_handled"} <= families.keys()
    (total,) = [
        each
        for each in families["tokend_tokens"].samples
        if each.labels == {"method": "Encode", "caller": "anonymous"}
    ]
    assert (total.name, total.value) == ("tokend_tokens_total", 5)


def test_two_servers_in_a_process_do_not_mix(metrics):
    other = Metrics(methods_of(SERVICE), version="1")
    other.work("Encode").answered(Usage(n_tokens=5, n_texts=1, text_bytes=1, characters=1))
    assert value(metrics, "tokend_tokens_total", method="Encode") == 0


def test_no_increment_is_lost_between_threads(metrics):
    encode = metrics.work("Encode")

    def work() -> None:
        for _ in range(5000):
            call = encode.started()
            encode.answered(Usage(n_tokens=2, n_texts=1, text_bytes=1, characters=1))
            call.handled(0)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(metrics, "tokend_tokens_total", method="Encode") == 80_000
    assert value(metrics, "tokend_request_tokens_count", method="Encode") == 40_000
    assert value(metrics, "tokend_in_flight_calls", method="Encode") == 0


@given(st.lists(st.one_of(st.floats(0, 100), st.sampled_from([0.5, 1.0, 2.0]))))
def test_a_histogram_counts_each_value_at_or_below_its_bounds(values):
    table = CellTable()
    bounds = (0.5, 1.0, 2.0)
    histogram = table.histogram("h", "Some.", bounds)
    for each in values:
        histogram.observe(table.cells, each)
    (family,) = table.collect()
    shown = {(s.name, s.labels.get("le")): s.value for s in family.samples}
    for bound in bounds:
        assert shown["h_bucket", str(bound)] == len([each for each in values if each <= bound])
    assert shown["h_bucket", "+Inf"] == shown["h_count", None] == len(values)
    assert shown["h_sum", None] == pytest.approx(sum(values))


def test_counting_a_call_costs_microseconds(metrics):
    usage = Usage(n_tokens=50, n_texts=1, text_bytes=200, characters=200)

    def call() -> None:
        one = metrics.method(path("Encode")).started()
        one.begun()
        one.received()
        one.sent()
        one.handled(0, amounts=usage)

    # About 3 us on a quiet machine; the bound is for a loaded one.
    assert min(timeit.repeat(call, number=2000, repeat=10)) / 2000 < 50e-6
