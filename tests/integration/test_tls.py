"""TLS and mTLS over the wire: who gets in, what a rotation changes, and what ends a start."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

import tokend
from tests.integration.certificates import (
    chain_of,
    expires_s,
    issue,
    serial,
    shown_serial,
    trusting,
    write,
)
from tests.integration.tokens import Permission, new_token, write_tokens
from tests.integration.wire import until
from tests.servers import RunningServer, fails_to_start
from tests.tokenizers_for_tests import byte_level_bpe
from tokend_server.config import ConfigError, load
from tokend_server.credentials import read_credentials
from tokend_server.errors import CredentialsError

SHORT_S = 5.0
# One of each kind of error; the others end a start in the same way.
OVER_THE_WIRE = {"is not the key of", "the native front has no TLS"}


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def start(tokenizer_file: Callable[[str], Path]) -> Iterator[Callable[..., RunningServer]]:
    """Start a server with flags; it ends well."""
    with ExitStack() as running:

        def begin(*flags: str) -> RunningServer:
            server = RunningServer("--drain-grace-s", "2", *flags, tokenizer=tokenizer_file(byte_level_bpe()))
            running.callback(lambda: server.stop() == 0 or pytest.fail("it did not end well"))
            return server

        yield begin


def client_of(
    server: RunningServer, ca: trustme.CA, leaf: trustme.LeafCert | None = None, **more
) -> tokend.Client:
    tls = tokend.Tls(
        root_certificates=trusting(ca),
        private_key=None if leaf is None else leaf.private_key_pem.bytes(),
        certificate_chain=None if leaf is None else chain_of(leaf),
    )
    return tokend.Client(server.grpc, tls=tls, timeout_s=20, **more)


def gets_in(client: tokend.Client) -> bool:
    with client:
        try:
            return client.encode("a", timeout_s=SHORT_S).token_count > 0
        except (tokend.UnavailableError, tokend.DeadlineExceededError):
            return False


@pytest.mark.parametrize("workers", ["1", "2"])
def test_only_who_speaks_tls_and_trusts_the_server_is_answered(start, ca, tmp_path, workers):
    server = start(*write(tmp_path, issue(ca)).flags(), "--workers", workers)
    assert gets_in(client_of(server, ca))
    assert not gets_in(client_of(server, trustme.CA()))
    assert not gets_in(tokend.Client(server.grpc))
    with client_of(server, ca) as client:
        # Streams too, and what is as large as a message may be.
        assert "".join(client.decode_stream(list(b"over tls"))) == "over tls"
        assert client.encode("a" * 1_000_000).token_count > 0


def test_tokens_and_tls_go_together(start, ca, tmp_path):
    token = new_token()
    tokens = write_tokens(tmp_path / "tokens.toml", [("chat", [Permission.TOKENIZE], token)])
    server = start(*write(tmp_path, issue(ca)).flags(), "--auth-tokens-file", str(tokens))
    assert gets_in(client_of(server, ca, token=token))
    with client_of(server, ca) as client, pytest.raises(tokend.UnauthenticatedError):
        client.encode("a")
    with client_of(server, ca, token=token) as client, pytest.raises(tokend.PermissionDeniedError):
        client.download()


def test_with_an_authority_for_clients_each_must_show_a_certificate_of_it(start, ca, tmp_path):
    clients, strangers = trustme.CA(), trustme.CA()
    authority = tmp_path / "clients.crt"
    authority.write_bytes(trusting(clients))
    server = start(*write(tmp_path, issue(ca)).flags(), "--tls-client-ca-file", str(authority))
    assert gets_in(client_of(server, ca, issue(clients)))
    assert not gets_in(client_of(server, ca, issue(strangers)))
    assert not gets_in(client_of(server, ca))
    # Handshakes that fail are no output of native libraries, which would wake somebody.
    assert server.metric("tokend_native_stderr_lines_total") == 0
    # A reload of the authority counts for the next connection.
    authority.write_bytes(trusting(strangers))
    until(lambda: server.metric("tokend_file_reloads_total", file="tls", result="used") == 1)
    assert gets_in(client_of(server, ca, issue(strangers)))
    assert not gets_in(client_of(server, ca, issue(clients)))


def test_a_new_certificate_is_shown_to_new_connections_and_old_ones_go_on(start, ca, tmp_path):
    workers = 2
    first, second = issue(ca, days_left=20), issue(ca, days_left=40)
    server = start(*write(tmp_path, first).flags(), "--workers", str(workers))

    def shown() -> set[int]:
        return {shown_serial(server.grpc) for _ in range(8)}

    def expiry() -> float:
        return server.metric("tokend_tls_certificate_expiry_timestamp_seconds")

    def reloads(result: str) -> float:
        return server.metric("tokend_file_reloads_total", file="tls", result=result)

    assert (shown(), expiry()) == ({serial(first)}, expires_s(first))
    with client_of(server, ca) as old, old.decoder() as decoder:
        assert decoder.push([104]) == "h"

        # A key that is another's: the old pair stays.
        write(tmp_path, second, key_of=first)
        until(lambda: reloads("refused") == workers)
        assert (shown(), expiry()) == ({serial(first)}, expires_s(first))
        assert server.metric("tokend_stale_files", file="tls") == workers

        write(tmp_path, second)
        until(lambda: reloads("used") == workers)
        assert (shown(), expiry()) == ({serial(second)}, expires_s(second))
        assert server.metric("tokend_stale_files", file="tls") == 0
        assert gets_in(client_of(server, ca))
        assert decoder.push([105]) == "i"
        assert old.encode("a").token_count > 0
    [line, *_] = [line for line in server.stderr_lines if "the old one stays in force" in line]
    assert "is not the key of the first certificate" in line


def test_a_certificate_that_is_about_to_end_is_warned_of(start, ca, tmp_path):
    leaf = issue(ca, days_left=3, days_old=80)
    server = start(*write(tmp_path, leaf).flags())
    assert server.metric("tokend_tls_certificate_expiry_timestamp_seconds") == expires_s(leaf)
    until(lambda: any("about to expire" in line for line in server.stderr_lines))
    assert gets_in(client_of(server, ca))


def test_the_command_line_speaks_tls(start, ca, tmp_path):
    from tests.client.cli_process import Cli

    server = start(*write(tmp_path, issue(ca)).flags())
    authority = tmp_path / "ca.crt"
    authority.write_bytes(trusting(ca))
    assert Cli(server.grpc)("encode", "--tls-ca", str(authority), "a").text == "262 97\n"
    by_environment = Cli(server.grpc, {"TOKEND_CLIENT_TLS_CA": str(authority)})
    assert by_environment("encode", "a").text == "262 97\n"
    assert Cli(server.grpc, {"TOKEND_CLIENT_TLS": "1"})("encode", "--timeout", "3", "a", code=1)
    token = Cli("tokend.example:1", {"TOKEND_TOKEN": "s3cret"})("encode", "a", code=2)
    assert "--allow-plaintext-token" in token.complaint
    assert "s3cret" not in token.complaint


def test_what_cannot_be_served_ends_the_start_and_says_why(ca, tmp_path):
    leaf, other = issue(ca), issue(ca)
    pems = write(tmp_path, leaf)
    good = {"--tls-cert-file": pems.chain, "--tls-key-file": pems.key}

    def file(name: str, data: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    over = issue(ca, days_left=-1, days_old=10)
    early = issue(ca, days_old=-1)
    cases = {
        "No such file": {**good, "--tls-cert-file": tmp_path / "none.crt"},
        "cannot read": {**good, "--tls-key-file": tmp_path / "none.key"},
        "is not the key of": {**good, "--tls-key-file": file("other.key", other.private_key_pem.bytes())},
        "expired on": {
            "--tls-cert-file": file("over.crt", chain_of(over)),
            "--tls-key-file": file("over.key", over.private_key_pem.bytes()),
        },
        "is valid from": {
            "--tls-cert-file": file("early.crt", chain_of(early)),
            "--tls-key-file": file("early.key", early.private_key_pem.bytes()),
        },
        "the key is encrypted": {**good, "--tls-key-file": file("locked.key", locked)},
        "no private key": {**good, "--tls-key-file": pems.chain},
        "no certificate": {**good, "--tls-cert-file": pems.key},
        "clients.crt": {**good, "--tls-client-ca-file": file("clients.crt", b"nothing")},
        "go together": {"--tls-cert-file": pems.chain},
        "takes tls_cert_file": {"--tls-client-ca-file": pems.chain},
        "the native front has no TLS": {**good, "--front": "native"},
    }
    for expected, flags in cases.items():
        given = [str(each) for pair in flags.items() for each in pair]
        with pytest.raises((ConfigError, CredentialsError)) as raised:
            read_credentials(load(given, {}).settings)
        assert expected in str(raised.value)
        assert "PRIVATE KEY" not in str(raised.value)
        if expected in OVER_THE_WIRE:
            code, said = fails_to_start(*given, "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")
            assert (code, said) == (2, f"tokend: {raised.value}\n")


def test_grpc_s_own_clients_see_a_refused_handshake_as_unavailable(start, ca, tmp_path):
    server = start(*write(tmp_path, issue(ca)).flags())
    with grpc.insecure_channel(server.grpc) as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary("/tokend.v1.TokenizerService/Encode")(b"", timeout=SHORT_S)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
