"""What `tokend` says and how it exits when something is wrong: first what, then the flag that helps, on one line."""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.client.cli_process import COMMAND, WITHIN_S, Cli
from tests.client.scripted_server import Fault, ScriptedServer
from tests.servers import RunningServer
from tokend.v1 import tokenizer_service_pb2_grpc


@pytest.fixture
def cli(byte_server: RunningServer) -> Cli:
    return Cli(byte_server.grpc)


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    if hasattr(server, "_server"):
        server.stop()


@pytest.fixture
def closed_port() -> Iterator[str]:
    """An address that is taken, but where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["encode", "--max-tokens", "0", "x"], "argument --max-tokens: '0' is not a number from 1"),
        (["encode", "--max-tokens", "4294967296", "x"], "--max-tokens"),
        (["encode", "--truncation-side", "left", "x"], "--truncation-side needs --max-tokens"),
        (["encode", "--offsets", "utf8_bytes", "x"], "--offsets needs --json"),
        (["encode", "--include-tokens", "x"], "--include-tokens needs --json"),
        (["encode", "--show", "--json", "x"], "choose one"),
        (["encode", "x", "--file", "y"], "TEXT and --file are both given"),
        (["encode", "--file", "/no/such/file"], "cannot read /no/such/file: No such file or directory"),
        (["encode", "--no-such-flag", "x"], "--no-such-flag; see `tokend encode --help`"),
        (["encode", "--special-tokens", "maybe", "x"], "invalid choice: 'maybe'"),
        (["encode", "--allow-special", "<|none|>", "x"], "--allow-special"),
        (
            ["encode", "--special-tokens", "reject", "x<|end|>"],
            "at character 1; --special-tokens text keeps it",
        ),
        (["encode", "--no-add", "x"], "--no-add"),
        (["encode", "--timeout", "0", "x"], "--timeout: '0' is not a number of seconds above 0"),
        (["encode", "--expected-fingerprint", "abc", "x"], "`tokend info` prints it"),
        (["encode", "--auth-token", "a b", "x"], "token may hold printable ASCII"),
        (["encode", "--tls-ca", "/no/such/file", "x"], "cannot read /no/such/file"),
        (["encode", "--target", "http://127.0.0.1:50051", "x"], "--target: target is an address of the web"),
        (["encode", "--tls-cert", "/dev/null", "x"], "--tls-cert and --tls-key go together"),
        (["decode", "12", "x1"], "IDS: 'x1' is not an id; ids are whole numbers from 0 to 4294967295"),
        (["decode", "1_0"], "'1_0' is not an id"),
        (["decode", "4294967296"], "'4294967296' is not an id"),
        (["decode", "[1,2],[3]"], "is not an id"),
        (["decode", "9" * 5000], "is not an id"),
        (
            ["decode", "999"],
            "id 999 (number 1) is no token of this tokenizer, whose greatest id is 264; --unknown-ids",
        ),
        (["stream-decode", "--prompt-ids", "a"], "--prompt-ids: 'a' is not an id"),
        (["stream-decode", "--stop", ""], "stop[0] is empty"),
        (["lookup", "4294967296"], "4294967296"),
        (["translate"], "invalid choice: 'translate'"),
        (["--target", "x", "encode"], "--target stands before the command"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(cli: Cli, arguments: list[str], words: str):
    done = cli(*arguments, code=2)
    assert words in done.complaint
    assert done.out == b""


@pytest.mark.parametrize("flag", [b"TEXT", b"--pair", b"--allow-special", b"--stop", b"--token"])
def test_arguments_that_are_no_utf8_are_refused_with_their_position(cli: Cli, flag: bytes):
    command = {b"--stop": b"stream-decode", b"--token": b"lookup"}.get(flag, b"encode")
    arguments = [b"a\xe9"] if flag == b"TEXT" else [flag, b"a\xe9", *([b"x"] if command == b"encode" else [])]
    done = cli(command, *arguments, stdin=b"", code=2)
    assert done.complaint.startswith(
        f"{flag.decode()} is not UTF-8: byte 0xe9 at position 1 (counted from 0)"
    )


def test_standard_input_that_is_no_utf8_is_refused_with_its_position(cli: Cli):
    done = cli("encode", stdin=b"ab\xc3\xa9\xff", code=2)
    assert done.complaint.startswith("standard input is not UTF-8: byte 0xff at position 4")


def test_no_command_prints_the_help_and_is_wrong_usage(cli: Cli):
    done = cli(code=2)
    assert done.out == b""
    assert "examples:" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("encode", "x"),
        ("decode", "1"),
        ("stream-decode",),
        ("count", "/dev/null"),
        ("info",),
        ("lookup", "1"),
    ],
)
def test_no_server_names_the_address_and_the_flag(closed_port: str, arguments: tuple[str, ...]):
    done = Cli(closed_port)(*arguments, stdin=b"1 ", code=1)
    assert done.complaint == (
        f"no tokend server at {closed_port}; start one with `tokend serve`, or name another with --target"
    )


def test_a_target_without_a_port_is_told_which_one_was_taken():
    # 127.0.0.2: of this machine, and nothing of its own listens there.
    assert "127.0.0.2 port 443, which gRPC takes" in Cli("127.0.0.2")("encode", "x", code=1).complaint


def test_the_flag_wins_over_the_variable(byte_server: RunningServer, closed_port: str):
    assert Cli(closed_port)("encode", "x", "--target", byte_server.grpc).out == b"262 120\n"
    assert (
        "no tokend server at"
        in Cli(byte_server.grpc)("encode", "x", "--target", closed_port, code=1).complaint
    )


def test_a_name_that_does_not_resolve_is_told():
    done = Cli("no-such-host.invalid:50051")("encode", "x", code=1)
    assert done.complaint.startswith("cannot reach no-such-host.invalid:50051: ")
    assert "--target" in done.complaint


def test_tls_with_a_server_without_it_names_the_flags(cli: Cli):
    done = cli("encode", "x", "--tls", code=1)
    assert done.complaint == f"cannot reach {cli.target}: it speaks no TLS; leave the --tls flags away"


def test_the_ops_port_as_target_is_told(byte_server: RunningServer):
    done = Cli(byte_server.ops)("encode", "x", code=1)
    assert "it speaks HTTP/1, as the ops port does" in done.complaint


def test_tls_flags_make_an_encrypted_call(scripted: ScriptedServer, tmp_path: Path):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make a certificate with")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=tokenizer",
            ),
            *("-addext", "subjectAltName=DNS:tokenizer", "-keyout", str(key), "-out", str(certificate)),
        ],
        capture_output=True,
        check=True,
    )
    server = grpc.server(ThreadPoolExecutor(2))
    tokenizer_service_pb2_grpc.add_TokenizerServiceServicer_to_server(scripted, server)
    identity = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    port = server.add_secure_port("127.0.0.1:0", identity)
    server.start()
    try:
        cli = Cli(f"127.0.0.1:{port}")
        flags = ("--tls-ca", str(certificate), "--tls-server-name", "tokenizer")
        assert cli("encode", "hi", *flags).out == b"104 105\n"
        assert "--tls-ca names the file of its authority" in cli("encode", "hi", "--tls", code=1).complaint
        other_name = cli("encode", "hi", *flags[:2], "--tls-server-name", "another", code=1)
        assert "its certificate has another name; --tls-server-name" in other_name.complaint
        assert "if it speaks TLS, --tls-ca encrypts" in cli("encode", "hi", code=1).complaint
        no_pem = cli("encode", "hi", "--tls-ca", str(key), code=1)
        assert "the files of the --tls flags cannot be used" in no_pem.complaint
    finally:
        server.stop(0).wait()


def test_a_server_that_does_not_answer_names_timeout(scripted: ScriptedServer):
    scripted.faults = [Fault(hang_s=2)]
    cli = Cli(scripted.start(), {"TOKEND_TIMEOUT_S": "0.2"})
    done = cli("encode", "x", code=1)
    assert done.complaint == f"no answer from {cli.target} in time; --timeout SECONDS waits longer"


def test_a_wrong_time_in_the_environment_is_told_in_the_variable_s_name():
    complaint = Cli("x:1", {"TOKEND_TIMEOUT_S": "soon"})("encode", "x", code=2).complaint
    assert complaint == "TOKEND_TIMEOUT_S: 'soon' is not a number of seconds above 0"


def test_the_flag_wins_over_a_wrong_time_in_the_environment(scripted: ScriptedServer):
    Cli(scripted.start(), {"TOKEND_TIMEOUT_S": "soon"})("encode", "x", "--timeout", "20", code=0)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED])
def test_a_refused_caller_is_told_of_the_token(scripted: ScriptedServer, code: grpc.StatusCode):
    scripted.faults = [Fault(code=code)]
    assert "--auth-token or TOKEND_TOKEN" in Cli(scripted.start())("encode", "x", code=1).complaint


def test_the_token_is_sent_from_flag_or_variable(scripted: ScriptedServer):
    target = scripted.start()
    Cli(target, {"TOKEND_TOKEN": "from-env"})("encode", "x")
    assert scripted.metadata["authorization"] == "Bearer from-env"
    Cli(target, {"TOKEND_TOKEN": "from-env"})("encode", "x", "--auth-token", "from-flag")
    assert scripted.metadata["authorization"] == "Bearer from-flag"


def test_a_failed_server_is_exit_code_1_and_names_the_request(scripted: ScriptedServer):
    scripted.faults = [Fault(code=grpc.StatusCode.INTERNAL, trailing=(("tokend-request-id", "r-7"),))]
    assert (
        Cli(scripted.start())("encode", "x", code=1).complaint == "the server failed: scripted [request r-7]"
    )


def test_something_else_that_speaks_grpc_is_no_tokend_server():
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        done = Cli(f"127.0.0.1:{port}")("encode", "x", code=1)
    finally:
        server.stop(0).wait()
    assert "is no tokend server" in done.complaint


@pytest.mark.parametrize(
    "arguments",
    [
        ("encode", "x"),
        ("decode", "1"),
        ("stream-decode",),
        ("count", "/dev/null"),
        ("info",),
        ("lookup", "1"),
    ],
)
def test_every_command_checks_the_fingerprint(cli: Cli, arguments: tuple[str, ...]):
    done = cli(*arguments, "--expected-fingerprint", "AB" * 32, stdin=b"", code=1)
    assert "--expected-fingerprint" in done.complaint
    assert done.out == b""


def test_ctrl_c_ends_a_command_quietly_with_130(cli: Cli):
    for command in ("stream-decode", "count", "encode"):
        with cli.start(command) as process:
            if command == "stream-decode":
                process.stdin.write(b"104 ")
                process.stdin.flush()
                assert process.stdout.read(1) == b"h"
            else:
                # More than a pipe holds: once it is written, the command reads.
                process.stdin.write(b"x" * 300_000)
                time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            assert process.wait(WITHIN_S) == 130
            assert process.stderr.read() == b""


def test_ctrl_c_does_not_wait_for_an_answer(scripted: ScriptedServer):
    scripted.faults = [Fault(hang_s=5)]
    with Cli(scripted.start()).start("encode", "x") as process:
        while not scripted.calls:
            time.sleep(0.01)
        start_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 130
        assert time.monotonic() - start_s < 3


def test_a_full_disk_is_an_error(cli: Cli):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "encode", "x"], stdout=full, stderr=subprocess.PIPE, env=cli.environment(), check=False
        )
    assert done.returncode == 1
    assert done.stderr == b"tokend: cannot write the output: No space left on device\n"
