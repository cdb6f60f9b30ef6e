"""How a vocabulary of bytes is written as text: one printable letter for each byte.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), and its published code.
"""


def byte_letters() -> dict[int, str]:
    """A printable letter for each byte, so that a vocabulary of bytes can be written as text.

    The bytes that are printable in Latin-1 stand for themselves. The others, in their order, are the letters from
    U+0100 on: the space, 0x20, is the 33rd of them, and so `Ġ` (U+0120) is seen in front of so many tokens.

    >>> byte_letters()[ord("a")], byte_letters()[ord(" ")], byte_letters()[ord(chr(10))]
    ('a', 'Ġ', 'Ċ')
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + n) for n, byte in enumerate(others)}


LETTERS = byte_letters()
BYTES = {letter: byte for byte, letter in LETTERS.items()}
