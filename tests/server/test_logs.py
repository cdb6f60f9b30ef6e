import io
import json
import logging
import re
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokend_server import logs

SECRET = "the user's own words"


@pytest.fixture(autouse=True)
def logging_as_before():
    root, own = logging.getLogger(), logging.getLogger("tokend")
    before = (root.handlers[:], root.level, own.level, threading.excepthook, sys.unraisablehook)
    yield
    root.handlers[:], level, own_level, threading.excepthook, sys.unraisablehook = before
    root.setLevel(level)
    own.setLevel(own_level)


def lines(capsys) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_json_has_one_object_a_line_with_message_and_fields(capsys):
    logs.configure("info", "json")
    logs.get("service").info(
        "call refused", reason="INVALID_OPTION", size=3, seconds=0.5, ok=False, index=None
    )
    (line,) = lines(capsys)
    record = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record.pop("time"))
    assert record == {
        "level": "info",
        "logger": "tokend.service",
        "message": "call refused",
        "reason": "INVALID_OPTION",
        "size": 3,
        "seconds": 0.5,
        "ok": False,
        "index": None,
    }


def test_text_is_one_line_with_fields_behind_the_message(capsys):
    logs.configure("info", "text")
    logs.get("app").info("tokend serves", grpc="127.0.0.1:50051", name="my file", n=2)
    (line,) = lines(capsys)
    assert line.endswith('INFO    tokend.app tokend serves grpc=127.0.0.1:50051 name="my file" n=2')


@pytest.mark.parametrize("log_format", ["text", "json"])
@given(value=st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_no_value_breaks_the_line(capsys, log_format, value):
    logs.configure("info", log_format)
    logs.get("app").info("message", value=value + "\n\r\u2028\ud800")
    written = capsys.readouterr().err
    assert written.isascii()
    assert len(written.splitlines()) == 1


def test_a_field_cannot_replace_the_fixed_keys(capsys):
    logs.configure("info", "json")
    logs.get("app").info("message", level="x", logger="y", time="z")
    record = json.loads(lines(capsys)[0])
    assert (record["level"], record["logger"]) == ("info", "tokend.app")
    assert record["time"] != "z"


def test_long_values_are_cut(capsys):
    logs.configure("info", "json")
    logs.get("app").info("message", value="a" * 100_000)
    assert len(lines(capsys)[0]) < 1000


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_is_no_plain_value_shows_its_type_alone(capsys, log_format):
    class Request:
        def __str__(self):
            return SECRET

        __repr__ = __str__

    logs.configure("info", log_format)
    logs.get("app").info("message", request=Request())
    (line,) = lines(capsys)
    assert SECRET not in line
    assert "<Request>" in line


def test_the_level_is_the_least_severe_that_is_written(capsys):
    logs.configure("warning", "text")
    log = logs.get("app")
    log.debug("d")
    log.info("i")
    log.warning("w")
    log.error("e")
    assert [line.split()[3] for line in lines(capsys)] == ["w", "e"]
    assert not log.is_debug()
    logs.configure("debug", "text")
    assert log.is_debug()


def test_configuring_again_does_not_write_twice(capsys):
    logs.configure("info", "text")
    logs.configure("info", "json")
    logs.get("app").info("once")
    assert len(lines(capsys)) == 1


def raise_deep(depth: int) -> None:
    if depth:
        raise_deep(depth - 1)
    raise ValueError(SECRET)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_exception_is_told_by_type_and_places_without_its_message(capsys, log_format):
    logs.configure("info", log_format)
    try:
        raise_deep(2)
    except ValueError as error:
        logs.get("app").error("fault", error=error, request_id="r1")
    (line,) = lines(capsys)
    assert "ValueError" in line
    assert "raise_deep" in line
    assert "test_logs.py" in line
    assert SECRET not in line


def test_an_exception_whose_text_cannot_be_printed_is_logged_all_the_same(capsys):
    class UnprintableError(Exception):
        def __str__(self):
            raise RuntimeError

    logs.configure("info", "text")
    logs.get("app").error("fault", error=UnprintableError())
    assert "UnprintableError" in lines(capsys)[0]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_a_library_logs_is_reduced_to_who_and_where(capsys, log_format):
    logs.configure("debug", log_format)
    try:
        raise_deep(0)
    except ValueError:
        logging.getLogger("grpc._server").exception(f"Exception calling application: {SECRET} %s", SECRET)  # noqa: G004
    logging.getLogger("grpc").info("not even mentioned")
    (line,) = lines(capsys)
    assert SECRET not in line
    assert "grpc._server" in line
    assert "ValueError" in line


def test_an_exception_that_ends_a_thread_is_logged_without_its_message(capsys):
    logs.configure("info", "text")
    thread = threading.Thread(target=raise_deep, args=(1,))
    thread.start()
    thread.join()
    (line,) = lines(capsys)
    assert "ValueError" in line
    assert SECRET not in line


def test_a_stderr_that_cannot_be_written_does_not_fail_the_caller(monkeypatch):
    logs.configure("info", "text")
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    logs.get("app").info("nobody reads this")
