"""The embedded default tokenizer, and the scripts that make it again (docs/default-tokenizer.md)."""

from pathlib import Path

__all__ = ["default_tokenizer_path"]


def default_tokenizer_path() -> Path:
    """The `tokenizer.json` that is served when no other is named; part of the installed package."""
    return Path(__file__).with_name("default") / "tokenizer.json"
