"""The way back: from the strings of ids to a text.

The page before this one is `tokenizer.py`.
"""

from collections.abc import Iterator

import regex

from tests.reference_bpe.byte_letters import BYTES
from tests.reference_bpe.pieces import Part, pattern_of


def decoded(tokens: list[str], part: Part) -> str:
    """Joins token strings to a text, as the file's decoder says.

    A token may end within a character: only all bytes together are text, and what is none becomes U+FFFD.

    >>> decoded(["ðŁ", "ĻĤ", "Ġhi"], {"type": "ByteLevel"})
    '🙂 hi'
    >>> decoded(["▁a", "▁b"], {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"})
    'a b'
    """
    match part["type"]:
        case "ByteLevel":
            # A token with any other letter, an added one for example, is its own text.
            data = [
                bytes(BYTES[letter] for letter in token) if set(token) <= BYTES.keys() else token.encode()
                for token in tokens
            ]
            return b"".join(data).decode(errors="replace")
        case "Metaspace":
            first = [token.replace(part["replacement"], "") for token in tokens[:1]]
            return "".join([*first, *(token.replace(part["replacement"], " ") for token in tokens[1:])])
        case "Sequence":
            return "".join(by_steps(tokens, part["decoders"]))
    raise NotImplementedError(part["type"])


def by_steps(tokens: list[str], steps: list[Part]) -> list[str]:
    """The decoder of the Llama family, one step after another.

    >>> space = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    >>> strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    >>> by_steps(["▁a", "<0xC3>", "<0xA9>"], [space, {"type": "ByteFallback"}, {"type": "Fuse"}, strip])
    ['aé']
    """
    for step in steps:
        match step["type"]:
            case "Replace":
                old, new = pattern_of(step), step["content"].replace("\\", r"\\")
                tokens = [regex.sub(old, new, token) for token in tokens]
            case "Fuse":
                tokens = ["".join(tokens)]
            case "Strip":
                tokens = [
                    regex.sub(f"^{regex.escape(step['content'])}{{0,{step['start']}}}", "", t) for t in tokens
                ]
            case "ByteFallback":
                tokens = [*runs_of_bytes(tokens)]
            case other:
                raise NotImplementedError(other)
    return tokens


def runs_of_bytes(tokens: list[str]) -> Iterator[str]:
    """Each run of `<0x..>` tokens as the text of its bytes, or as one U+FFFD for each of them if they are none.

    >>> list(runs_of_bytes(["a", "<0xC3>", "<0xA9>", "b", "<0xC3>"]))
    ['a', 'é', 'b', '�']
    """
    run = bytearray()
    for token in [*tokens, ""]:
        if found := regex.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token):
            run.append(int(found[1], 16))
            continue
        if run:
            try:
                yield run.decode()
            except UnicodeDecodeError:
                yield "\ufffd" * len(run)
            run.clear()
        if token:
            yield token
