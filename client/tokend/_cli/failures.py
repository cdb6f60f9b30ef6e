"""From what went wrong to one line for people: first what is wrong, then the flag that helps."""

import shlex

from tokend import errors

__all__ = ["BAD_INPUT", "CALL_FAILED", "CliFailure", "bad_input", "of_call"]

CALL_FAILED = 1
"""Exit code: the server could not be reached, refused the caller, or failed."""
BAD_INPUT = 2
"""Exit code: wrong usage, or input that no server would take."""

_FLAGS = {
    "max_tokens": "--max-tokens",
    "allowed_special_tokens": "--allow-special",
    "special_tokens": "--special-tokens",
    "truncation": "--max-tokens",
    "stop": "--stop",
    "unknown_ids": "--unknown-ids",
    "byte_runs": "--byte-runs",
    "expected_fingerprint": "--expected-fingerprint",
}

_CAUSES = (
    ("WRONG_VERSION_NUMBER", "it speaks no TLS; leave the --tls flags away"),
    ("http1.x server", "it speaks HTTP/1, as the ops port does; --target takes the gRPC port"),
    (
        "Hostname Verification Check failed",
        "its certificate has another name; --tls-server-name gives the one to expect",
    ),
    ("certificate has expired", "its certificate has expired"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "its certificate is of no authority that is trusted here; --tls-ca names the file of its authority",
    ),
    (
        "Failed to create security handshaker",
        "the files of the --tls flags cannot be used: each has to be PEM, and --tls-key the key of --tls-cert",
    ),
    (
        "Socket closed",
        (
            "it closed the connection; if it speaks TLS, --tls-ca encrypts; if it asks for a certificate, --tls-cert and "
            "--tls-key show one"
        ),
    ),
)
# What gRPC says of a connection that does not come about, the surer sign first, and what that means.


class CliFailure(Exception):
    """A command cannot be done; its words are for the user.

    Attributes:
        exit_code: What the process ends with.
    """

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def bad_input(message: str) -> CliFailure:
    """Wrong usage or input."""
    return CliFailure(message, exit_code=BAD_INPUT)


def of_call(error: errors.TokendError, *, target: str, subject: str = "the text") -> CliFailure:
    """What a failed call means to the user of a command.

    Args:
        error: The client's error.
        target: The server's address as the user gave it.
        subject: What the refused text is called, such as its file and line.
    """
    if isinstance(error, errors.InvalidRequestError):
        return bad_input(_refusal(error, subject))
    return CliFailure(_failure(error, target), exit_code=CALL_FAILED)


def _refusal(error: errors.InvalidRequestError, subject: str) -> str:
    match error:
        case errors.SpecialTokenRejectedError():
            return (
                f"{subject} holds the control token {error.token} at character {error.position}; "
                f"--special-tokens text keeps it as text, --allow-special {shlex.quote(error.token)} makes it a token"
            )
        case errors.UnknownTokenIdError():
            place = "" if error.index is None else f" (number {error.index + 1})"
            return (
                f"id {error.id}{place} is no token of this tokenizer, whose greatest id is {error.max_id}; "
                "--unknown-ids skip or --unknown-ids replace reads on"
            )
        case errors.TooLargeError(reason="TEXT_TOO_LARGE"):
            return f"{subject} has {error.size:,} bytes, more than the {error.limit:,} that the server takes"
        case errors.TooLargeError(reason="TOO_MANY_IDS"):
            return (
                f"{error.size:,} ids are more than the {error.limit:,} that the server takes at once; "
                "`tokend stream-decode` takes any number"
            )
        case errors.InvalidOptionError(field=field) if field in _FLAGS:
            return f"{error.message}; see {_FLAGS[field]}"
    return error.message


def _failure(error: errors.TokendError, target: str) -> str:
    if isinstance(error, errors.UnavailableError):
        return _unavailable(error, target)
    request = f" [request {error.request_id}]" if error.request_id else ""
    match error:
        case errors.DeadlineExceededError():
            return f"no answer from {target} in time; --timeout SECONDS waits longer"
        case errors.TokenizerMismatchError():
            return f"the server has tokenizer {error.served}, not the one that --expected-fingerprint names"
        case errors.UnauthenticatedError() | errors.PermissionDeniedError():
            return f"{target} refuses the caller: {error.message}; --auth-token or TOKEND_TOKEN gives a token"
        case errors.UnsupportedError():
            return (
                f"{target} is no tokend server, or one that is too old for this call; --target names another"
            )
    return f"the server failed: {error.message}{request}"


def _unavailable(error: errors.UnavailableError, target: str) -> str:
    if error.reason:
        wait = "" if error.retry_delay_s is None else f"; it asks to wait {error.retry_delay_s:g} s"
        return f"the server at {target} takes no calls now ({error.reason}){wait}"
    if "Connection refused" in error.message or "No such file" in error.message:
        port = " port 443, which gRPC takes where --target has none" if _lacks_port(error, target) else ""
        return f"no tokend server at {target}{port}; start one with `tokend serve`, or name another with --target"
    for sign, meaning in _CAUSES:
        if sign in error.message:
            return f"cannot reach {target}: {meaning}"
    # What gRPC says is long, and tells the last cause at its end.
    cause = error.message.partition("last error: ")[2] or error.message
    return f"cannot reach {target}: {cause}; check --target and the --tls flags"


def _lacks_port(error: errors.UnavailableError, target: str) -> bool:
    return ":443:" in error.message and ":443" not in target
