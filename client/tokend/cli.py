"""The command `tokend`: hands `serve`, `verify` and `new-token` over to the server, runs everything else as a client.

Exit codes: 0 done; 1 the server or the call failed; 2 usage or bad input; 130 Ctrl-C; 141 nobody reads the output.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from tokend import Client, TokendError
from tokend._cli import count, decode, describe, encode, stream_decode
from tokend._cli.arguments import Arguments, build_parser, parse
from tokend._cli.connection import connect
from tokend._cli.failures import CALL_FAILED, CliFailure, bad_input, of_call
from tokend._cli.native_stderr import hush_native
from tokend._cli.output import Output

__all__ = ["main"]

_DONE = 0
_INTERRUPTED = 130
_NO_READER = 141
# What a shell reports for a program that SIGINT or SIGPIPE ended: 128 and the signal's number.

_COMMANDS: Mapping[str, Callable[[Arguments, Client, Output], None]] = MappingProxyType(
    {
        "encode": encode.run,
        "decode": decode.run,
        "stream-decode": stream_decode.run,
        "count": count.run,
        "info": describe.run_info,
        "lookup": describe.run_lookup,
    }
)
_SERVER_MODULES = (
    "tokend_server",
    "tokenizers",
    "prometheus_client",
    "grpc_health",
    "grpc_reflection",
    "cryptography",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: The command and its arguments; None: the process's own.

    Returns:
        The exit code.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except CliFailure as failure:
        _complain(str(failure))
        return failure.exit_code
    except BrokenPipeError:
        _drop_output()
        return _NO_READER
    except KeyboardInterrupt:
        _drop_output()
        return _INTERRUPTED
    except OSError as error:
        # Files that are read have their own words (_cli/inputs.py): what is left is the output.
        _drop_output()
        _complain(f"cannot write the output: {error.strerror or error}")
        return CALL_FAILED


def _run(arguments: list[str]) -> int:
    if arguments[:1] in (["serve"], ["verify"], ["new-token"]):
        _become_server(arguments)
    if not arguments:
        sys.stderr.write(build_parser().format_help())
        return bad_input("").exit_code
    parsed = parse(arguments)
    output = Output.of_process()
    if parsed is None:
        # --help or --version, which argparse has written.
        output.flush()
        return _DONE
    hush_native()
    try:
        with connect(parsed) as client:
            _COMMANDS[parsed.command](parsed, client, output)
    except TokendError as error:
        output.flush()
        raise of_call(error, target=parsed.target) from error
    except ValueError as error:
        # The client's own checks, made before anything is sent.
        raise bad_input(str(error)) from error
    output.flush()
    return _DONE


def _become_server(arguments: list[str]) -> None:
    # The server stays a program of its own: nothing here imports it, and its process is this one.
    missing = [name for name in _SERVER_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise bad_input(
            f"`tokend {arguments[0]}` needs the server's packages ({', '.join(missing)} not found); "
            "pip install 'tokend[server]'"
        )
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "tokend_server", *arguments])  # noqa: S606 (no shell is wanted)


def _complain(message: str) -> None:
    if not message:
        return  # said already
    sys.stderr.write(f"tokend: {' '.join(message.splitlines())}\n")


def _drop_output() -> None:
    # What is still buffered cannot be written; without this the interpreter would try again at its end, and complain.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
