"""Where a server listens: Unix sockets with their modes, an ops port that is off, reflection that is off, warnings."""

import asyncio
import http.client
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import tokend
from tests.client.cli_process import Cli
from tests.integration.tokens import Permission, new_token, write_tokens
from tests.integration.wire import until
from tests.servers import RunningServer, fails_to_start
from tests.tokenizers_for_tests import byte_level_bpe
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend_server.config import ConfigError, UnixAddress, load
from tokend_server.transport.unix_socket import UnixSocketFile

BEYOND = "gRPC listens beyond this machine"


@pytest.fixture
def start(tokenizer_file: Callable[[str], Path]) -> Iterator[Callable[..., RunningServer]]:
    """Start a server with flags; it ends well, unless the test has ended it."""
    with ExitStack() as running:

        def begin(*flags: str) -> RunningServer:
            server = RunningServer("--drain-grace-s", "2", *flags, tokenizer=tokenizer_file(byte_level_bpe()))
            running.callback(server.stop)
            return server

        yield begin


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def get(path: Path, page: str) -> tuple[int, str]:
    """Fetch a page over a Unix socket."""
    connection = http.client.HTTPConnection("localhost", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(str(path))
    connection.request("GET", page)
    answer = connection.getresponse()
    try:
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_both_ports_may_be_unix_sockets(start, tmp_path: Path):
    path, ops = tmp_path / "grpc.sock", tmp_path / "ops.sock"
    server = start("--listen", f"unix:{path}", "--ops-listen", f"unix:{ops}", "--listen-mode", "0660")
    assert (server.grpc, server.ops) == (f"unix:{path}", f"unix:{ops}")
    assert (mode_of(path), mode_of(ops)) == (0o660, 0o660)
    with tokend.Client(f"unix:{path}", timeout_s=20) as client:
        assert client.encode("ab").ids == [262, 97, 98]
        assert "".join(client.decode_stream([97, 98])) == "ab"
        with pytest.raises(tokend.UnknownTokenIdError):
            client.decode([9999])

    async def encode() -> list[int]:
        async with tokend.AsyncClient(f"unix://{path}", timeout_s=20) as client:
            return (await client.encode("ab")).ids

    assert asyncio.run(encode()) == [262, 97, 98]
    assert Cli(f"unix:{path}")("encode", "ab").text == "262 97 98\n"
    for _ in range(3):
        assert get(ops, "/readyz") == (200, "ready\n")
    assert 'grpc_server_handled_total{grpc_code="OK"' in get(ops, "/metrics")[1]
    assert server.stop() == 0
    assert list(tmp_path.iterdir()) == []


def test_a_socket_is_the_owner_s_alone_by_default_and_takes_tokens(start, tmp_path: Path):
    token = new_token()
    tokens = write_tokens(tmp_path / "tokens.toml", [("sidecar", [Permission.TOKENIZE], token)])
    path = tmp_path / "grpc.sock"
    start("--listen", f"unix://{path}", "--auth-tokens-file", str(tokens))
    assert mode_of(path) == 0o600
    with tokend.Client(f"unix:{path}", token=token, timeout_s=20) as client:
        assert client.encode("a").token_count == 2
    with tokend.Client(f"unix:{path}", timeout_s=20) as client, pytest.raises(tokend.UnauthenticatedError):
        client.encode("a")


def test_the_socket_of_a_killed_server_is_taken_over_and_that_of_a_living_one_is_not(start, tmp_path: Path):
    path, ops = tmp_path / "grpc.sock", tmp_path / "ops.sock"
    flags = ("--listen", f"unix:{path}", "--ops-listen", f"unix:{ops}")
    first = start(*flags)
    code, said = fails_to_start("--listen", f"unix:{path}", "--ops-listen", "off")
    assert (code, said) == (
        2,
        f"tokend: cannot listen on unix:{path} (listen): another server listens there\n",
    )
    code, said = fails_to_start("--listen", "127.0.0.1:0", "--ops-listen", f"unix:{ops}")
    assert (code, said) == (
        2,
        f"tokend: cannot listen on unix:{ops} (ops_listen): another server listens there\n",
    )
    with tokend.Client(f"unix:{path}", timeout_s=20) as client:
        assert client.encode("a").token_count == 2

    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    assert path.exists()
    start(*flags)
    with tokend.Client(f"unix:{path}", timeout_s=20) as client:
        assert client.encode("a").token_count == 2
    assert get(ops, "/healthz") == (200, "ok\n")


def test_a_server_removes_no_other_s_socket(start, tmp_path: Path):
    """The ops socket; gRPC's core removes its own path at the end, whoever has it by then."""
    path = tmp_path / "ops.sock"
    server = start("--ops-listen", f"unix:{path}")
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        assert server.stop() == 0
        assert path.is_socket()


def test_what_is_no_socket_or_cannot_be_one_is_refused(tmp_path: Path):
    precious = tmp_path / "data"
    precious.write_text("keep")
    for path, expected in {
        precious: "there is a file that is no socket",
        tmp_path / "none" / "grpc.sock": f"there is no folder {tmp_path / 'none'}",
        tmp_path / ("x" * 120): "longer than the 107 bytes",
    }.items():
        with pytest.raises(OSError, match=r"cannot listen on unix:.* \(listen\): ") as raised:
            UnixSocketFile(UnixAddress(path=str(path)), "listen", 0o600)
        assert expected in raised.value.strerror
    code, said = fails_to_start("--listen", f"unix:{precious}", "--ops-listen", "off")
    assert (code, said) == (
        2, f"tokend: cannot listen on unix:{precious} (listen): there is a file that is no socket\n",
    )  # fmt: skip
    assert precious.read_text() == "keep"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--workers", "2"), "one listener"),
        (("--front", "native"), "no Unix socket"),
        (("--allow-port-sharing",), "one listener"),
        (("--listen-mode", "0066"), "expected permission bits"),
        (("--listen-mode", "rw-rw----"), "expected permission bits"),
        (("--listen", "unix:relative.sock"), "expected HOST:PORT"),
    ],
)
def test_what_a_socket_cannot_have_is_refused(flags, expected):
    with pytest.raises(ConfigError, match=expected):
        load(["--listen", "unix:/run/tokend.sock", *flags], {})


