"""Where the client connects and with which options."""

import json
import pickle
import subprocess
import sys
from typing import Any

import pytest

import tokend
from tokend._channel import ConnectionSettings
from tokend._target import Target


def options(target: str | list[str] = "tokend:50051", **settings: Any) -> dict[str, Any]:
    chosen = {
        "connections": 1,
        "token": None,
        "tls": None,
        "allow_plaintext_token": False,
        "channel_options": (),
        **settings,
    }
    return dict(ConnectionSettings(target=Target.read(target), **chosen).options())


@pytest.mark.parametrize(
    ("target", "loopback", "balanced"),
    [
        ("127.0.0.1:50051", True, False),
        ("127.3.2.1:1", True, False),
        ("localhost:50051", True, False),
        ("[::1]:50051", True, False),
        ("ipv4:127.0.0.1:50051", True, False),
        ("ipv6:[::1]:50051", True, False),
        ("unix:/run/tokend.sock", True, False),
        ("unix:///run/tokend.sock", True, False),
        ("dns:///localhost:50051", True, False),
        ("10.0.0.7:50051", False, False),
        ("[2001:db8::1]:50051", False, False),
        ("tokend:50051", False, True),
        ("tokend", False, True),
        ("dns:tokend:50051", False, True),
        ("dns:///tokend.models.svc:50051", False, True),
        ("dns://8.8.8.8/tokend:50051", False, True),
        ("127.0.0.1.example.org:50051", False, True),
        ("127.0.0.1:1,127.0.0.2:1", True, True),
        ("ipv4:127.0.0.1:1,10.0.0.7:1", False, True),
    ],
)
def test_targets_are_told_apart(target: str, loopback: bool, balanced: bool) -> None:
    read = Target.read(target)
    assert (read.is_loopback, read.is_balanced) == (loopback, balanced)


@pytest.mark.parametrize(
    ("target", "uri"),
    [
        (["10.0.0.7:50051", "10.0.0.8:50051"], "ipv4:10.0.0.7:50051,10.0.0.8:50051"),
        (("[2001:db8::1]:1", "[2001:db8::2]:2"), "ipv6:[2001:db8::1]:1,[2001:db8::2]:2"),
        ("10.0.0.7:1, 10.0.0.8:1", "ipv4:10.0.0.7:1,10.0.0.8:1"),
        (["tokend:50051"], "tokend:50051"),
    ],
)
def test_several_addresses_become_one_target(target: list[str] | str, uri: str) -> None:
    assert Target.read(target).uri == uri


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (["tokend-a:50051", "10.0.0.7:50051"], "'tokend-a:50051' is none"),
        (["10.0.0.7", "10.0.0.8:1"], "'10.0.0.7' is none"),
        (["unix:/a", "unix:/b"], "'unix:/a' is none"),
        (["10.0.0.7:1", "[2001:db8::1]:1"], "IPv4 and IPv6"),
        ("10.0.0.7:1,", "'' is none"),
        ([], "empty"),
    ],
)
def test_what_cannot_stand_among_several_addresses_is_refused(target: list[str] | str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Target.read(target)


def test_several_servers_are_not_called_by_all_of_their_addresses() -> None:
    assert options(["10.0.0.7:1", "10.0.0.8:1"])["grpc.default_authority"] == "10.0.0.7:1"
    assert "grpc.default_authority" not in options()


def test_only_unary_methods_are_retried_and_only_where_no_server_took_the_call() -> None:
    config = json.loads(options()["grpc.service_config"])
    (method,) = config["methodConfig"]
    names = {entry["method"] for entry in method["name"]}
    assert not names & {"StreamEncode", "StreamDecode", "DownloadTokenizer", ""}
    assert len(names) == 7
    assert method["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE", "CANCELLED"]


def test_names_are_balanced_over_their_addresses() -> None:
    for target in ("tokend:50051", ["10.0.0.7:1", "10.0.0.8:1"]):
        config = json.loads(options(target)["grpc.service_config"])
        assert config["loadBalancingConfig"] == [{"round_robin": {}}]
        assert config["healthCheckConfig"] == {"serviceName": "tokend.v1.TokenizerService"}
    alone = json.loads(options("10.0.0.7:1")["grpc.service_config"])
    assert not {"loadBalancingConfig", "healthCheckConfig"} & alone.keys()


def test_proxies_are_left_alone_but_for_this_machine() -> None:
    assert "grpc.enable_http_proxy" not in options()
    assert options("localhost:1")["grpc.enable_http_proxy"] == 0


def test_messages_may_be_64_mib_both_ways() -> None:
    assert (
        options()["grpc.max_send_message_length"] == options()["grpc.max_receive_message_length"] == 64 << 20
    )


def test_connections_of_one_client_share_nothing() -> None:
    assert options(connections=2)["grpc.use_local_subchannel_pool"] == 1


def test_the_callers_channel_options_win() -> None:
    assert options(channel_options=(("grpc.keepalive_time_ms", 5),))["grpc.keepalive_time_ms"] == 5


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"target": ""}, ValueError),
        ({"target": 5}, TypeError),
        ({"connections": 0}, ValueError),
        ({"connections": True}, TypeError),
        ({"timeout_s": -1}, ValueError),
        ({"timeout_s": float("nan")}, ValueError),
        ({"timeout_s": "1"}, TypeError),
        ({"token": "two words"}, ValueError),
        ({"token": "line\n"}, ValueError),
        ({"tls": "yes"}, TypeError),
        ({"expected_fingerprint": "ab"}, ValueError),
        ({"wait_for_ready": 1}, TypeError),
    ],
)
@pytest.mark.parametrize("client", [tokend.Client, tokend.AsyncClient])
def test_bad_settings_are_refused_when_a_client_is_made(
    client: type[Any], settings: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind) as raised:
        client(**settings)
    assert "two words" not in str(raised.value)


