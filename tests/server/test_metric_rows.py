"""Metrics of several processes: rows in shared memory, added up by whoever is scraped."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tokend.v1 import tokenizer_service_pb2
from tokend_server.metric_rows import SharedRows
from tokend_server.metrics import Metrics, methods_of
from tokend_server.process_metrics import ProcessCollector, ProcessTable, cpu_seconds
from tokend_server.service.usage import Usage

SERVICE = tokenizer_service_pb2.DESCRIPTOR.services_by_name["TokenizerService"]
METHODS = methods_of(SERVICE)
ENCODE = "/tokend.v1.TokenizerService/Encode"


@pytest.fixture
def rows() -> SharedRows:
    return SharedRows(3, Metrics(METHODS, version="1").n_cells)


def on(rows: SharedRows, n: int) -> Metrics:
    return Metrics(METHODS, version="1", row=rows.row(n))


def value(metrics: Metrics, name: str, **labels: str) -> float:
    found = [
        sample.value
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode())
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, found
    return found[0]


def test_a_scrape_of_any_process_shows_the_sum_of_all(rows):
    first, second, scraped = (on(rows, n) for n in range(3))
    first.work("Encode").answered(Usage(n_tokens=5, n_texts=1, text_bytes=20, characters=18))
    second.work("Encode").answered(Usage(n_tokens=7, n_texts=1, text_bytes=20, characters=18))
    second.method(ENCODE).started()
    for metrics in (first, second, scraped):
        assert value(metrics, "tokend_tokens_total", method="Encode") == 12
        assert value(metrics, "tokend_request_tokens_count", method="Encode") == 2
        assert value(metrics, "tokend_request_tokens_sum", method="Encode") == 12
        assert value(metrics, "tokend_in_flight_calls", method="Encode") == 1


def test_the_next_process_on_a_row_goes_on_from_its_counts_and_has_no_gauges(rows):
    dead, scraped = on(rows, 0), on(rows, 2)
    dead.work("Encode").answered(Usage(n_tokens=5, n_texts=1, text_bytes=20, characters=18))
    dead.method(ENCODE).started()
    dead.live_sequences.add(4)
    dead.worker.become("serving")
    rows.bury(0, scraped.gauges())
    assert value(scraped, "tokend_in_flight_calls", method="Encode") == 0
    assert value(scraped, "tokend_live_sequences") == 0
    assert value(scraped, "tokend_workers", state="serving") == 0
    assert value(scraped, "grpc_server_started_total", grpc_method="Encode") == 1
    successor = on(rows, 0)
    successor.work("Encode").answered(Usage(n_tokens=1, n_texts=1, text_bytes=1, characters=1))
    assert value(scraped, "tokend_tokens_total", method="Encode") == 6


def test_a_worker_is_in_one_state(rows):
    workers, scraped = [on(rows, 0), on(rows, 1)], on(rows, 2)
    for metrics in workers:
        metrics.worker.become("starting")
    workers[0].worker.become("serving")
    assert [scraped.worker.count(state) for state in ("starting", "serving", "draining", "down")] == [
        1,
        1,
        0,
        0,
    ]
    scraped.worker.down(1)
    scraped.worker.down(-1)
    assert scraped.worker.count("down") == 0


def test_labels_are_those_of_the_living_each_once(rows):
    workers, scraped = [on(rows, 0), on(rows, 1)], on(rows, 2)
    for metrics in workers:
        metrics.set_tokenizer(fingerprint="f", engine="reference", name="é日\ud800" * 200)
    assert value(scraped, "tokend_tokenizer_info") == 1
    workers[1].set_tokenizer(fingerprint="f", engine="fast")
    assert value(scraped, "tokend_tokenizer_info", engine="reference") == 1
    assert value(scraped, "tokend_tokenizer_info", engine="fast") == 1
    rows.bury(0, scraped.gauges())
    assert value(scraped, "tokend_tokenizer_info") == 1
    rows.bury(1, scraped.gauges())
    assert "tokend_tokenizer_info{" not in generate_latest(scraped.registry).decode()


def test_labels_are_read_whole_or_not_at_all_while_they_are_written(rows):
    writer, stopped = rows.row(0), threading.Event()
    every = [{"tokend_tokenizer": {"name": letter * 100 * n}} for n, letter in enumerate("abc", start=1)]

    def write() -> None:
        while not stopped.is_set():
            for labels in every:
                writer.set_labels(labels)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(2000):
            assert all(labels in every for labels in rows.all_labels())
    finally:
        stopped.set()
        thread.join()
    assert rows.all_labels() == [every[-1]]


def test_a_row_that_is_too_short_is_refused():
    with pytest.raises(ValueError, match="too short"):
        on(SharedRows(3, 10), 0)


def samples(collector: ProcessCollector) -> dict[str, float]:
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


@pytest.fixture
def busy():
    """A process that has used some time."""
    program = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_all_processes_of_a_server_are_one_and_each_worker_is_told(busy):
    table = ProcessTable(workers=[0, 1], n_others=1)
    collector = ProcessCollector(table)
    assert samples(collector)["process_cpu_seconds_total"] == 0
    table.began(1, busy.pid)
    table.began(2, os.getpid())
    shown = samples(collector)
    assert 0.1 < shown["tokend_worker_cpu_seconds_total1"] < shown["process_cpu_seconds_total"]
    assert shown["tokend_worker_cpu_seconds_total0"] == 0
    assert 10**6 < shown["tokend_worker_memory_bytes1"] < shown["process_resident_memory_bytes"]
    assert shown["process_open_fds"] > 3
    assert abs(shown["process_start_time_seconds"] - start_time_s(os.getpid())) < 2


def start_time_s(pid: int) -> float:
    return Path(f"/proc/{pid}").stat().st_mtime


def test_the_time_of_dead_processes_is_not_lost(busy):
    table = ProcessTable(workers=[0])
    collector = ProcessCollector(table)
    table.began(0, busy.pid)
    before = samples(collector)["process_cpu_seconds_total"]
    os.kill(busy.pid, signal.SIGKILL)
    os.waitid(os.P_PID, busy.pid, os.WEXITED | os.WNOWAIT)
    cpu_s = cpu_seconds(busy.pid)
    assert cpu_s >= before > 0.1
    busy.wait()
    # Dead, and the table does not know yet.
    assert samples(collector)["process_cpu_seconds_total"] >= before
    table.ended(0, cpu_s)
    after = samples(collector)
    assert after["process_cpu_seconds_total"] == after["tokend_worker_cpu_seconds_total0"] == cpu_s
    assert after["process_resident_memory_bytes"] == 0
