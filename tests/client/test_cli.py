"""Each client command of `tokend`, run as a process against a real server on the tokenizer whose ids are bytes."""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.cli_process import WITHIN_S, Cli
from tests.servers import RunningServer
from tests.tokenizers_for_tests import byte_fallback_bpe, byte_level_bpe, word_piece
from tokend import Client

FAMILY = "👨‍👩‍👧 naïve\r\n\ttab"


@pytest.fixture
def cli(byte_server: RunningServer) -> Cli:
    return Cli(byte_server.grpc)


@pytest.fixture
def fingerprint(byte_server: RunningServer) -> str:
    with Client(byte_server.grpc) as client:
        return client.tokenizer_info().fingerprint


def test_encode_prints_the_ids_on_one_line(cli: Cli):
    assert cli("encode", "the cat").out == b"262 257 32 99 97 116\n"


def test_encode_of_the_empty_text_is_a_line_too(cli: Cli):
    assert cli("encode", "", "--no-add-special-tokens").out == b"\n"


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_encode_takes_standard_input_exactly(cli: Cli, arguments: tuple[str, ...]):
    done = cli("encode", *arguments, "--no-add-special-tokens", stdin=b"a\r\nb\n\x00\n")
    assert done.out == b"97 13 10 98 10 0 10\n"


def test_encode_takes_a_file_exactly(cli: Cli, tmp_path: Path):
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfx\n")
    done = cli("encode", "--no-add-special-tokens", "--file", str(tmp_path / "text"))
    assert done.out == b"239 187 191 120 10\n"


def test_encode_takes_text_that_begins_with_a_hyphen_after_two(cli: Cli):
    assert cli("encode", "--no-add-special-tokens", "--", "-x").out == b"45 120\n"


def test_encode_options_reach_the_server(cli: Cli):
    def ids(*flags: str) -> str:
        return cli("encode", "x<|end|>y", *flags).text.strip()

    assert ids("--special-tokens", "PARSE") == "262 120 263 121"
    assert ids("--allow-special", "<|end|>", "--special-tokens", "reject") == "262 120 263 121"
    assert ids("--max-tokens", "3") == "262 120 60"
    assert ids("--max-tokens", "3", "--truncation-side", "left") == "262 62 121"
    assert ids("--no-add-special-tokens", "--max-tokens", "2") == "120 60"
    assert cli("encode", "x", "--pair", "y").out == b"262 120 121\n"


def test_encode_says_that_control_tokens_were_kept_as_text(cli: Cli):
    assert cli("encode", "x<|end|>").complaint == (
        "note: control tokens kept as text: 1; --special-tokens parse makes them tokens"
    )
    assert cli("encode", "x<|end|>", "--special-tokens", "parse").err == ""


def test_encode_json_is_the_whole_reply(cli: Cli, fingerprint: str):
    done = cli(
        "encode", "é<|end|>", "--json", "--offsets", "utf8_bytes", "--include-tokens", "--max-tokens", "4"
    )
    reply = json.loads(done.out)
    assert done.out.count(b"\n") == 1
    assert reply == {
        "ids": [262, 0xC3, 0xA9, 60],
        "token_count": 4,
        "total_token_count": 10,
        "special_text_count": 1,
        "offsets": [[0, 0], [0, 2], [0, 2], [2, 3]],
        "tokens": ["<|bos|>", "Ã", "©", "<"],
        "type_ids": [0, 0, 0, 0],
        "fingerprint": fingerprint,
    }
    assert "offsets" not in json.loads(cli("encode", "x", "--json").out)


def test_show_lists_pieces_with_ids_and_makes_everything_visible(cli: Cli):
    shown = cli("encode", "--show", 'é the "\n\u200b<|end|>', "--special-tokens", "parse").text
    assert [line.strip() for line in shown.splitlines()] == [
        '262  "<|bos|>"  special',
        '195  "\\xc3"  part of a character',
        '169  "\\xa9"  part of a character',
        '258  " the"',
        '32  " "',
        '34  "\\""',
        '10  "\\n"',
        '226  "\\xe2"  part of a character',
        '128  "\\x80"  part of a character',
        '139  "\\x8b"  part of a character',
        '263  "<|end|>"  special',
    ]


def test_show_takes_pieces_from_the_text_where_the_tokens_spell_it_otherwise(
    server_for: Callable[..., RunningServer],
):
    cli = Cli(server_for(word_piece()).grpc)
    shown = [line.strip() for line in cli("encode", "--show", "Hello  Café 北東").text.splitlines()]
    assert shown == [
        '2  "[CLS]"  special',
        '5  "Hello"',
        '-  "  "  in no token (2 characters)',
        '16  "Café"',
        '-  " "  in no token (1 characters)',
        '19  "北"',
        '1  "東"  special',
        '3  "[SEP]"  special',
    ]


