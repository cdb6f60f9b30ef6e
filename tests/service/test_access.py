"""Tokens by their digests, and the file that has them."""

import json
import subprocess
import sys

import pytest

from tokend_server.errors import CredentialsError, PermissionDenied, Unauthenticated
from tokend_server.service.access import Access, Caller, Permission, Tokens, digest_of
from tokend_server.service.token_file import new_token, parse_tokens, token_line

CHAT = Caller(name="chat", permissions=frozenset({Permission.TOKENIZE}))


def entry_of(access: Access, token: str, permission: Permission = Permission.TOKENIZE):
    entry = access.entry(f"Bearer {token}", "Encode", permission)
    entry.check()
    return entry


def test_a_token_is_known_by_its_whole_digest():
    digest = digest_of("token")
    tokens = Tokens([(digest, CHAT)])
    assert tokens.caller_of(digest) is CHAT
    for place in range(len(digest)):
        changed = bytearray(digest)
        changed[place] ^= 1
        assert tokens.caller_of(bytes(changed)) is None
    assert tokens.caller_of(b"") is None
    assert Tokens([]).caller_of(b"") is None
    assert Tokens([]).caller_of(digest) is None


def test_a_right_lasts_as_long_as_the_token_is_in_force():
    access = Access(Tokens([(digest_of("token"), CHAT)]))
    entry = entry_of(access, "token")
    assert entry.caller == "chat"
    access.tokens = Tokens([(digest_of("other"), CHAT), (digest_of("token"), CHAT)])
    entry.check()
    access.tokens = Tokens([(digest_of("other"), CHAT)])
    with pytest.raises(Unauthenticated):
        entry.check()
    mirror = Caller(name="chat", permissions=frozenset({Permission.DOWNLOAD}))
    access.tokens = Tokens([(digest_of("token"), mirror)])
    with pytest.raises(PermissionDenied):
        entry.check()


@pytest.mark.parametrize(
    "value", [None, "", "Bearer", "Bearer ", "token", "Basic token", b"Bearer token", "Bearer \ud800"]
)
def test_what_is_no_token_of_this_server_is_refused(value):
    access = Access(Tokens([(digest_of("token"), CHAT)]))
    with pytest.raises(Unauthenticated):
        access.entry(value, "Encode", Permission.TOKENIZE).check()


def test_no_permission_includes_another():
    for given in Permission:
        access = Access(Tokens([(digest_of("t"), Caller(name="c", permissions=frozenset({given})))]))
        for wanted in Permission:
            if wanted is given:
                entry_of(access, "t", wanted)
            else:
                with pytest.raises(PermissionDenied):
                    entry_of(access, "t", wanted)


def test_a_name_may_have_two_tokens_while_one_is_replaced():
    old, new = new_token(), new_token()
    digests = json.dumps([digest_of(each).hex() for each in (old, new)])
    tokens = parse_tokens(f'chat = {{ permissions = ["tokenize"], sha256 = {digests} }}'.encode(), "f")
    assert [tokens.caller_of(digest_of(each)).name for each in (old, new)] == ["chat", "chat"]
    assert tokens.names == ["chat"]


def test_a_made_line_is_read_back():
    token = new_token()
    tokens = parse_tokens(token_line("a-b_1", [Permission.TOKENIZE, Permission.ADMIN], token).encode(), "f")
    caller = tokens.caller_of(digest_of(token))
    assert (caller.name, caller.permissions) == ("a-b_1", {Permission.TOKENIZE, Permission.ADMIN})


@pytest.mark.parametrize(
    "text",
    [
        "x" * 64 + " = 1",
        "[chat]",
        "chat = 1",
        'chat = {permissions = "tokenize", sha256 = ""}',
        "\xff",
        "é = 1",
    ],
)
def test_what_is_no_file_of_tokens_is_refused_and_not_quoted(text):
    with pytest.raises(CredentialsError) as raised:
        parse_tokens(text.encode("latin-1"), "tokens.toml")
    assert str(raised.value).startswith("tokens.toml: ")
    assert "x" * 64 not in str(raised.value)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tokend", "new-token", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_makes_a_token_and_its_line():
    done = run("chat", "--permission", "tokenize", "--permission", "download")
    token = done.stderr.rsplit(" ", 1)[1].strip()
    caller = parse_tokens(done.stdout.encode(), "f").caller_of(digest_of(token))
    assert (done.returncode, caller.name, len(caller.permissions)) == (0, "chat", 2)
    assert token not in done.stdout
    made = json.loads(run("jobs", "--json").stdout)
    caller = parse_tokens(made["line"].encode(), "f").caller_of(digest_of(made["token"]))
    assert caller.permissions == {Permission.TOKENIZE}


@pytest.mark.parametrize("arguments", [[], ["other"], ["a b"], ["chat", "--permission", "root"]])
def test_the_command_refuses_what_the_file_would(arguments):
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tokend: ")
    assert len(done.stderr.splitlines()) == 1
    if "--permission" in arguments:
        assert "choose from 'tokenize', 'download', 'admin'" in done.stderr
