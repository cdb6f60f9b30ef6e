"""Files of bearer tokens for tests, and what a call with one looks like."""

from collections.abc import Iterable
from pathlib import Path

from tokend_server.service.access import Permission
from tokend_server.service.token_file import new_token, token_line

ALL = tuple(Permission)


def write_tokens(path: Path, tokens: Iterable[tuple[str, Iterable[Permission], str]]) -> Path:
    """Put a file of tokens in the place of the old one, as an operator should: in one step."""
    fresh = path.with_suffix(".new")
    fresh.write_text("".join(f"{token_line(*each)}\n" for each in tokens))
    fresh.replace(path)
    return path


def bearer(token: str) -> list[tuple[str, str]]:
    """The metadata of a call with a token."""
    return [("authorization", f"Bearer {token}")]


__all__ = ["ALL", "Permission", "bearer", "new_token", "write_tokens"]
