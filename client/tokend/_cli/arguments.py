"""The command line of `tokend`: every command and its flags."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from tokend._cli.connection import add_connection_flags
from tokend._cli.failures import bad_input
from tokend._cli.inputs import argument_text
from tokend._version import __version__
from tokend.options import DecodeOptions, EncodeOptions

__all__ = ["Arguments", "build_parser", "decode_options", "encode_options", "parse"]

Arguments = argparse.Namespace
"""The parsed command line: `command`, `target`, `json` and each command's own."""

_DESCRIPTION = "Text to the ids of one frozen tokenizer, and back, through a tokend server."
_EPILOG = """\
examples:
  tokend serve                                   run a server on the embedded tokenizer
  tokend encode 'Hello world'                    the ids, on one line
  tokend encode --show 'Hello world'             look at the tokens
  tokend encode 'Hello world' | tokend decode    and back
  tokend count *.md                              how many tokens each file has
  tokend COMMAND --help                          the flags of a command, with examples

exit codes: 0 done, 1 the server or the call failed, 2 usage or bad input
"""
_ENCODE_EPILOG = """\
TEXT that starts with a hyphen stands behind --. Standard input and files are taken exactly: a newline
at their end is part of the text.

examples:
  tokend encode 'Hello world'
  tokend encode --show --file README.md
  printf 'Hello world' | tokend encode --json | jq .token_count
  tokend encode --special-tokens parse '<|im_start|>user'
"""
_DECODE_EPILOG = """\
The text is written exactly, as UTF-8; only on a terminal is a missing newline at its end added.

examples:
  tokend decode 19888 1916
  tokend decode '[19888, 1916]'
  tokend encode --file README.md | tokend decode > copy.md
"""
_STREAM_EPILOG = """\
Each piece of text is written as soon as it is complete, and never a part of a character. The text is written
exactly; only on a terminal is a missing newline at its end added.

examples:
  model --print-ids | tokend stream-decode
  model --print-ids | tokend stream-decode --stop '<|im_end|>' --keep-special
"""
_COUNT_EPILOG = """\
Prints the count, a tab and the name, and a total if there are several files. Without FILE, or for -, standard
input is read. With --lines each line is a text of its own, without its line end; files of any size go.

examples:
  tokend count *.md
  tokend count --lines --total corpus.txt
  git diff | tokend count
"""
_INFO_EPILOG = """\
examples:
  tokend info
  tokend info --json | jq -r .fingerprint
"""
_LOOKUP_EPILOG = """\
Numbers are ids, everything else is a token string as the vocabulary spells it; --token gives strings that
look like numbers. Without either, ids are read from standard input.

examples:
  tokend lookup 40953 300
  tokend lookup the --token 42
  tokend encode 'Hello world' | tokend lookup
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and leaves the exit to its caller."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 (argparse's own)
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise bad_input(f"{message}; see `{self.prog} --help`")


def parse(arguments: Sequence[str]) -> Arguments | None:
    """Reads a command line; None if it asked for help or the version, which is written then."""
    first = arguments[0] if arguments else ""
    if first.startswith("-") and first not in {"-h", "--help", "--version"}:
        raise bad_input(f"{first} stands before the command; flags follow it: tokend COMMAND {first} ...")
    try:
        parsed, unknown = build_parser().parse_known_args(arguments)
    except SystemExit:
        return None
    if unknown:
        # argparse would say so in the name of the whole program, whose --help does not have the command's flags.
        raise bad_input(f"unrecognized arguments: {' '.join(unknown)}; see `tokend {parsed.command} --help`")
    return parsed


def encode_options(arguments: Arguments) -> EncodeOptions:
    """The options of encode and count; what was not given is left out, so that the server's default holds."""
    if arguments.truncation_side is not None and arguments.max_tokens is None:
        raise bad_input("--truncation-side needs --max-tokens: how many ids to truncate to")
    options: EncodeOptions = {}
    if not arguments.add_special_tokens:
        options["add_special_tokens"] = False
    if arguments.special_tokens is not None:
        options["special_tokens"] = arguments.special_tokens
    if arguments.allow_special:
        options["allowed_special_tokens"] = [
            argument_text(token, "--allow-special") for token in arguments.allow_special
        ]
    if arguments.max_tokens is not None:
        options["max_tokens"] = arguments.max_tokens
    if arguments.truncation_side is not None:
        options["truncation_side"] = arguments.truncation_side
    return options