def test_show_of_byte_fallback_names_the_bytes_and_keeps_the_spaces(server_for: Callable[..., RunningServer]):
    cli = Cli(server_for(byte_fallback_bpe()).grpc)
    shown = [
        line.strip() for line in cli("encode", "--show", "hi hé", "--no-add-special-tokens").text.splitlines()
    ]
    assert shown == [
        '287  "hi"',
        '259  " "',
        '267  "h"',
        '198  "\\xc3"  part of a character',
        '172  "\\xa9"  part of a character',
    ]


def test_show_says_what_truncation_dropped(cli: Cli):
    shown = cli("encode", "--show", "a" * 100 + "b", "--max-tokens", "2", "--no-add-special-tokens").text
    lines = shown.splitlines()
    assert lines[:2] == ['     261  "aaaa"', '     261  "aaaa"']
    assert lines[2] == f'       -  "{"a" * 40}…"  in no token (93 characters)'


def test_show_of_a_pair_has_the_pieces_of_both(cli: Cli):
    shown = cli("encode", "--show", "é", "--pair", "th").text
    assert [line.split()[0] for line in shown.splitlines()] == ["262", "195", "169", "256"]


def test_decode_gives_back_the_exact_text(cli: Cli):
    ids = cli("encode", stdin=FAMILY.encode()).out
    assert cli("decode", stdin=ids).out == FAMILY.encode()


@pytest.mark.parametrize(
    "arguments", [("104", "105"), ("104,105",), ("[104, 105]",), ("[", "104", "105", "]"), ("0104 105\n",)]
)
def test_decode_takes_ids_between_spaces_or_commas(cli: Cli, arguments: tuple[str, ...]):
    assert cli("decode", *arguments).out == b"hi"


def test_decode_of_no_ids_is_the_empty_text(cli: Cli):
    assert cli("decode", stdin=b" \n").out == b""


def test_decode_options_reach_the_server(cli: Cli):
    assert cli("decode", "262", "104").out == b"h"
    assert cli("decode", "262", "104", "--keep-special").out == b"<|bos|>h"
    assert cli("decode", "104", "999", "--unknown-ids", "skip").out == b"h"
    done = cli("decode", "104", "999", "--unknown-ids", "replace")
    assert done.text == "h\ufffd"
    assert done.complaint == "note: unknown ids left out or replaced: 1"


def test_decode_writes_the_bytes_that_are_no_text(cli: Cli, fingerprint: str):
    assert cli("decode", "195", "40").text == "\ufffd("
    assert cli("decode", "195", "40", "--bytes").out == b"\xc3("
    reply = json.loads(cli("decode", "195", "40", "--bytes", "--json").out)
    assert base64.b64decode(reply.pop("raw_bytes")) == b"\xc3("
    assert reply == {"text": "\ufffd(", "unknown_id_count": 0, "fingerprint": fingerprint}


def test_stream_decode_writes_each_text_as_it_comes_and_never_a_part_of_a_character(cli: Cli):
    with cli.start("stream-decode") as process:
        process.stdin.write(b"104 ")
        process.stdin.flush()
        assert process.stdout.read(1) == b"h"
        # "195" may still become "1950", so it counts once something follows it.
        process.stdin.write(b"195,16")
        process.stdin.flush()
        process.stdin.write(b"9\n33 ")
        process.stdin.flush()
        assert process.stdout.read(3) == "é!".encode()
        process.stdin.write(b"195")
        process.stdin.close()
        assert process.stdout.read().decode() == "\ufffd"
        assert process.wait(WITHIN_S) == 0
        assert process.stderr.read() == b""


def test_stream_decode_ends_at_a_stop_string_though_more_could_come(cli: Cli):
    with cli.start("stream-decode", "--stop", "END", "--stop", "x", "--json") as process:
        process.stdin.write(b"104 69 78 68 105 ")
        process.stdin.flush()
        lines = [json.loads(line) for line in process.stdout.read().splitlines()]
        assert process.wait(WITHIN_S) == 0
    assert [line["text"] for line in lines[:-1]] == ["h"]
    last = lines[-1]
    assert (last["end_reason"], last["stop"], last["total_tokens"]) == ("STOP", "END", 4)


def test_stream_decode_options_reach_the_server(cli: Cli):
    def decoded(*flags: str, ids: bytes) -> str:
        return cli("stream-decode", *flags, stdin=ids).text

    assert decoded("--prompt-ids", "104 195", ids=b"169") == "é"
    assert decoded(ids=b"262 104 263") == "h"
    assert decoded("--keep-special", ids=b"262 104 263") == "<|bos|>h<|end|>"
    assert decoded("--unknown-ids", "replace", ids=b"104 999") == "h\ufffd"
    assert decoded(ids=b"") == ""


def test_stream_decode_holds_byte_runs_on_request(server_for: Callable[..., RunningServer]):
    cli = Cli(server_for(byte_fallback_bpe()).grpc)
    ids = b"198 172 255"  # the bytes of é, and 0xFC, which makes the whole run invalid
    assert cli("stream-decode", "--byte-runs", "prompt", stdin=ids).text == "é\ufffd"
    assert cli("stream-decode", "--byte-runs", "hold", stdin=ids).text == "\ufffd" * 3
    assert cli("decode", stdin=ids).text == "\ufffd" * 3