@pytest.mark.parametrize("client", [tokend.Client, tokend.AsyncClient])
def test_a_token_leaves_this_machine_encrypted_unless_the_caller_says_so(client: type[Any]) -> None:
    with pytest.raises(ValueError, match="unencrypted") as raised:
        client("tokend:50051", token="s3cret")
    assert "s3cret" not in str(raised.value)
    for target in ("127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/run/tokend.sock"):
        client(target, token="s3cret")
    client("tokend:50051", token="s3cret", tls=True)
    client("tokend:50051", token="s3cret", allow_plaintext_token=True)
    client("tokend:50051")


def test_several_servers_with_tls_take_the_name_in_their_certificates() -> None:
    several = ["10.0.0.7:1", "10.0.0.8:1"]
    with pytest.raises(ValueError, match="server_name"):
        tokend.Client(several, tls=True)
    named = options(several, tls=tokend.Tls(server_name="tokend.internal"))
    assert named["grpc.ssl_target_name_override"] == "tokend.internal"


def test_a_key_without_its_certificates_is_refused() -> None:
    with pytest.raises(ValueError, match="go together"):
        tokend.Tls(private_key=b"key")


def test_secrets_stay_out_of_reprs() -> None:
    settings = ConnectionSettings(
        target=Target.read("127.0.0.1:1"),
        connections=1,
        token="s3cret",
        tls=None,
        allow_plaintext_token=False,
        channel_options=(),
    )
    assert "s3cret" not in repr(settings)
    assert "s3cret" not in repr(tokend.Client("127.0.0.1:1", token="s3cret"))
    assert "key" not in repr(tokend.Tls(private_key=b"key", certificate_chain=b"chain")).replace(
        "private_key", ""
    )


def test_importing_and_making_a_client_starts_no_thread_and_no_connection() -> None:
    code = """
import threading, tokend
client = tokend.Client("127.0.0.1:9")
tokend.AsyncClient("127.0.0.1:9")
assert threading.active_count() == 1, threading.enumerate()
import socket
mine = socket.socket()
assert mine.fileno() == 3, "something else is open"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_the_client_loads_neither_numpy_nor_the_server() -> None:
    code = (
        "import sys, tokend; print([m for m in ('numpy', 'tokenizers', 'tokend_server') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_errors_survive_pickling() -> None:
    error = tokend.TooLargeError(
        "big", reason="TEXT_TOO_LARGE", metadata={"index": "4", "limit": "7"}, request_id="r"
    )
    error.renumber(100)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is tokend.TooLargeError
    assert (str(again), again.index, again.limit, again.request_id) == (str(error), 104, 7, "r")
    deadline = pickle.loads(pickle.dumps(tokend.DeadlineExceededError("late")))
    assert isinstance(deadline, TimeoutError)
    assert deadline.message == "late"


def test_results_survive_pickling_and_compare_by_value() -> None:
    one = tokend.Encoded(packed_ids=b"\1\0\0\0", token_count=1, total_token_count=1)
    assert one.ids == [1]
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert again.ids == [1]
