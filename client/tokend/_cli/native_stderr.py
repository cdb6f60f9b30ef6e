"""Keeps what gRPC's core prints off standard error, where a command says in one line what is wrong."""

import os
import sys

__all__ = ["hush_native"]

_STDERR = 2


def hush_native() -> None:
    """Point descriptor 2 at nothing, and Python's own stderr at a copy of the old one, until the process ends.

    gRPC reads GRPC_VERBOSITY when it is imported, which importing any part of `tokend` does: too early for a command
    to set it. Where the environment has it, somebody wants to see those lines, and nothing is done.
    """
    if "GRPC_VERBOSITY" in os.environ or sys.stderr is None:
        return
    try:
        if sys.stderr.fileno() != _STDERR:
            return
        sys.stderr.flush()
        sys.stderr = os.fdopen(
            os.dup(_STDERR), "w", buffering=1, encoding=sys.stderr.encoding, errors=sys.stderr.errors
        )
        nowhere = os.open(os.devnull, os.O_WRONLY)
    except OSError:
        return  # closed, or no descriptor at all: nothing to keep clean
    os.dup2(nowhere, _STDERR)
    os.close(nowhere)
