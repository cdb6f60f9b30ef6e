"""What must hold between the service and the reference when texts become ids."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tokenizers import Encoding, Tokenizer

import tokend
from tests.equivalence.served import Served
from tests.equivalence.tally import Tally
from tokend.v1 import error_reason_pb2 as reasons
from tokend.v1 import types_pb2 as types

POLICIES = ("PARSE", "TEXT")
UNITS = ("CODE_POINTS", "UTF8_BYTES", "UTF16_UNITS")
BATCH_TEXTS = 256
BATCH_CHARACTERS = 100_000
LONG_CHARACTERS = 3_000
PAIR_CHARACTERS = 200
"""The reference joins every piece that it cuts off one text with every one of the other."""


class EncodeLaws:
    """Compares one served tokenizer with its reference."""

    def __init__(self, served: Served, tally: Tally) -> None:
        self.served, self.tally = served, tally
        self.client, self.reference = served.client, served.reference
        self._whole: dict[tuple[str, bool], list[Encoding]] = {}
        """The reference's encodings of this batch, without truncation."""

    def check(self, texts: Sequence[str], rng: random.Random) -> None:
        """Every law, on every text; what costs a pass of its own takes turns between the batches."""
        self.tally.n_strings += len(texts)
        for turn, batch in enumerate(batches(texts)):
            self._whole.clear()
            for n, (policy, add) in enumerate(itertools.product(POLICIES, (True, False))):
                self.ids_and_offsets(batch, policy, add=add, units=UNITS if n == turn % 4 else UNITS[:1])
            self.truncated(batch, rng)
            self.pairs(batch, rng)
            self.allowed(batch, rng)
            self.stream(batch, rng)
            self.special_texts(batch)

    def ids_and_offsets(self, texts: Sequence[str], policy: str, *, add: bool, units: Sequence[str]) -> None:
        """Ids alone, then with offsets and tokens, and counts."""
        _, ids_of = self._policy(policy)
        expected = self._expected(texts, policy, add=add)
        ids = [ids_of(encoding) for encoding in expected]
        options: dict[str, Any] = {"special_tokens": policy, "add_special_tokens": add}
        law = f"{policy}, add_special_tokens={add}"
        for text, wanted, got in zip(texts, ids, self.client.encode_batch(texts, **options), strict=True):
            self._same_ids(f"ids, {law}", text, wanted, got.ids)
        counts = self.client.count(texts, **options)
        self.tally.same(f"counts, {law}", texts, [*map(len, ids)], counts.counts)
        self.tally.same(f"total, {law}", texts, sum(map(len, ids)), counts.total)
        for unit in units:
            answers = self.client.encode_batch(texts, offsets=unit, include_tokens=True, **options)
            for text, wanted, encoding, got in zip(texts, ids, expected, answers, strict=True):
                self._same_ids(f"ids with offsets, {law}", text, wanted, got.ids)
                self._same_details(law, (text,), encoding, got, unit)

    def truncated(self, texts: Sequence[str], rng: random.Random) -> None:
        """Truncation of a request against the reference's own."""
        for side in ("right", "left"):
            policy, add = rng.choice(POLICIES), rng.random() < 0.5
            tokenizer, ids_of = self._policy(policy)
            whole = [*map(len, self._expected(texts, policy, add=add))]
            max_tokens = self._room(tokenizer, add=add, pair=False) + self._budget(texts, rng)
            with truncation(tokenizer, max_tokens, side):
                expected = tokenizer.encode_batch(texts, add_special_tokens=add)
            options: dict[str, Any] = {
                "special_tokens": policy,
                "add_special_tokens": add,
                "max_tokens": max_tokens,
                "truncation_side": side,
            }
            law = f"cut to {max_tokens} on the {side}, {policy}, add_special_tokens={add}"
            plain = self.client.encode_batch(texts, **options)
            detailed = self.client.encode_batch(texts, offsets="CODE_POINTS", include_tokens=True, **options)
            counts = self.client.count(texts, **options).counts
            for text, total, encoding, got, more, count in zip(
                texts, whole, expected, plain, detailed, counts, strict=True
            ):
                ids = ids_of(encoding)
                self._same_ids(f"ids, {law}", text, ids, got.ids)
                self._same_ids(f"ids with offsets, {law}", text, ids, more.ids)
                self.tally.same(f"total_token_count, {law}", text, total, got.total_token_count)
                self.tally.same(f"count, {law}", text, len(ids), count)
                self._same_details(law, (text,), encoding, more, "CODE_POINTS")

    def pairs(self, texts: Sequence[str], rng: random.Random) -> None:
        """Pairs: ids, type ids, offsets in each one's own text, truncation longest first."""
        seconds = rng.sample(texts, len(texts))
        policy, add, unit = rng.choice(POLICIES), rng.random() < 0.5, rng.choice(UNITS)
        tokenizer, _ = self._policy(policy)
        pairs = [*zip(texts, seconds, strict=True)]
        options: dict[str, Any] = {"special_tokens": policy, "add_special_tokens": add}
        expected = tokenizer.encode_batch(pairs, add_special_tokens=add)
        self._pairs(pairs, expected, [*map(len, expected)], unit, options)
        short = [
            (pair, len(encoding))
            for pair, encoding in zip(pairs, expected, strict=True)
            if max(map(len, pair)) <= PAIR_CHARACTERS
        ]
        if not short:
            return
        max_tokens = self._room(tokenizer, add=add, pair=True) + self._budget(texts[:1], rng)
        options |= {"max_tokens": max_tokens, "truncation_side": rng.choice(("right", "left"))}
        with truncation(tokenizer, max_tokens, options["truncation_side"]):
            cut = tokenizer.encode_batch([pair for pair, _ in short], add_special_tokens=add)
        self._pairs([pair for pair, _ in short], cut, [total for _, total in short], unit, options)

    def _pairs(
        self,
        pairs: Sequence[tuple[str, str]],
        expected: Sequence[Encoding],
        totals: Sequence[int],
        unit: str,
        options: dict[str, Any],
    ) -> None:
        law = f"pairs, {options}"
        _, ids_of = self._policy(options["special_tokens"])
        firsts, seconds = [first for first, _ in pairs], [second for _, second in pairs]
        plain = self.client.encode_batch(firsts, seconds, **options)
        detailed = self.client.encode_batch(firsts, seconds, offsets=unit, include_tokens=True, **options)
        for pair, encoding, total, got, more in zip(pairs, expected, totals, plain, detailed, strict=True):
            self._same_ids(f"ids, {law}", pair, ids_of(encoding), got.ids)
            self._same_ids(f"ids with offsets, {law}", pair, ids_of(encoding), more.ids)
            self.tally.same(f"type ids, {law}", pair, encoding.type_ids, got.type_ids)
            self.tally.same(f"total_token_count, {law}", pair, total, got.total_token_count)
            self._same_details(law, pair, encoding, more, unit)

    def allowed(self, texts: Sequence[str], rng: random.Random) -> None:
        """TEXT with one or two control tokens parsed all the same."""
        control = sorted(self.reference.control)
        if not control:
            return
        # One set for each tokenizer: building its reference means to load the file once more.
        chosen = frozenset(random.Random(len(control)).sample(control, min(2, len(control))))
        text_reference = self.reference.text_reference(chosen)
        add = rng.random() < 0.5
        expected = text_reference.tokenizer.encode_batch(texts, add_special_tokens=add)
        answers = self.client.encode_batch(
            texts, special_tokens="TEXT", allowed_special_tokens=sorted(chosen), add_special_tokens=add
        )
        for text, encoding, got in zip(texts, expected, answers, strict=True):
            self._same_ids(f"ids, TEXT but {sorted(chosen)}", text, text_reference.ids(encoding), got.ids)

    def stream(self, texts: Sequence[str], rng: random.Random) -> None:
        """StreamEncode gives what BatchEncode gives, in order."""
        policy = rng.choice(POLICIES)
        expected = self.client.encode_batch(texts, special_tokens=policy)
        answers = self.client.encode_stream(texts, special_tokens=policy, batch_texts=rng.randint(1, 64))
        for text, wanted, got in zip(texts, expected, answers, strict=True):
            self._same_ids(f"ids of a stream, {policy}", text, wanted.ids, got.ids)

    def special_texts(self, texts: Sequence[str]) -> None:
        """How many control tokens stayed text, that none came out, and that REJECT refuses just these texts."""
        kept = self.reference.text_reference().kept
        unk = self.reference.unk
        ids = {token_id for content, token_id in kept.items() if content != unk}
        parsed = self._expected(texts, "PARSE", add=False)
        options = types.EncodeOptions(special_tokens=types.SPECIAL_TOKENS_REJECT, add_special_tokens=False)
        texts_kept = self.client.encode_batch(texts, special_tokens="TEXT", add_special_tokens=False)
        refused = self.served.encode_one_by_one(texts, options)
        for text, encoding, got, answer in zip(texts, parsed, texts_kept, refused, strict=True):
            self.tally.same("no control token comes out of TEXT", text, set(), ids & set(got.ids))
            n_found = sum(token_id in ids for token_id in encoding.ids)
            if unk in kept and unk is not None and unk.lower() in text.lower():
                continue  # Whether an unk of the reference was spelled, or was a lack, is not to be seen here.
            self.tally.same("special_text_count", text, n_found, got.special_text_count)
            self.tally.same("REJECT", text, bool(n_found), answer.WhichOneof("outcome") == "error")
            if answer.WhichOneof("outcome") == "result":
                self._same_ids("ids, REJECT", text, got.ids, [*answer.result.encodings[0].ids])
                continue
            reason = reasons.ErrorReason.Name(answer.error.reason)
            self.tally.same("reason", text, "ERROR_REASON_SPECIAL_TOKEN_REJECTED", reason)
            found, at = answer.error.metadata["token"], int(answer.error.metadata["position"])
            self.tally.same("REJECT names a control token", text, True, found in kept)
            if text.isascii() and found in text:
                self.tally.same("REJECT says where", text, found, text[at : at + len(found)])

    def _expected(self, texts: Sequence[str], policy: str, *, add: bool) -> list[Encoding]:
        if (policy, add) not in self._whole:
            tokenizer, _ = self._policy(policy)
            self._whole[policy, add] = tokenizer.encode_batch(texts, add_special_tokens=add)
        return self._whole[policy, add]

    def _policy(self, policy: str) -> tuple[Tokenizer, Callable[[Encoding], list[int]]]:
        if policy == "PARSE":
            return self.reference.tokenizer, lambda encoding: encoding.ids
        text_reference = self.reference.text_reference()
        return text_reference.tokenizer, text_reference.ids

    @staticmethod
    def _room(tokenizer: Tokenizer, *, add: bool, pair: bool) -> int:
        """The smallest max_tokens at which the reference truncates at all (docs/fidelity.md)."""
        return 1 + (tokenizer.num_special_tokens_to_add(pair) if add else 0)

    @staticmethod
    def _budget(texts: Sequence[str], rng: random.Random) -> int:
        # The reference keeps each piece that it cuts off, at 500 bytes and more.
        is_long = max(map(len, texts)) > LONG_CHARACTERS
        return rng.choice((1_000, 5_000)) if is_long else rng.choice((0, 1, 2, 4, 5, 8, 9, 20, 60))

    def _same_ids(self, law: str, source: object, expected: list[int], got: list[int]) -> None:
        self.tally.n_ids += len(expected)
        self.tally.same(law, source, expected, got)

    def _same_details(
        self, law: str, texts: Sequence[str], encoding: Encoding, got: tokend.Encoded, unit: str
    ) -> None:
        self.tally.same(f"tokens, {law}", texts, encoding.tokens, got.tokens)
        self.tally.same(f"type ids, {law}", texts, encoding.type_ids, got.type_ids)
        spans = encoding.offsets
        if unit == "CODE_POINTS":
            self.tally.same(f"offsets, {law}", texts, spans, got.offsets)
            return
        # Measured by cutting the text there, which shares nothing with the server's tables.
        places = [
            {at: len(_data(text[:at], unit)) for span in set(spans) for at in span if at <= len(text)}
            for text in texts
        ]
        size = 1 if unit == "UTF8_BYTES" else 2
        owners = [owner or 0 for owner in encoding.sequence_ids]
        expected = [
            (places[owner][start] // size, places[owner][end] // size)
            for owner, (start, end) in zip(owners, spans, strict=True)
        ]
        self.tally.same(f"offsets in {unit}, {law}", texts, expected, got.offsets)
        data = [_data(text, unit) for text in texts]
        slices = [
            data[owner][start * size : end * size]
            for owner, (start, end) in zip(owners, got.offsets or (), strict=True)
        ]
        parts = [
            _data(texts[owner][start:end], unit) for owner, (start, end) in zip(owners, spans, strict=True)
        ]
        self.tally.same(f"slices in {unit}, {law}", texts, parts, slices)


def batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """The texts in order, in batches that are neither too many nor, but for a single text, too long."""
    batch: list[str] = []
    n_characters = 0
    for text in texts:
        if batch and (len(batch) == BATCH_TEXTS or n_characters + len(text) > BATCH_CHARACTERS):
            yield batch
            batch, n_characters = [], 0
        batch.append(text)
        n_characters += len(text)
    if batch:
        yield batch


@contextmanager
def truncation(tokenizer: Tokenizer, max_tokens: int, side: str) -> Iterator[None]:
    """The reference's own truncation, for a while; the test's instances are nobody else's."""
    tokenizer.enable_truncation(max_tokens, direction=side)
    try:
        yield
    finally:
        tokenizer.no_truncation()


def _data(text: str, unit: str) -> bytes:
    """The text in the unit's own encoding."""
    return text.encode() if unit == "UTF8_BYTES" else text.encode("utf-16-le")
