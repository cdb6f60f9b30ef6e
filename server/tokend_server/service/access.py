"""Who may call what: bearer tokens that are known by their sha256, each with a name and permissions.

The server never has a token itself, only digests of them. A presented token is hashed, and digests are compared: how
long that takes tells at most something about the digest of what was presented, and nobody can make tokens to a wanted
digest. docs/adr/0016-bearer-tokens.md has the argument and the figures.
"""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tokend_server.errors import PermissionDenied, Unauthenticated

__all__ = ["Access", "Caller", "Entry", "Permission", "Tokens", "digest_of"]

# By so much of a digest a token is looked up; the whole of it decides.
_INDEX_BYTES = 8
_SCHEME = "bearer"


class Permission(StrEnum):
    """What a token may be for. None of them includes another."""

    TOKENIZE = "tokenize"
    """Every call that encodes, decodes, counts or describes."""
    DOWNLOAD = "download"
    """The tokenizer file itself."""
    ADMIN = "admin"
    """What is for operators: reflection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who has a token."""

    name: str
    """From the operator's file; the value of the metrics' label `caller`."""
    permissions: frozenset[Permission]


def digest_of(token: str) -> bytes:
    """Return what is kept of a token: its sha256, over its UTF-8 bytes."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class Tokens:
    """The tokens of one version of the operator's file; never changed."""

    def __init__(self, entries: Iterable[tuple[bytes, Caller]]) -> None:
        """Take digests and whose they are.

        Raises:
            ValueError: Two tokens have the same digest.
        """
        self._by_index: dict[bytes, tuple[bytes, Caller]] = {}
        for digest, caller in entries:
            if (before := self._by_index.setdefault(digest[:_INDEX_BYTES], (digest, caller)))[
                0
            ] is not digest:
                raise ValueError(f"{before[1].name} and {caller.name} have the same token")

    def __len__(self) -> int:
        return len(self._by_index)

    @property
    def names(self) -> list[str]:
        """Whose they are, each name once, in the file's order."""
        return list(dict.fromkeys(caller.name for _, caller in self._by_index.values()))

    def caller_of(self, digest: bytes) -> Caller | None:
        """Return who has the token of that digest; None: nobody."""
        digest_known, caller = self._by_index.get(digest[:_INDEX_BYTES], (b"", None))
        return caller if hmac.compare_digest(digest_known, digest) else None


class Access:
    """Lets calls in by their tokens. Thread-safe: what is replaced is one reference."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        """Those in force; assign others to replace them."""

    def entry(self, authorization: str | bytes | None, method: str, permission: Permission) -> "Entry":
        """Begin to let a call in; `Entry.check` decides.

        Args:
            authorization: The value of the metadata `authorization`; None: there is none.
            method: What is called, for the error.
            permission: What that takes.

        Raises:
            Unauthenticated: There is no token in it.
        """
        return Entry(self, digest_of(_token_in(authorization)), method, permission)


class Entry:
    """A call's right to go on, for as long as the tokens that gave it are in force."""

    __slots__ = ("_access", "_checked_with", "_digest", "_method", "_permission", "caller")

    def __init__(self, access: Access, digest: bytes, method: str, permission: Permission) -> None:
        self._access, self._digest, self._method, self._permission = access, digest, method, permission
        self._checked_with: Tokens | None = None
        self.caller = ""
        """The name of the token, once it is known to be one; of a call that is denied too."""

    def check(self) -> None:
        """Look whether the call is allowed, and again if the tokens were replaced since.

        Raises:
            Unauthenticated: Its token is not in force any more.
            PermissionDenied: It has lost the permission.
        """
        tokens = self._access.tokens
        if tokens is self._checked_with:
            return
        caller = tokens.caller_of(self._digest)
        if caller is None:
            raise Unauthenticated(
                "the bearer token is not one of this server's; use a valid one, or ask its operator for one"
            )
        self.caller = caller.name
        if self._permission not in caller.permissions:
            raise PermissionDenied(
                f"the token of {caller.name} is not for {self._method}, which takes the permission "
                f"`{self._permission}`; use another token, or ask the server's operator for the permission"
            )
        self._checked_with = tokens


def _token_in(authorization: str | bytes | None) -> str:
    if authorization is None:
        raise Unauthenticated(
            "this server asks for a bearer token; send the metadata `authorization: Bearer TOKEN`"
        )
    if isinstance(authorization, str):
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == _SCHEME and token:
            return token.strip(" ")
    raise Unauthenticated("the metadata `authorization` is not of the form `Bearer TOKEN`")
