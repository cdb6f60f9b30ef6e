"""What callers of a soak do, each a turn whose answer is compared with the reference in the caller's own process.

One body serves both clients: the blocking one is called through threads (`callers.Threaded`).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import tokend
from tests.equivalence.inputs import chunks, fuzz_text, random_ids
from tests.equivalence.reference import Reference

__all__ = ["Expected", "Turn", "WrongAnswer", "turns"]

Turn = Callable[[Any, "Expected", random.Random], Awaitable[None]]
_MEDIUM_BYTES, _LONG_BYTES = 4_000, 60_000


class WrongAnswer(Exception):
    """An answer that is not the reference's."""


class Expected:
    """The reference's answers on the served file."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._text = reference.text_reference()
        self.specials: Sequence[str] = sorted(reference.control)
        self.ids: Sequence[int] = reference.known_ids
        self.unknown_id = max(reference.known_ids) + 1

    def encoded(self, text: str, *, parse: bool = False) -> list[int]:
        """The ids of a text, under TEXT or PARSE."""
        if parse:
            found: list[int] = self._reference.tokenizer.encode(text).ids
            return found
        return self._text.ids(self._text.tokenizer.encode(text))

    def decoded(self, ids: list[int]) -> str:
        """The text of ids, special tokens left out."""
        return self._reference.decode(ids, skip=True)


def _same(expected: object, got: object) -> None:
    if expected != got:
        raise WrongAnswer


def _text_of(n_bytes: int, chance: random.Random, expected: Expected) -> str:
    parts: list[str] = []
    size = 0
    while size < n_bytes:
        parts.append(fuzz_text(chance, expected.specials, 40))
        size += len(parts[-1].encode())
    return "".join(parts)


def _texts(chance: random.Random, expected: Expected, n_texts: int) -> list[str]:
    return [fuzz_text(chance, expected.specials, 100) for _ in range(n_texts)]


def _ids(chance: random.Random, expected: Expected, n_ids: int) -> list[int]:
    return random_ids(chance, [expected.ids], n_ids)


async def encode(client: Any, expected: Expected, chance: random.Random) -> None:
    [text] = _texts(chance, expected, 1)
    parse = chance.random() < 0.3
    answer = await client.encode(text, special_tokens="parse" if parse else "text")
    _same(expected.encoded(text, parse=parse), answer.ids)


async def encode_offsets(client: Any, expected: Expected, chance: random.Random) -> None:
    [text] = _texts(chance, expected, 1)
    answer = await client.encode(text, offsets="code_points", include_tokens=True)
    _same(expected.encoded(text), answer.ids)
    _same(len(answer.ids), len(answer.offsets))


async def encode_medium(client: Any, expected: Expected, chance: random.Random) -> None:
    text = _text_of(_MEDIUM_BYTES, chance, expected)
    _same(expected.encoded(text), (await client.encode(text)).ids)


async def encode_long(client: Any, expected: Expected, chance: random.Random) -> None:
    text = _text_of(_LONG_BYTES, chance, expected)
    _same(expected.encoded(text), (await client.encode(text)).ids)


async def encode_batch(client: Any, expected: Expected, chance: random.Random) -> None:
    texts = _texts(chance, expected, 32)
    answer = await client.encode_batch(texts)
    _same([expected.encoded(text) for text in texts], [each.ids for each in answer])


async def encode_stream(client: Any, expected: Expected, chance: random.Random) -> None:
    texts = _texts(chance, expected, 100)
    answers = [each.ids async for each in client.encode_stream(texts)]
    _same([expected.encoded(text) for text in texts], answers)


async def count(client: Any, expected: Expected, chance: random.Random) -> None:
    texts = _texts(chance, expected, 4)
    answer = await client.count(texts)
    _same([len(expected.encoded(text)) for text in texts], answer.counts)


async def decode(client: Any, expected: Expected, chance: random.Random) -> None:
    ids = _ids(chance, expected, chance.randint(0, 200))
    _same(expected.decoded(ids), (await client.decode(ids)).text)


async def decode_streams(client: Any, expected: Expected, chance: random.Random) -> None:
    """Many sequences at a time, each cut anywhere: joined, the pieces are what the ids give at once."""

    async def one(ids: list[int], pieces: list[Sequence[int]]) -> None:
        async with client.decoder() as decoder:
            said = [await decoder.push(list(piece)) for piece in pieces]
            said.append(await decoder.finish())
        _same(expected.decoded(ids), "".join(said))

    sequences = [_ids(chance, expected, chance.randint(0, 60)) for _ in range(24)]
    await asyncio.gather(*(one(ids, list(chunks(chance, ids))) for ids in sequences))


async def abandon_streams(client: Any, expected: Expected, chance: random.Random) -> None:
    """Leave sequences in the middle, with their ids half sent."""
    for _ in range(4):
        async with client.decoder() as decoder:
            await decoder.push(_ids(chance, expected, 3))


async def cancel(client: Any, expected: Expected, chance: random.Random) -> None:
    """Give up on a call that is under way; what comes all the same has to be right."""
    text = _text_of(_LONG_BYTES, chance, expected)
    try:
        answer = await client.encode(text, timeout_s=chance.uniform(0.001, 0.05))
    except (tokend.DeadlineExceededError, tokend.CallCancelledError):
        return
    _same(expected.encoded(text), answer.ids)


async def refusals(client: Any, expected: Expected, chance: random.Random) -> None:
    """Ask for what is refused, each with the error that is its own."""
    special = chance.choice(expected.specials)
    wanted = {
        tokend.SpecialTokenRejectedError: lambda: client.encode(f"a {special}", special_tokens="reject"),
        tokend.UnknownTokenIdError: lambda: client.decode([expected.unknown_id]),
        tokend.TokenizerMismatchError: lambda: client.count("a", expected_fingerprint="0" * 64),
    }
    for error, ask in wanted.items():
        try:
            await ask()
        except error:
            continue
        raise WrongAnswer


def turns() -> dict[str, tuple[Turn, int]]:
    """Every kind of turn, by its name, and how often it comes among the others."""
    return {
        "encode": (encode, 30),
        "encode, offsets": (encode_offsets, 6),
        "encode, 4 KB": (encode_medium, 4),
        "encode, 60 KB": (encode_long, 2),
        "encode_batch, 32 texts": (encode_batch, 6),
        "encode_stream, 100 texts": (encode_stream, 3),
        "count": (count, 12),
        "decode": (decode, 12),
        "24 decoders": (decode_streams, 6),
        "decoders left in the middle": (abandon_streams, 4),
        "calls given up": (cancel, 4),
        "refusals": (refusals, 4),
    }
