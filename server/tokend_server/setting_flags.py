"""The command line of each command that reads settings: its flags, its help, and what to say of a wrong one."""

import argparse
import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from tokend_server.config import Setting

__all__ = ["SERVE", "VERIFY", "Command", "FlagError", "probably_meant", "read_flags"]

_LIKE = 0.75
# Above what unrelated short names reach, as port and front.
_CALLED_ELSEWHERE = {
    **dict.fromkeys(("port", "host", "address", "bind", "grpc_port", "socket"), "listen"),
    **dict.fromkeys(("metrics_port", "metrics_listen", "ops_port", "ops"), "ops_listen"),
    **dict.fromkeys(("model", "tokenizer_file", "tokenizer_path", "file"), "tokenizer"),
    **dict.fromkeys(("tls", "ssl", "cert", "tls_cert", "cert_file"), "tls_cert_file"),
    **dict.fromkeys(("key", "tls_key", "key_file"), "tls_key_file"),
    **dict.fromkeys(("tls_ca", "ca", "client_ca", "mtls"), "tls_client_ca_file"),
    **dict.fromkeys(("token", "tokens", "auth", "auth_token", "auth_tokens"), "auth_tokens_file"),
}
# Names that other programs, or our own client, have for what a setting is.


class FlagError(Exception):
    """The command line cannot be used; one line says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command, and which settings have a flag in it; it reads the others from file and environment all the same."""

    name: str
    description: str
    flags: Collection[str] | None = None
    """Names of settings; None: all."""
    argument: tuple[str, str, str] | None = None
    """A setting that is given by its place: its name, what help calls it, and what it is."""


SERVE = Command(name="tokend serve", description="Serve one frozen tokenizer.json over gRPC.")
VERIFY = Command(
    name="tokend verify",
    description=(
        "Prove whether the fast engine gives the reference's ids for a tokenizer.json on this machine, print a report "
        "and keep the verdict where `tokend serve` finds it. Exit code 0: the fast engine may serve; 3: the reference "
        "alone; 2: the file cannot be served."
    ),
    flags=("control_tokens", "state_dir"),
    argument=(
        "tokenizer",
        "FILE",
        "the tokenizer.json; without it the one that TOKEND_TOKENIZER or the --config file names, else the embedded default",
    ),
)
_EPILOG = (
    "Each flag is also an environment variable (--state-dir: TOKEND_STATE_DIR) and a key of the --config file "
    "(state_dir). A flag wins over the environment, the environment over the file. docs/configuration.md has all."
)


def read_flags(argv: Sequence[str], settings: Sequence["Setting"], command: Command) -> dict[str, Any]:
    """Read a command line.

    Args:
        argv: The arguments after the command's name.
        settings: Every setting.
        command: Which command it is.

    Returns:
        What was given, as text, by the names of settings; and `config` and `print_config` if they were given.

    Raises:
        FlagError: A flag is unknown or lacks its value, or there is an argument too many.
        SystemExit: `--help` was given.
    """
    parser = _parser(settings, command)
    given, unknown = parser.parse_known_args(list(argv))
    if unknown:
        flag = next((each for each in unknown if each.startswith("-")), None)
        if flag is None:
            parser.error(f"unexpected argument {unknown[0]!r}")
        known = [name for action in parser._actions for name in action.option_strings]  # noqa: SLF001 (argparse has no other way)
        raise FlagError(
            f"unknown flag {flag.partition('=')[0]}{probably_meant(flag.partition('=')[0], known)}"
        )
    return vars(given)


def probably_meant(name: str, known: Sequence[str]) -> str:
    """Return the end of a sentence about an unknown name: the known one that is most like it, or where all stand."""
    by_stem = {_stem(each): each for each in known}
    stem = _stem(name)
    close = [_CALLED_ELSEWHERE.get(stem, ""), *difflib.get_close_matches(stem, by_stem, n=1, cutoff=_LIKE)]
    meant = next((by_stem[each] for each in close if each in by_stem), None)
    return f"; did you mean {meant}?" if meant else "; --help lists all settings"


def _stem(name: str) -> str:
    # The setting itself: a beginning that all have would make each like each.
    return name.lower().removeprefix("--").removeprefix("tokend_").replace("-", "_")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise FlagError(f"{message} (--help lists the flags)")


def _parser(settings: Sequence["Setting"], command: Command) -> _Parser:
    parser = _Parser(
        prog=command.name,
        description=command.description,
        epilog=_EPILOG,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    if command.argument is not None:
        name, shown, help_text = command.argument
        parser.add_argument(name, nargs="?", metavar=shown, help=help_text)
    parser.add_argument("--config", metavar="PATH", help="TOML file with settings (also TOKEND_CONFIG)")
    if command.flags is None:
        parser.add_argument(
            "--print-config", action="store_true", help="show each setting and where it came from, and end"
        )
    for each in settings:
        if command.flags is None or each.name in command.flags:
            _add_flag(parser, each)
    return parser


def _add_flag(parser: _Parser, each: "Setting") -> None:
    default = each.default.replace("%", "%%") or "unset"
    shown = f"{each.help.replace('%', '%%')} (default: {default})"
    if not each.kind.boolean:
        action = "append" if each.kind.repeatable else "store"
        parser.add_argument(
            each.flag, dest=each.name, action=action, metavar=each.kind.placeholder, help=shown
        )
        return
    negated = "--no-" + each.flag[2:]
    parser.add_argument(each.flag, dest=each.name, action="store_const", const="true", help=shown)
    parser.add_argument(negated, dest=each.name, action="store_const", const="false", help=argparse.SUPPRESS)
