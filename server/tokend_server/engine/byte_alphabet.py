"""How token strings spell bytes: the 256 printable characters of byte-level files, and `<0xNN>`.

Source: OpenAI's GPT-2 (`bytes_to_unicode`), kept by the ByteLevel parts of the `tokenizers` library; byte
fallback is from SentencePiece.
"""

import codecs

__all__ = ["BYTE_ALPHABET", "byte_level_bytes", "fallback_byte"]


def _byte_of_character() -> dict[str, int]:
    """Each character of the byte alphabet and its byte: printable Latin-1 as itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_of_character()

BYTE_ALPHABET = frozenset(_BYTE_OF)
"""The 256 characters that stand for bytes in the vocabulary of a byte-level file."""

# The alphabet is a code page like those of old, and Python writes these fast.
_CODE_PAGE = codecs.charmap_build("".join(sorted(_BYTE_OF, key=_BYTE_OF.__getitem__)))


def byte_level_bytes(string: str) -> bytes:
    """The bytes of a byte-level token string, all or nothing: one character off the alphabet, and it is UTF-8.

    Args:
        string: A token string, for example `Ġthe`; the empty string has no bytes.
    """
    try:
        return codecs.charmap_encode(string, "strict", _CODE_PAGE)[0]
    except UnicodeEncodeError:
        return string.encode()


def fallback_byte(string: str) -> int | None:
    """The byte that a token string `<0xNN>` stands for, or None for every other string.

    The library parses NN as a number, so lower case and even a plus sign before one digit are taken.

    Args:
        string: A token string.
    """
    if len(string) != 6 or not string.startswith("<0x") or string[5] != ">":
        return None
    digits = string[4] if string[3] == "+" else string[3:5]
    # int() alone would take underscores, spaces and digits of other scripts.
    return int(digits, 16) if all(digit in "0123456789abcdefABCDEF" for digit in digits) else None
