"""The reference, built anew here from the file: slow and plain, and sharing no code with the server.

PARSE is the library on the file. TEXT is the library on a copy of the file in which the control tokens are all
marked special, its switch `encode_special_tokens` on, and every control token but unk renamed in the model, so
that no text can reach it, whether or not the server found that it could.
"""

import codecs
import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
CONTROL_LOOK = re.compile(r"<\|.+\|>|<｜.+｜>", re.DOTALL)

# The alphabet of byte-level files: Latin-1 where it prints, and letters from U+0100 on for the other bytes.
_PLAIN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PLAIN]
BYTE_OF_LETTER = {chr(byte): byte for byte in _PLAIN} | {
    chr(0x100 + n): byte for n, byte in enumerate(_OTHERS)
}


class Reference:
    """One tokenizer file, read by the test itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path.read_bytes()
        self.spec: dict[str, Any] = json.loads(self.data)
        self.tokenizer = Tokenizer.from_file(str(path))
        # The service ignores both, and says so.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._text: dict[frozenset[str], TextReference] = {}

    @cached_property
    def added(self) -> dict[str, dict[str, Any]]:
        """The file's added tokens by content."""
        return {entry["content"]: entry for entry in self.spec["added_tokens"]}

    @cached_property
    def added_contents(self) -> dict[int, str]:
        return {entry["id"]: content for content, entry in self.added.items()}

    @cached_property
    def control(self) -> dict[str, int]:
        """The control tokens: the special ones, and those that look like `<|...|>`."""
        return {
            content: entry["id"]
            for content, entry in self.added.items()
            if entry["special"] or CONTROL_LOOK.fullmatch(content)
        }

    @cached_property
    def unk(self) -> str | None:
        model = self.spec["model"]
        if model.get("unk_id") is not None:
            unk: str = model["vocab"][model["unk_id"]][0]
            return unk
        return model.get("unk_token")

    @cached_property
    def known_ids(self) -> list[int]:
        ids = {*self.tokenizer.get_vocab(with_added_tokens=True).values()}
        return sorted(token_id for token_id in ids if self.tokenizer.id_to_token(token_id) is not None)

    @cached_property
    def known(self) -> frozenset[int]:
        return frozenset(self.known_ids)

    @cached_property
    def special_contents(self) -> frozenset[str]:
        return frozenset(content for content, entry in self.added.items() if entry["special"])

    @cached_property
    def special_ids(self) -> list[int]:
        """Ids that `skip_special_tokens` leaves out."""
        named = (self.tokenizer.token_to_id(content) for content in self.special_contents)
        return [
            token_id
            for token_id in sorted(token_id for token_id in named if token_id is not None)
            if self.tokenizer.id_to_token(token_id) in self.special_contents
        ]

    @cached_property
    def decoder_kinds(self) -> list[str]:
        """The kinds of the decoder's stages, Sequences laid flat."""

        def kinds(part: dict[str, Any] | None) -> list[str]:
            if part is None:
                return []
            inner = part.get("decoders")
            return [part["type"]] if inner is None else [kind for each in inner for kind in kinds(each)]

        return kinds(self.spec["decoder"])

    @cached_property
    def byte_ids(self) -> dict[int, int]:
        """The byte of each byte-fallback token, where the decoder reads them as bytes."""
        if "ByteFallback" not in self.decoder_kinds:
            return {}
        found = ((token_id, BYTE_TOKEN.fullmatch(self.string(token_id))) for token_id in self.known_ids)
        return {token_id: int(match[1], 16) for token_id, match in found if match}

    @cached_property
    def partial_ids(self) -> list[int]:
        """Ids whose bytes are no whole characters."""
        if self.byte_ids:
            return [token_id for token_id, byte in self.byte_ids.items() if byte >= 0x80]
        if "ByteLevel" not in self.decoder_kinds:
            return []
        return [token_id for token_id in self.known_ids if "\ufffd" in self.decode([token_id], skip=False)]

    def string(self, token_id: int) -> str:
        string: str = self.tokenizer.id_to_token(token_id)
        return string

    def decode(self, ids: list[int], *, skip: bool) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=skip)
        return text

    def text_reference(self, allowed: frozenset[str] = frozenset()) -> "TextReference":
        """TEXT with some control tokens parsed all the same."""
        if allowed not in self._text:
            self._text[allowed] = TextReference(self, allowed)
        return self._text[allowed]

    def prompt_text(self, ids: list[int], *, skip: bool) -> str:
        """What a stream of the way PROMPT gives, by the written rule.

        Of each run of byte tokens the valid parts are their text, and each maximal invalid part is one U+FFFD.
        The library decodes the rest: it is given the valid parts as byte tokens still, and U+FFFD as a token.
        """
        tokens: list[str] = []
        run = bytearray()

        def close_run() -> None:
            for part in _parts(bytes(run)):
                tokens.extend([f"<0x{byte:02X}>" for byte in part] if isinstance(part, bytes) else [part])
            run.clear()

        for token_id in ids:
            string = self.tokenizer.id_to_token(token_id)
            if string is None or (skip and string in self.special_contents):
                continue
            if token_id in self.byte_ids:
                run.append(self.byte_ids[token_id])
                continue
            close_run()
            tokens.append(string)
        close_run()
        text: str = self.tokenizer.decoder.decode(tokens)
        return text

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes that a token stands for within a text, by the kind of the file's decoder."""
        string = self.string(token_id)
        kinds, decoder = self.decoder_kinds, self.spec["decoder"] or {}
        added = self.added_contents.get(token_id)
        if "ByteLevel" in kinds:
            # An added token is found in the text itself, before there are letters for bytes.
            if added is not None or not BYTE_OF_LETTER.keys() >= set(string):
                return (added or string).encode()
            return bytes(BYTE_OF_LETTER[letter] for letter in string)
        if token_id in self.byte_ids:
            return bytes([self.byte_ids[token_id]])
        string = added or string
        if "WordPiece" in kinds:
            string = string.removeprefix(decoder["prefix"])
        elif "BPEDecoder" in kinds:
            string = string.replace(decoder["suffix"], " ")
        elif "CTC" in kinds:
            string = {decoder["pad_token"]: "", decoder["word_delimiter_token"]: " "}.get(string, string)
        elif "Metaspace" in kinds or "Replace" in kinds:
            string = string.replace("▁", " ")
        return string.encode()


