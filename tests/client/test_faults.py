"""What the clients do when servers fail: retry what is safe, resume what can be, and say the rest aloud."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2

import tokend
from tests.client.scripted_server import FINGERPRINT, Fault, ScriptedServer

Connect = Callable[..., Any]


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.stop()


def test_unary_calls_are_sent_again_while_the_server_is_unavailable(
    scripted: ScriptedServer, connect: Connect
) -> None:
    scripted.faults = [Fault(), Fault()]
    assert connect(scripted.start()).encode("hi").ids == [104, 105]
    assert scripted.calls == ["Encode"] * 3


def test_unary_retries_end(scripted: ScriptedServer, connect: Connect) -> None:
    scripted.faults = [Fault() for _ in range(20)]
    with pytest.raises(tokend.UnavailableError, match="scripted"):
        connect(scripted.start()).encode("hi")
    assert len(scripted.calls) == 5


def test_a_call_that_a_stopping_server_cancels_is_sent_again(
    scripted: ScriptedServer, connect: Connect
) -> None:
    scripted.faults = [Fault(code=grpc.StatusCode.CANCELLED)]
    assert connect(scripted.start()).encode("hi").ids == [104, 105]
    assert scripted.calls == ["Encode"] * 2


def test_a_server_that_cancels_whatever_comes_is_unavailable(
    scripted: ScriptedServer, connect: Connect
) -> None:
    scripted.faults = [Fault(code=grpc.StatusCode.CANCELLED) for _ in range(20)]
    client = connect(scripted.start())
    with pytest.raises(tokend.UnavailableError, match="scripted") as raised:
        client.encode("hi")
    assert raised.value.code is grpc.StatusCode.CANCELLED
    with pytest.raises(tokend.UnavailableError):
        client.decoder().push(104)


def test_an_encode_stream_that_a_stopping_server_cancels_goes_on(
    scripted: ScriptedServer, connect: Connect
) -> None:
    scripted.faults = [Fault(code=grpc.StatusCode.CANCELLED, after=1)]
    texts = ["a", "b", "c"]
    streamed = connect(scripted.start()).encode_stream(texts, batch_texts=1)
    assert [each.ids for each in streamed] == [[97], [98], [99]]


def test_only_what_no_server_took_is_retried(scripted: ScriptedServer, connect: Connect) -> None:
    scripted.faults = [Fault(code=grpc.StatusCode.INTERNAL)]
    with pytest.raises(tokend.InternalError):
        connect(scripted.start()).encode("hi")
    assert scripted.calls == ["Encode"]


def test_an_error_carries_the_reason_metadata_request_id_and_retry_delay(
    scripted: ScriptedServer, connect: Connect
) -> None:
    info, delay = AnyMessage(), AnyMessage()
    info.Pack(error_details_pb2.ErrorInfo(reason="TEXT_TOO_LARGE", domain="tokend", metadata={"limit": "7"}))
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(1500)
    delay.Pack(retry)
    status = status_pb2.Status(code=3, message="scripted", details=[info, delay])
    trailing = (("grpc-status-details-bin", status.SerializeToString()), ("tokend-request-id", "r-1"))
    scripted.faults = [Fault(code=grpc.StatusCode.INVALID_ARGUMENT, trailing=trailing)]
    with pytest.raises(tokend.TooLargeError) as raised:
        connect(scripted.start()).encode("hi")
    error = raised.value
    assert (error.reason, error.limit, error.request_id, error.retry_delay_s) == (
        "TEXT_TOO_LARGE",
        7,
        "r-1",
        1.5,
    )
    assert str(error) == "TEXT_TOO_LARGE: scripted [request r-1]"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, tokend.UnauthenticatedError),
        (grpc.StatusCode.PERMISSION_DENIED, tokend.PermissionDeniedError),
        (grpc.StatusCode.UNIMPLEMENTED, tokend.UnsupportedError),
        (grpc.StatusCode.UNKNOWN, tokend.InternalError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, tokend.TooLargeError),
        (grpc.StatusCode.ABORTED, tokend.TokendError),
    ],
)
def test_a_status_without_details_still_says_what_to_do(
    scripted: ScriptedServer, connect: Connect, code: grpc.StatusCode, kind: type[tokend.TokendError]
) -> None:
    scripted.faults = [Fault(code=code)]
    with pytest.raises(kind) as raised:
        connect(scripted.start()).encode("hi")
    assert (raised.value.code, raised.value.reason) == (code, "")


def test_a_call_that_takes_too_long_ends_at_its_time_limit(
    scripted: ScriptedServer, connect: Connect
) -> None:
    scripted.faults = [Fault(hang_s=2)]
    client = connect(scripted.start(), timeout_s=60.0)
    started_s = time.monotonic()
    with pytest.raises(tokend.DeadlineExceededError) as raised:
        client.encode("hi", timeout_s=0.2)
    assert time.monotonic() - started_s < 1.5
    assert isinstance(raised.value, TimeoutError)


@pytest.mark.parametrize("method", ["encode_stream", "decode_stream"])
def test_an_answer_of_a_stream_that_does_not_come_ends_it_at_the_time_limit(
    scripted: ScriptedServer, connect: Connect, method: str
) -> None:
    scripted.faults = [Fault(hang_s=2)]
    client = connect(scripted.start(), timeout_s=0.3)
    started_s = time.monotonic()
    with pytest.raises(tokend.DeadlineExceededError, match=r"0\.3 s"):
        list(getattr(client, method)(["hi"] if method == "encode_stream" else [104]))
    assert time.monotonic() - started_s < 1.5


def test_a_stream_may_last_longer_than_the_time_limit_of_its_answers(
    scripted: ScriptedServer, connect: Connect
) -> None:
    def slow_ids() -> Iterator[int]:
        for token_id in b"abcd":
            time.sleep(0.2)
            yield token_id

    client = connect(scripted.start(), timeout_s=0.5)
    assert "".join(client.decode_stream(slow_ids())) == "abcd"


def test_an_encode_stream_resumes_from_the_first_batch_without_an_answer(
    scripted: ScriptedServer, connect: Connect
) -> None:
    scripted.faults = [Fault(after=3), Fault(), Fault(after=2)]
    texts = [f"text {number}" for number in range(20)]
    encoded = list(connect(scripted.start()).encode_stream(texts, batch_texts=2, in_flight=4))
    assert [bytes(one.ids).decode() for one in encoded] == texts
    assert scripted.calls == ["StreamEncode"] * 4
    assert scripted.batches == list(range(0, 20, 2)), "a batch that was answered went out again"


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED])
def test_a_stream_that_is_refused_says_why_though_messages_were_on_their_way(
    scripted: ScriptedServer, connect: Connect, code: grpc.StatusCode
) -> None:
    scripted.faults = [Fault(code=code) for _ in range(10)]
    client = connect(scripted.start())
    with pytest.raises(tokend.TokendError) as raised:
        list(client.encode_stream(["text"] * 100, batch_texts=1))
    assert raised.value.code is code


def test_an_encode_stream_gives_up_on_a_server_that_stays_away(
    scripted: ScriptedServer, connect: Connect
) -> None:
    scripted.faults = [Fault(after=1), *(Fault() for _ in range(30))]
    stream = connect(scripted.start()).encode_stream(["a", "b"], batch_texts=1)
    assert next(stream).ids == [97]
    with pytest.raises(tokend.UnavailableError):
        next(stream)
    assert len(scripted.calls) < 12


def test_an_answer_to_another_batch_is_an_error(scripted: ScriptedServer, connect: Connect) -> None:
    scripted.wrong_batch_ids = True
    with pytest.raises(tokend.InternalError, match="batch"):
        list(connect(scripted.start()).encode_stream(["a"]))


def test_a_stream_that_ends_well_but_early_is_an_error(scripted: ScriptedServer, connect: Connect) -> None:
    client = connect(scripted.start())
    scripted.faults = [Fault(after=1, end=True)]
    with pytest.raises(tokend.InternalError, match="ended the stream"):
        list(client.encode_stream(["a", "b"], batch_texts=1))


def test_a_started_decode_stream_is_never_sent_again(scripted: ScriptedServer, connect: Connect) -> None:
    scripted.faults = [Fault(after=3)]
    client = connect(scripted.start())
    pieces = []
    with pytest.raises(tokend.UnavailableError):
        pieces.extend(client.decode_stream(iter(b"abcdef")))
    assert pieces == ["a", "b", "c"]
    assert scripted.calls == ["StreamDecode"]


def test_a_sequence_that_the_server_ends_unasked_is_not_taken_for_complete(
    scripted: ScriptedServer, connect: Connect
) -> None:
    scripted.faults = [Fault(after=2, end=True)]
    client = connect(scripted.start())
    pieces = []
    with pytest.raises(tokend.UnavailableError) as raised:
        pieces.extend(client.decode_stream(iter(b"abcdef")))
    assert pieces == ["a", "b", "~"]
    assert raised.value.reason == "SHUTTING_DOWN"


def test_a_failed_decoder_goes_on_saying_why(scripted: ScriptedServer, connect: Connect) -> None:
    scripted.faults = [Fault(after=1)]
    decoder = connect(scripted.start()).decoder()
    assert decoder.push(97) == "a"
    for _ in range(2):
        with pytest.raises(tokend.UnavailableError):
            decoder.push(98)
    with pytest.raises(tokend.UnavailableError):
        decoder.finish()


def test_a_download_that_does_not_fit_its_sha256_is_an_error(
    scripted: ScriptedServer, connect: Connect
) -> None:
    with pytest.raises(tokend.InternalError, match="sha256"):
        connect(scripted.start()).download()


def test_a_client_finds_a_server_that_came_back_within_two_seconds(connect: Connect) -> None:
    first = ScriptedServer()
    target = first.start()
    client = connect(target)
    assert client.encode("a").ids == [97]
    first.stop()
    gone_until_s = time.monotonic() + 3
    while time.monotonic() < gone_until_s:
        with pytest.raises(tokend.UnavailableError):
            client.encode("a")
    second = ScriptedServer()
    second.start(target)
    back_s = time.monotonic()
    while True:
        try:
            client.encode("a")
            break
        except tokend.UnavailableError:
            assert time.monotonic() - back_s < 2
    assert time.monotonic() - back_s < 2
    second.stop()


def test_a_client_without_a_server_fails_at_once_and_lives_on(connect: Connect) -> None:
    server = ScriptedServer()
    target = server.start()
    server.stop()
    client = connect(target)
    started_s = time.monotonic()
    with pytest.raises(tokend.UnavailableError):
        client.encode("a")
    assert time.monotonic() - started_s < 4
    server.start(target)
    time.sleep(1.2)
    assert client.encode("a").ids == [97]
    server.stop()


def test_a_client_that_waits_gets_its_answer_once_the_server_is_up(connect: Connect) -> None:
    server = ScriptedServer()
    target = server.start()
    server.stop()
    timer = threading.Timer(1.0, lambda: server.start(target))
    timer.start()
    assert connect(target, wait_for_ready=True).encode("a").ids == [97]
    timer.join()
    server.stop()


def test_one_client_uses_one_connection_however_many_calls(
    scripted: ScriptedServer, connect: Connect
) -> None:
    client = connect(scripted.start())
    for _ in range(200):
        client.encode("a")
    assert len(scripted.peers) == 1


def test_calls_take_turns_on_the_connections(scripted: ScriptedServer, connect: Connect) -> None:
    client = connect(scripted.start(), connections=3)
    for _ in range(6):
        client.encode("a")
    assert len(scripted.peers) == 3


def test_the_token_and_the_user_agent_travel_with_a_call(scripted: ScriptedServer, connect: Connect) -> None:
    connect(scripted.start(), token="s3cret").encode("a")
    assert scripted.metadata["authorization"] == "Bearer s3cret"
    assert scripted.metadata["user-agent"].startswith("tokend-python/")


def test_proxies_of_the_environment_are_not_used_for_this_machine(
    scripted: ScriptedServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    assert connect(scripted.start()).encode("a").fingerprint == FINGERPRINT


def test_no_more_batches_are_drawn_than_may_be_in_flight(scripted: ScriptedServer, connect: Connect) -> None:
    drawn = []

    def texts() -> Iterator[str]:
        for number in range(100):
            drawn.append(number)
            yield "x"

    stream = connect(scripted.start()).encode_stream(texts(), batch_texts=5, in_flight=2)
    next(stream)
    # Two batches on their way, and the text that showed that the second one was full.
    assert len(drawn) <= 16
    stream.close()


def test_a_closed_client_says_so(scripted: ScriptedServer, connect: Connect) -> None:
    client = connect(scripted.start())
    client.encode("a")
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.encode("a")
