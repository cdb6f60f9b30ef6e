"""Proof at load that a decoder gives what the library gives: every id, and mixed sequences in random pieces.

The library is called for one list at a time and never in parallel: its thread pool would not survive a fork.
"""

from collections.abc import Iterator, Sequence
from random import Random

from tokenizers import Tokenizer

from tokend_server.engine.decoders import DecoderKind
from tokend_server.engine.decoding.interface import FFFD, TextDecoder
from tokend_server.engine.vocabulary import Vocabulary

__all__ = ["find_difference"]

_N_RANDOM_SEQUENCES = 400
_BLOCK_IDS = 256


def find_difference(decoder: TextDecoder, tokenizer: Tokenizer, vocabulary: Vocabulary) -> str:
    """Compare a decoder with the library; "" if nothing differs, else one phrase about the first difference.

    Each id alone, all ids in blocks, and random sequences that prefer special tokens, tokens with odd bytes and
    neighbours that repeat, whole and streamed. The random numbers are the same at each start.

    Args:
        decoder: What is to be proved.
        tokenizer: The library's tokenizer of the same file.
        vocabulary: Its vocabulary.
    """
    n_ids = vocabulary.max_id + 1
    for token_id in range(n_ids):
        alone = [token_id]
        if decoder.decode(alone, skip_special_tokens=False) != tokenizer.decode(
            alone, skip_special_tokens=False
        ):
            return f"id {token_id} alone differs from the library's Decode"
    for start in range(0, n_ids, _BLOCK_IDS):
        block = list(range(start, min(start + _BLOCK_IDS, n_ids)))
        for skip in (False, True):
            if decoder.decode(block, skip_special_tokens=skip) != tokenizer.decode(
                block, skip_special_tokens=skip
            ):
                return f"ids {block[0]} to {block[-1]} in order differ from the library's Decode"
    random = Random(20_241_129)  # noqa: S311 (not for secrets; the same at each start)
    for ids in _random_sequences(random, vocabulary):
        for skip in (False, True):
            whole = tokenizer.decode(ids, skip_special_tokens=skip)
            way = _differing_way(decoder, ids, random, whole, skip=skip)
            if way is not None:
                return f"a mixed sequence, {way}, differs from the library's Decode"
    return ""


def _differing_way(
    decoder: TextDecoder, ids: Sequence[int], random: Random, whole: str, *, skip: bool
) -> str | None:
    """The first way of decoding that does not give the whole text, or None."""
    if decoder.decode(ids, skip_special_tokens=skip) != whole:
        return "not streamed"
    if _streamed(decoder, ids, random, skip=skip, hold=True) != whole:
        return "streamed"
    # A prompt stream may differ on invalid byte runs, and only there.
    if decoder.mode == DecoderKind.BYTE_RUNS and FFFD in whole:
        return None
    return None if _streamed(decoder, ids, random, skip=skip, hold=False) == whole else "streamed promptly"


def _streamed(decoder: TextDecoder, ids: Sequence[int], random: Random, *, skip: bool, hold: bool) -> str:
    """The text of a stream that gets the ids in pieces."""
    sequence = decoder.open(skip_special_tokens=skip, hold_byte_runs=hold)
    text = ""
    start = 0
    while start < len(ids):
        end = start + random.randint(1, 4)
        text += sequence.push(ids[start:end])
        start = end
    return text + sequence.finish()


def _random_sequences(random: Random, vocabulary: Vocabulary) -> Iterator[list[int]]:
    """Sequences with a mixture that hurts: the empty one first, then random ids among chosen ones."""
    yield []
    added = sorted(vocabulary.added)
    odd = [token_id for token_id in range(vocabulary.max_id + 1) if _is_odd(vocabulary.strings[token_id])]
    pools: list[Sequence[int]] = [
        range(vocabulary.max_id + 1),
        *filter(None, (added, odd, sorted(vocabulary.holes))),
    ]
    for _ in range(_N_RANDOM_SEQUENCES):
        weights = [random.random() for _ in pools]
        ids: list[int] = []
        for pool in random.choices(pools, weights, k=random.randint(1, 24)):
            repeat = ids and random.random() < 0.1
            ids.append(ids[-1] if repeat else random.choice(pool))
        yield ids


def _is_odd(string: str | None) -> bool:
    """Whether a token is short or a byte token: where characters are cut, and runs are made."""
    return string is not None and (len(string) <= 2 or string.startswith("<0x"))
