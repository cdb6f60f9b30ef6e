"""Every method behind the tokens of a file: refused without one, with a wrong one, and with one that is not for it."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from tests.integration.tokens import ALL, Permission, bearer, new_token, write_tokens
from tests.integration.wire import Failure, Wire, encode_options, one_sequence, refused, until
from tests.servers import RunningServer, fails_to_start
from tests.tokenizers_for_tests import byte_level_bpe
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend_server.config import load
from tokend_server.credentials import read_credentials
from tokend_server.errors import CredentialsError
from tokend_server.transport.permissions import PERMISSIONS

SERVICES = [
    *pb.DESCRIPTOR.services_by_name.values(),
    *reflection_pb2.DESCRIPTOR.services_by_name.values(),
    *health_pb2.DESCRIPTOR.services_by_name.values(),
]
METHODS = {f"/{service.full_name}/{each.name}": each for service in SERVICES for each in service.methods}
GUARDED = {path: each for path, each in METHODS.items() if not path.startswith("/grpc.health.")}

TOKENS = {
    "chat": ([Permission.TOKENIZE], new_token()),
    "mirror": ([Permission.DOWNLOAD], new_token()),
    "operator": ([Permission.ADMIN], new_token()),
    "all": (ALL, new_token()),
}


def entries(*names: str) -> list[tuple[str, list[Permission], str]]:
    return [(name, *TOKENS[name]) for name in names]


@pytest.fixture(scope="session")
def guarded_server(server_for, tmp_path_factory) -> RunningServer:
    file = write_tokens(tmp_path_factory.mktemp("tokens") / "tokens.toml", entries(*TOKENS))
    return server_for(byte_level_bpe(), "--auth-tokens-file", str(file), "--log-level", "debug")


@pytest.fixture
def guarded(wire_to: Callable[[RunningServer], Wire], guarded_server: RunningServer) -> Wire:
    return wire_to(guarded_server)


def call(wire: Wire, path: str, metadata) -> object:
    """Call any method with one empty message, and read what comes."""
    method = METHODS[path]
    kinds = {
        (False, False): wire.channel.unary_unary,
        (False, True): wire.channel.unary_stream,
        (True, True): wire.channel.stream_stream,
    }
    made = kinds[method.client_streaming, method.server_streaming](path)
    request = iter([b""]) if method.client_streaming else b""
    answer = made(request, timeout=20, metadata=metadata)
    return list(answer) if method.server_streaming else answer


def assert_refused(failure: Failure, reason: str) -> None:
    assert (failure.code.name, failure.reason, failure.domain, failure.metadata) == (
        reason,
        reason,
        "tokend",
        {},
    )
    assert failure.message


def test_every_served_method_takes_a_permission_or_is_health():
    assert {method.name for method in GUARDED.values()} == set(PERMISSIONS)
    assert len(GUARDED) == len(PERMISSIONS) == 11


WRONG = {
    "no token": [],
    "a token that nobody has": bearer(new_token()),
    "an empty one": [("authorization", "Bearer ")],
    "another scheme": [("authorization", "Basic dXNlcjpwYXNz")],
    "a token without its scheme": [("authorization", TOKENS["all"][1])],
    "a token cut short": bearer(TOKENS["all"][1][:-1]),
    "a digest for a token": bearer("ab" * 32),
    "a token under another name": [("x-authorization", f"Bearer {TOKENS['all'][1]}")],
}


@pytest.mark.parametrize("path", GUARDED)
def test_a_method_is_refused_without_a_token_that_is_known(guarded: Wire, path):
    for metadata in WRONG.values():
        assert_refused(refused_call(guarded, path, metadata), "UNAUTHENTICATED")


@pytest.mark.parametrize("path", GUARDED)
def test_a_method_is_refused_to_a_token_that_is_for_something_else(guarded: Wire, path):
    permission = PERMISSIONS[GUARDED[path].name]
    others = [token for permissions, token in TOKENS.values() if permission not in permissions]
    assert len(others) == 2
    for token in others:
        failure = refused_call(guarded, path, bearer(token))
        assert_refused(failure, "PERMISSION_DENIED")
        assert f"`{permission}`" in failure.message


@pytest.mark.parametrize("path", GUARDED)
def test_a_method_is_open_to_a_token_that_is_for_it(guarded: Wire, path):
    permission = PERMISSIONS[GUARDED[path].name]
    for permissions, token in TOKENS.values():
        if permission in permissions:
            call(guarded, path, bearer(token))
            call(guarded, path, [("authorization", f"bearer  {token}")])


def refused_call(wire: Wire, path: str, metadata) -> Failure:
    return refused(lambda **_: call(wire, path, metadata))


def test_health_is_for_everybody(guarded: Wire):
    health = health_pb2_grpc.HealthStub(guarded.channel)
    assert health.Check(health_pb2.HealthCheckRequest(), timeout=20).status == 1
    watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=20)
    assert next(watch).status == 1
    watch.cancel()


def test_tokens_and_calls_are_counted_by_caller(guarded: Wire, guarded_server: RunningServer):
    def tokens(caller: str) -> float:
        return guarded_server.metric("tokend_tokens_total", method="Encode", caller=caller)

    def calls(caller: str, code: str) -> float:
        return guarded_server.metric("tokend_caller_calls_total", caller=caller, grpc_code=code)

    assert tokens("operator") == 0
    before = (
        tokens("chat"),
        calls("chat", "OK"),
        calls("anonymous", "Unauthenticated"),
        calls("mirror", "PermissionDenied"),
    )
    request = pb.EncodeRequest(text="abcd", options=encode_options())
    guarded.stub.Encode(request, metadata=bearer(TOKENS["chat"][1]))
    refused(guarded.stub.Encode, request)
    refused(guarded.stub.Encode, request, metadata=bearer(TOKENS["mirror"][1]))
    until(lambda: calls("chat", "OK") == before[1] + 1)
    assert tokens("chat") == before[0] + 4
    until(lambda: calls("anonymous", "Unauthenticated") == before[2] + 1)
    until(lambda: calls("mirror", "PermissionDenied") == before[3] + 1)


def test_no_token_is_told_to_anybody(guarded: Wire, guarded_server: RunningServer):
    """Runs after the others of this file have shown all of them, good and bad."""
    bad = new_token()
    failures = [refused_call(guarded, path, bearer(bad)) for path in GUARDED]
    call(guarded, "/tokend.v1.TokenizerService/Encode", bearer(TOKENS["chat"][1]))
    told = "".join(guarded_server.stderr_lines) + guarded_server.get("/metrics") + repr(failures)
    for secret in (bad, *(token for _, token in TOKENS.values())):
        assert secret not in told
        assert secret[len("tokend_") :] not in told


@pytest.mark.parametrize("front", ["grpcio"], indirect=True)
def test_tokens_follow_their_file(fleet_of, tmp_path: Path, stack):
    """With two workers: a new token is let in, a removed one is not, and a broken file changes nothing."""
    file = write_tokens(tmp_path / "tokens.toml", entries("chat"))
    fleet = fleet_of(2, "--auth-tokens-file", str(file))
    wires = [stack.enter_context(Wire(fleet.grpc)) for _ in range(6)]
    request = pb.EncodeRequest(text="a", options=encode_options())

    def may(name: str) -> list[bool]:
        calls = [
            wire.stub.Encode.future(request, metadata=bearer(TOKENS[name][1]), timeout=20) for wire in wires
        ]
        codes = [call.code() for call in calls]
        assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED}
        return [code is grpc.StatusCode.OK for code in codes]

    assert (all(may("chat")), any(may("all"))) == (True, False)
    stream = wires[0].stream("StreamDecode", metadata=bearer(TOKENS["chat"][1]))
    stream.ask(one_sequence(b"open"))

    write_tokens(file, entries("all"))
    until(lambda: all(may("all")) and not any(may("chat")))
    # A stream ends with the token that it was opened with.
    failure = refused(lambda **_: stream.ask(one_sequence(b"more")))
    assert_refused(failure, "UNAUTHENTICATED")
    assert fleet.metric("tokend_file_reloads_total", file="auth_tokens", result="used") == 2
    assert fleet.metric("tokend_tokens_total", method="Encode", caller="all") > 0

    def n_refused() -> float:
        return fleet.metric("tokend_file_reloads_total", file="auth_tokens", result="refused")

    file.write_text(f'all = "{TOKENS["all"][1]}"')
    until(lambda: n_refused() == 2)
    assert (all(may("all")), any(may("chat"))) == (True, False)
    assert fleet.metric("tokend_stale_files", file="auth_tokens") == 2
    said = [line for line in fleet.stderr_lines if "the old one stays in force" in line]
    assert len(said) == 2
    assert str(file) in said[0]
    assert TOKENS["all"][1] not in "".join(said)

    write_tokens(file, entries("all", "chat"))
    until(lambda: fleet.metric("tokend_stale_files", file="auth_tokens") == 0)
    assert all(may("all") + may("chat"))


@pytest.mark.parametrize("front", ["grpcio"], indirect=True)
def test_a_replaced_worker_knows_the_tokens_of_now(fleet_of, tmp_path: Path, stack):
    file = write_tokens(tmp_path / "tokens.toml", entries("chat"))
    fleet = fleet_of(2, "--auth-tokens-file", str(file))
    request = pb.EncodeRequest(text="a", options=encode_options())
    write_tokens(file, entries("all"))
    until(lambda: fleet.metric("tokend_file_reloads_total", file="auth_tokens", result="used") == 2)
    fleet.kill("worker 0")
    for wire in fleet_connections(fleet, stack):
        wire.stub.Encode(request, metadata=bearer(TOKENS["all"][1]), timeout=20)
        assert_refused(
            refused(wire.stub.Encode, request, metadata=bearer(TOKENS["chat"][1])), "UNAUTHENTICATED"
        )


@pytest.mark.parametrize("front", ["grpcio"], indirect=True)
def test_a_worker_replaced_while_the_file_is_broken_serves_once_it_is_mended(fleet_of, tmp_path: Path, stack):
    file = write_tokens(tmp_path / "tokens.toml", entries("chat"))
    fleet = fleet_of(2, "--auth-tokens-file", str(file))
    first = fleet.pids()["worker 0"]
    file.write_text("broken")
    until(lambda: fleet.metric("tokend_stale_files", file="auth_tokens") == 2)
    os.kill(first, signal.SIGKILL)
    until(lambda: any("a worker does not serve with the files" in line for line in fleet.stderr_lines))
    # The other one goes on, with the tokens that it has.
    until(lambda: fleet.workers("serving") == 1)
    request = pb.EncodeRequest(text="a", options=encode_options())
    with Wire(fleet.grpc) as wire:
        wire.stub.Encode(request, metadata=bearer(TOKENS["chat"][1]), timeout=20)
    write_tokens(file, entries("all"))
    until(lambda: fleet.workers("serving") == 2)
    until(lambda: fleet.metric("tokend_stale_files", file="auth_tokens") == 0)
    for wire in fleet_connections(fleet, stack):
        wire.stub.Encode(request, metadata=bearer(TOKENS["all"][1]), timeout=20)
        assert_refused(
            refused(wire.stub.Encode, request, metadata=bearer(TOKENS["chat"][1])), "UNAUTHENTICATED"
        )


def fleet_connections(fleet, stack) -> list[Wire]:
    """Some connections, which the kernel spreads over the workers."""
    return [stack.enter_context(Wire(fleet.grpc)) for _ in range(8)]


BROKEN = {
    "a file that is not there": (None, "No such file"),
    "a file without a token": ("# none yet\n", "there is no token in it"),
    "what is no TOML": ("= {", "line 1"),
    "a plain token": ('chat = { permissions = ["tokenize"], sha256 = "hunter2" }', "chat: sha256 takes"),
    "an unknown permission": (
        'chat = { permissions = ["root"], sha256 = "' + "ab" * 32 + '" }',
        "chat: permissions",
    ),
    "no permission": ('chat = { permissions = [], sha256 = "' + "ab" * 32 + '" }', "chat: permissions"),
    "an unknown key": (
        'chat = { permission = "tokenize", sha256 = "' + "ab" * 32 + '" }',
        "chat is not of the form",
    ),
    "a reserved name": (
        'anonymous = { permissions = ["tokenize"], sha256 = "' + "ab" * 32 + '" }',
        "a key is no name",
    ),
    "a token of two": (
        "".join(f'{n} = {{ permissions = ["tokenize"], sha256 = "{"ab" * 32}" }}\n' for n in ("a", "b")),
        "a and b have the same token",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_cannot_be_used_is_refused_and_not_quoted(tmp_path: Path, kind):
    text, expected = BROKEN[kind]
    file = tmp_path / "tokens.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(CredentialsError) as raised:
        read_credentials(load(["--auth-tokens-file", str(file)], {}).settings)
    assert str(file) in str(raised.value)
    assert expected in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_file_that_cannot_be_used_ends_the_start(tmp_path: Path, workers):
    file = tmp_path / "tokens.toml"
    file.write_text(BROKEN["a plain token"][0])
    places = ("--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")
    code, said = fails_to_start("--auth-tokens-file", str(file), "--workers", workers, *places)
    [line] = said.splitlines()
    assert code == 2
    assert line.startswith(f"tokend: {file}: chat: sha256 takes")
    assert "hunter2" not in line