def test_as_many_workers_as_cores_are_one_on_a_socket(start, tmp_path: Path):
    server = start("--listen", f"unix:{tmp_path / 'grpc.sock'}", "--workers", "auto")
    assert server.facts["workers"] == "1"


@pytest.mark.parametrize("workers", [1, 2])
def test_the_ops_port_may_be_off(start, workers):
    server = start("--ops-listen", "off", "--workers", str(workers))
    assert server.ops == "off"
    with tokend.Client(server.grpc, timeout_s=20) as client:
        assert client.encode("a").token_count == 2
    # Nothing but the gRPC port is listened on, by whichever process.
    assert listening(server) == {int(server.grpc.rpartition(":")[2])}
    assert server.stop() == 0


def test_the_ops_port_of_workers_may_be_a_socket(start, tmp_path: Path):
    ops = tmp_path / "ops.sock"
    server = start("--ops-listen", f"unix:{ops}", "--workers", "2")
    assert get(ops, "/readyz") == (200, "ready\n")
    assert server.stop() == 0
    assert not ops.exists()


def listening(server: RunningServer) -> set[int]:
    """The TCP ports on which a server's processes listen."""
    group = [server.process.pid]
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    group += map(int, children)
    inodes = set()
    for pid in group:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(str(fd.readlink()))
            except OSError:
                continue
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


@pytest.mark.parametrize("front", ["grpcio", "native"])
def test_reflection_may_be_off(start, front):
    if front == "native":
        pytest.importorskip("pygrpc_native")
    server = start("--no-reflection", "--front", front)
    with grpc.insecure_channel(server.grpc) as channel:
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.RpcError) as raised:
            list(reflection.ServerReflectionInfo(iter([asked]), timeout=20))
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
        call = channel.unary_unary("/tokend.v1.TokenizerService/Encode")
        assert pb.EncodeResponse.FromString(call(b"", timeout=20)).encoding.token_count == 1


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_that_others_reach_without_tls_or_tokens_warns(start, workers):
    server = start("--listen", "0.0.0.0:0", "--workers", workers, "--log-format", "json")
    until(lambda: any(BEYOND in line for line in server.stderr_lines))
    [line] = [line for line in server.stderr_lines if BEYOND in line]
    assert '"encrypted": false' in line
    assert '"asks_who": false' in line


def test_by_default_only_this_machine_reaches_a_server(start):
    server = start()
    assert server.grpc.startswith("127.0.0.1:")
    assert server.ops.startswith("127.0.0.1:")
    assert server.stop() == 0
    assert not any(BEYOND in line for line in server.stderr_lines)