def test_stream_decode_writes_what_came_before_a_bad_id(cli: Cli):
    done = cli("stream-decode", stdin=b"104 105 999 106", code=2)
    assert done.out == b"hi"
    assert "id 999 (number 3) is no token" in done.complaint
    assert "--unknown-ids" in done.complaint


def test_info_shows_what_is_served(cli: Cli, fingerprint: str):
    text = cli("info").text
    rows = dict(re.findall(r"^(\S.{15})(.*)$", text, flags=re.MULTILINE))
    shown = {label.strip(): value for label, value in rows.items()}
    assert shown["fingerprint"] == fingerprint
    assert shown["vocabulary"] == "265 tokens, 3 of them added; greatest id 264"
    assert shown["special tokens"] == "262 <|bos|>"
    assert shown["decoder"] == "ByteLevel"
    assert shown["limits"] == "text 16,777,216 bytes"
    reply = json.loads(cli("info", "--json").out)
    assert reply["fingerprint"] == fingerprint
    assert [token["token"] for token in reply["special_tokens"]] == ["<|bos|>", "<|end|>"]
    assert reply["limits"]["max_ids"] == 4_000_000


def test_info_names_what_the_file_asks_for_and_does_not_get(server_for: Callable[..., RunningServer]):
    truncation = {"direction": "Right", "max_length": 7, "strategy": "LongestFirst", "stride": 0}
    served = server_for(byte_level_bpe(truncation=truncation))
    assert re.search(r"^ignored +truncation in the file: .*7", Cli(served.grpc)("info").text, re.MULTILINE)


def test_lookup_answers_in_the_order_of_the_questions(cli: Cli):
    done = cli("lookup", "zzz", "258", "Ġthe", "999", "--token", "9", "--token", "<|end|>")
    assert [line.strip() for line in done.text.splitlines()] == [
        '-  "zzz"  not in the vocabulary',
        '258  "Ġthe"  20 74 68 65',
        '258  "Ġthe"  20 74 68 65',
        "999  not in the vocabulary",
        '57  "9"  39',
        '263  "<|end|>"  3c 7c 65 6e 64 7c 3e  special, added, control',
    ]


def test_lookup_takes_ids_from_standard_input(cli: Cli):
    reply = json.loads(cli("lookup", "--json", stdin=b"195 169").out)
    assert [base64.b64decode(token["token_bytes"]) for token in reply] == [b"\xc3", b"\xa9"]
    assert all(token["known"] and not token["special"] for token in reply)


def test_output_is_utf8_whatever_the_locale(byte_server: RunningServer):
    cli = Cli(byte_server.grpc, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    assert cli("decode", "195", "169").out == "é".encode()
    assert cli("encode", "é", "--no-add-special-tokens").out == b"195 169\n"
    assert '"Ã"' in cli("lookup", "195").text


def test_serve_becomes_the_server_in_the_same_process():
    arguments = ["serve", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"]
    with Cli("").start(*arguments) as process:
        ready = process.stdout.readline().decode()
        target = re.match(r"tokend ready grpc=(\S+)", ready)[1]
        assert cli_round_trip(target) == b"hello"
        process.terminate()
        assert process.wait(WITHIN_S) == 0


def cli_round_trip(target: str) -> bytes:
    cli = Cli(target)
    return cli("decode", stdin=cli("encode", "hello").out).out


def test_serve_passes_flags_and_exit_codes_on():
    cli = Cli("")
    assert "--tokenizer" in cli("serve", "--help").text
    assert "--no-such-flag" in cli("serve", "--no-such-flag", code=2).err


@pytest.mark.parametrize("package", ["tokenizers", "tokend_server"])
def test_serve_without_the_servers_packages_names_what_to_install(package: str):
    script = (
        f"import sys; sys.modules[{package!r}] = None; from tokend.cli import main; sys.exit(main(['serve']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"tokend: `tokend serve` needs the server's packages ({package} not found); pip install 'tokend[server]'\n"
    )


def test_the_installed_command_is_this_one():
    installed = Path(sys.executable).with_name("tokend")
    done = subprocess.run(
        [installed, "--version"], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout == Cli("")("--version").text
    assert re.fullmatch(r"tokend \d+\.\d+\.\d+\S*\n", done.stdout)


@pytest.mark.parametrize("command", ["encode", "decode", "stream-decode", "count", "info", "lookup"])
def test_every_command_explains_itself_with_examples(command: str):
    page = Cli("")(command, "--help").text
    assert f"usage: tokend {command}" in page
    assert re.search(rf"examples:\n(.*\n)*.*tokend {command}", page)
    for flag in ("--json", "--target", "--timeout", "--auth-token", "--expected-fingerprint", "--tls"):
        assert flag in page
    assert command in Cli("")("--help").text