class TextReference:
    """The library made to keep control tokens as text."""

    def __init__(self, reference: Reference, allowed: frozenset[str]) -> None:
        self.kept = {
            content: token_id for content, token_id in reference.control.items() if content not in allowed
        }
        spec = json.loads(reference.data)
        spec["truncation"] = spec["padding"] = None
        for entry in spec["added_tokens"]:
            entry["special"] = entry["content"] in self.kept
        model = spec["model"]
        held = (
            {piece for piece, _ in model["vocab"]}
            if isinstance(model["vocab"], list)
            else set(model["vocab"])
        )
        renamed = [content for content in self.kept if content in held and content != reference.unk]
        self._rename(model, renamed)
        # The renamed ones are new to the library, which numbers them after all others, so they come last.
        spec["added_tokens"].sort(key=lambda entry: entry["content"] in renamed)
        self.tokenizer = Tokenizer.from_str(json.dumps(spec))
        self.tokenizer.encode_special_tokens = True
        self._file_ids: dict[int, int] = {}
        for content, entry in reference.added.items():
            token_id = self.tokenizer.token_to_id(content)
            if content in renamed:
                assert token_id not in reference.known_ids, content
                self._file_ids[token_id] = entry["id"]
            else:
                assert token_id == entry["id"], content

    @staticmethod
    def _rename(model: dict[str, Any], contents: list[str]) -> None:
        names = {content: f"\U0010fffd{n}\U0010fffd" for n, content in enumerate(contents)}
        if isinstance(model["vocab"], list):
            model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
        else:
            model["vocab"] = {names.get(piece, piece): token_id for piece, token_id in model["vocab"].items()}
        if "merges" in model:
            prefix = model.get("continuing_subword_prefix") or ""
            merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
            model["merges"] = [
                [left, right]
                for left, right in merges
                if names.keys().isdisjoint((left, right, left + right.removeprefix(prefix)))
            ]

    def ids(self, encoding: Encoding) -> list[int]:
        return [self._file_ids.get(token_id, token_id) for token_id in encoding.ids]


def _parts(data: bytes) -> list[bytes | str]:
    """Bytes cut into valid parts (bytes) and maximal invalid ones (each U+FFFD)."""
    parts: list[bytes | str] = []
    while data:
        try:
            codecs.decode(data, "utf-8", "strict")
        except UnicodeDecodeError as error:
            parts += [data[: error.start], "\ufffd"]
            data = data[error.end :]
        else:
            return [*parts, data]
    return parts