def decode_options(arguments: Arguments) -> DecodeOptions:
    """The options of decode and stream-decode."""
    options: DecodeOptions = {}
    if arguments.keep_special:
        options["skip_special_tokens"] = False
    if arguments.unknown_ids is not None:
        options["unknown_ids"] = arguments.unknown_ids
    return options


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(prog="tokend", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"tokend {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("serve", add_help=False, help="run a server: tokend serve --help")
    commands.add_parser(
        "verify", add_help=False, help="prove the fast engine on a tokenizer.json: tokend verify FILE"
    )
    commands.add_parser(
        "new-token", add_help=False, help="make a bearer token for a server: tokend new-token NAME"
    )
    _add_encode(commands)
    _add_decode(commands)
    _add_stream_decode(commands)
    _add_count(commands)
    info = _add(commands, "info", "what the server serves: tokenizer, engine, limits", _INFO_EPILOG)
    _add_common(info)
    lookup = _add(commands, "lookup", "tokens by id or string: string, exact bytes, kind", _LOOKUP_EPILOG)
    lookup.add_argument("ids_or_tokens", nargs="*", metavar="ID_OR_TOKEN", help="an id, or a token string")
    lookup.add_argument(
        "--token", action="append", default=[], metavar="STR", help="a token string; may be repeated"
    )
    _add_common(lookup)
    return parser


def _add(commands: Any, name: str, help_text: str, epilog: str) -> argparse.ArgumentParser:  # noqa: ANN401 (private to argparse)
    description = f"{help_text[0].upper()}{help_text[1:]}."
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help_text, description=description, epilog=epilog
    )
    return parser


def _add_encode(commands: Any) -> None:  # noqa: ANN401 (private to argparse)
    parser = _add(commands, "encode", "text to ids", _ENCODE_EPILOG)
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the text; absent or -: standard input")
    parser.add_argument("--file", metavar="FILE", help="read the text from a file")
    parser.add_argument("--pair", metavar="TEXT", help="a second text, joined as the tokenizer does it")
    parser.add_argument("--show", action="store_true", help="print the tokens, each with its id")
    _add_encode_options(parser)
    parser.add_argument(
        "--offsets",
        type=_lower,
        choices=["code_points", "utf8_bytes", "utf16_units"],
        help="with --json: each token's place in the text, in this unit",
    )
    parser.add_argument(
        "--include-tokens", action="store_true", help="with --json: each token's string in the vocabulary"
    )
    parser.add_argument(
        "--color",
        type=_lower,
        choices=["auto", "always", "never"],
        default="auto",
        help="colours of --show; auto: on a terminal, unless NO_COLOR is set",
    )
    _add_common(parser)


def _add_decode(commands: Any) -> None:  # noqa: ANN401 (private to argparse)
    parser = _add(commands, "decode", "ids to text", _DECODE_EPILOG)
    parser.add_argument(
        "ids", nargs="*", metavar="ID", help="ids, separated by spaces or commas; none: standard input"
    )
    _add_decode_options(parser)
    parser.add_argument(
        "--bytes",
        action="store_true",
        help="write the bytes of which the text is the lossy reading; with --json add them as raw_bytes (base64)",
    )
    _add_common(parser)


def _add_stream_decode(commands: Any) -> None:  # noqa: ANN401 (private to argparse)
    parser = _add(commands, "stream-decode", "ids on standard input to text, as they come", _STREAM_EPILOG)
    _add_decode_options(parser)
    parser.add_argument(
        "--prompt-ids",
        action="append",
        default=[],
        metavar="IDS",
        help="the ids before these; their text is not written",
    )
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="STR",
        help="end before this string; may be repeated",
    )
    parser.add_argument(
        "--byte-runs",
        type=_lower,
        choices=["prompt", "hold"],
        help="byte tokens (<0xE4>): each character at once (prompt, the default), or exactly as decode (hold)",
    )
    _add_common(parser)


def _add_count(commands: Any) -> None:  # noqa: ANN401 (private to argparse)
    parser = _add(commands, "count", "how many ids each file has", _COUNT_EPILOG)
    parser.add_argument("files", nargs="*", metavar="FILE", help="files; none or -: standard input")
    parser.add_argument("--lines", action="store_true", help="count each line, as a text of its own")
    parser.add_argument("--total", action="store_true", help="print the total alone")
    _add_encode_options(parser)
    _add_common(parser)


def _add_encode_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--special-tokens",
        type=_lower,
        choices=["text", "parse", "reject"],
        help="control tokens in the text: keep them as text, make them tokens, or refuse them; "
        "default: the server's, which is text unless its operator chose otherwise",
    )
    parser.add_argument(
        "--allow-special",
        action="append",
        default=[],
        metavar="TOKEN",
        help="make this control token a token under text and reject too; may be repeated",
    )
    parser.add_argument(
        "--no-add-special-tokens",
        dest="add_special_tokens",
        action="store_false",
        help="leave out what the tokenizer adds around a text (BOS, [CLS])",
    )
    parser.add_argument("--max-tokens", type=_positive, metavar="N", help="truncate to N ids")
    parser.add_argument(
        "--truncation-side",
        type=_lower,
        choices=["right", "left"],
        help="where --max-tokens takes ids away; default: right",
    )


def _add_decode_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep-special", action="store_true", help="keep special tokens in the text")
    parser.add_argument(
        "--unknown-ids",
        type=_lower,
        choices=["error", "skip", "replace"],
        help="ids that the tokenizer does not have: an error (default), left out, or U+FFFD",
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the reply as JSON")
    add_connection_flags(parser)


def _lower(value: str) -> str:
    return value.lower()


def _positive(value: str) -> int:
    if not (value.isascii() and value.isdigit()) or not 1 <= int(value) <= 0xFFFFFFFF:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number from 1 to {0xFFFFFFFF}")
    return int(value)
