"""The operator's file of tokens: TOML, one line a caller, with digests and never a token.

    chat-backend = { permissions = ["tokenize"], sha256 = "9f86d081884c7d65..." }

`sha256` may be a list: of the token that is being replaced and the one that replaces it.
"""

import re
import secrets
import tomllib
from collections.abc import Iterator, Sequence

from tokend_server.errors import CredentialsError
from tokend_server.service.access import Caller, Permission, Tokens, digest_of

__all__ = ["NAME_RULE", "check_name", "new_token", "parse_tokens", "token_line"]

NAME_RULE = "a name is 1 to 63 letters, digits, hyphens and underscores, and not `anonymous` or `other`"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}", re.ASCII)
# What the metrics call those who have no name.
_RESERVED = frozenset({"anonymous", "other"})
_KEYS = frozenset({"permissions", "sha256"})
_DIGEST = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
# What finds leaked secrets in files and logs knows ours by it.
_PREFIX = "tokend_"
_RANDOM_BYTES = 32


def new_token() -> str:
    """Make a token of 256 random bits. So many cannot be guessed from a digest, salted and slow or not."""
    return _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def token_line(name: str, permissions: Sequence[Permission], token: str) -> str:
    """Return the line of the file that makes a token known."""
    named = ", ".join(f'"{permission}"' for permission in permissions)
    return f'{name} = {{ permissions = [{named}], sha256 = "{digest_of(token).hex()}" }}'


def check_name(name: str) -> None:
    """Refuse a name that is none.

    Raises:
        ValueError: With the rule.
    """
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise ValueError(NAME_RULE)


def parse_tokens(data: bytes, source: str) -> Tokens:
    """Read the file.

    Args:
        data: The file.
        source: How it is named in errors.

    Raises:
        CredentialsError: It is no such file, or has no token; says where, and never quotes what may be a secret.
    """
    try:
        table = tomllib.loads(data.decode())
        entries = [entry for name, value in table.items() for entry in _entries(name, value)]
        tokens = Tokens(entries)
    except UnicodeDecodeError:
        raise CredentialsError(f"{source}: not UTF-8") from None
    except (ValueError, RecursionError) as problem:
        raise CredentialsError(f"{source}: {problem}") from None
    if not tokens:
        raise CredentialsError(f"{source}: there is no token in it; `tokend new-token NAME` makes one")
    return tokens


def _entries(name: str, value: object) -> Iterator[tuple[bytes, Caller]]:
    try:
        check_name(name)
    except ValueError as rule:
        # Not quoted: who mistakes the form may have put the token itself here.
        raise ValueError(f"a key is no name: {rule}") from None
    if not isinstance(value, dict) or value.keys() != _KEYS:
        raise ValueError(f'{name} is not of the form {{ permissions = ["tokenize"], sha256 = "..." }}')
    caller = Caller(name=name, permissions=_permissions(name, value["permissions"]))
    digests = value["sha256"] if isinstance(value["sha256"], list) else [value["sha256"]]
    if not digests:
        raise ValueError(f"{name}: sha256 is empty")
    for digest in digests:
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ValueError(
                f"{name}: sha256 takes the 64 hexadecimal digits of a token's sha256, or a list of such"
            )
        yield bytes.fromhex(digest), caller


def _permissions(name: str, given: object) -> frozenset[Permission]:
    known = set(Permission)
    if (
        not isinstance(given, list)
        or not given
        or not all(isinstance(each, str) and each in known for each in given)
    ):
        raise ValueError(f"{name}: permissions takes a list of {', '.join(Permission)}; it must not be empty")
    return frozenset(map(Permission, given))
