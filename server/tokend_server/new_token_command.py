"""`python -m tokend_server new-token NAME`: makes a bearer token, and the line that makes it known to a server."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import NoReturn

from tokend_server.service.access import Permission
from tokend_server.service.token_file import check_name, new_token, token_line

__all__ = ["main"]

_DONE = 0
_USAGE = 2
_EPILOG = """\
The line goes to standard output and the token to standard error, so that one command does both:

  tokend new-token chat-backend >> tokens.toml

The token is nowhere kept: give it to its caller, or make a new one.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see `{self.prog} --help`")


def main(arguments: Sequence[str]) -> int:
    """Print the line on stdout and the token on stderr.

    Args:
        arguments: The name, and flags.

    Returns:
        0, or 2 for a name or a permission that is none.
    """
    parser = _Parser(
        prog="tokend new-token",
        description="Make a bearer token, and its line for --auth-tokens-file.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar="NAME", help="who it is for; the label `caller` of the metrics")
    parser.add_argument(
        "--permission",
        action="append",
        choices=[each.value for each in Permission],
        help="what it is for; may be given several times (default: tokenize)",
    )
    parser.add_argument("--json", action="store_true", help="print both as JSON on standard output")
    try:
        given = parser.parse_args(list(arguments))
        check_name(given.name)
    except ValueError as error:
        sys.stderr.write(f"tokend: {error}\n")
        return _USAGE
    permissions = [Permission(each) for each in dict.fromkeys(given.permission or [Permission.TOKENIZE])]
    token = new_token()
    line = token_line(given.name, permissions, token)
    if given.json:
        sys.stdout.write(json.dumps({"line": line, "token": token}) + "\n")
    else:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        sys.stderr.write(f"the token of {given.name}, shown this once: {token}\n")
    return _DONE
