"""What must hold between the service and the reference when ids become text: at once, streamed, and as bytes."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.equivalence.inputs import chunks
from tests.equivalence.served import Served
from tests.equivalence.tally import Tally
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2 as types

BATCH_SEQUENCES = 512
STREAM_SEQUENCES = 128
"""Sequences on one stream; each message brings the next ids of some of them."""
MOST_PENDING_BYTES = 3
UNKNOWN_ID = 0xFFFF_FFF0


@dataclass(kw_only=True, slots=True)
class Job:
    """One sequence of a stream: what it is asked, and what it should give."""

    ids: list[int]
    skip: bool
    hold: bool
    expected: str
    prompt_ids: list[int] = field(default_factory=list)
    text: str = ""
    """What came so far."""
    n_tokens: int = 0
    ended: bool = False

    @property
    def options(self) -> types.DecodeOptions:
        runs = types.BYTE_RUNS_HOLD if self.hold else types.BYTE_RUNS_PROMPT
        return types.DecodeOptions(
            skip_special_tokens=self.skip, byte_runs=runs, unknown_ids=types.UNKNOWN_IDS_SKIP
        )


class DecodeLaws:
    """Compares one served tokenizer with its reference."""

    def __init__(self, served: Served, tally: Tally) -> None:
        self.served, self.tally = served, tally
        self.client, self.reference = served.client, served.reference
        self.mode = served.info.streaming.mode
        if not served.token_bytes:
            served.token_bytes.update(self._token_bytes())

    def check(self, sequences: Sequence[list[int]], rng: random.Random) -> None:
        """Decode and StreamDecode of every id list, specials skipped and kept, unknown ids among them."""
        self.tally.n_sequences += len(sequences)
        for start in range(0, len(sequences), BATCH_SEQUENCES):
            batch = sequences[start : start + BATCH_SEQUENCES]
            for skip in (True, False):
                self.decoded(batch, skip=skip)
        for start in range(0, len(sequences), STREAM_SEQUENCES):
            self.streamed(sequences[start : start + STREAM_SEQUENCES], rng)

    def decoded(self, sequences: Sequence[list[int]], *, skip: bool) -> None:
        """BatchDecode, text and bytes."""
        answers = self.client.decode_batch(
            sequences, skip_special_tokens=skip, include_bytes=True, unknown_ids="SKIP"
        )
        known = self.reference.known
        for ids, got in zip(sequences, answers, strict=True):
            self.tally.n_ids += len(ids)
            expected = self.reference.decode([each for each in ids if each in known], skip=skip)
            self.tally.same(f"Decode, skip={skip}", ids, expected, got.text)
            self.tally.same("unknown ids", ids, sum(each not in known for each in ids), got.unknown_id_count)
            self._same_bytes(ids, got.text, got.raw_bytes or b"")

    def texts(self, texts: Sequence[str]) -> int:
        """Encode, then decode: the bytes of text that comes back, and the verdict on all text.

        Returns:
            How many texts came back changed.
        """
        encoded = self.client.encode_batch(texts, special_tokens="TEXT", add_special_tokens=False)
        lists = [each.ids for each in encoded]
        answers = self.client.decode_batch(lists, skip_special_tokens=False, include_bytes=True)
        n_changed = 0
        for text, ids, got in zip(texts, lists, answers, strict=True):
            back = got.text == text
            n_changed += not back
            if self.served.info.round_trip.exact:
                self.tally.same("round trip", text, text, got.text)
                joined = b"".join(self.served.token_bytes[token_id] for token_id in ids)
                self.tally.same("LookupTokens bytes joined", text, text.encode(), joined)
            if back:
                self.tally.same("raw_bytes of a text that comes back", text, text.encode(), got.raw_bytes)
        return n_changed

    def streamed(self, sequences: Sequence[list[int]], rng: random.Random) -> None:
        """Many sequences on one stream, each cut at random: joined text, token counts, what is held."""
        jobs = [self._job(ids, rng) for ids in sequences]
        self.tally.n_streams += len(jobs)
        messages = [*self._messages(jobs, rng)]
        answers = [*self.served.stream_decode(messages)]
        for n, answer in enumerate(answers):
            named = [each.sequence_id for each in messages[n].sequences] if n < len(messages) else None
            if named is not None:
                self.tally.same(
                    "order of the answers", n, named, [each.sequence_id for each in answer.sequences]
                )
            for output in answer.sequences:
                job = jobs[output.sequence_id]
                job.text += output.text
                job.n_tokens += output.tokens
                job.ended = output.ended
                if self.mode in {"bytes", "byte-runs"} and not job.hold:
                    most = MOST_PENDING_BYTES
                    self.tally.same("bytes held", job.ids, True, output.pending_bytes <= most)
        for job in jobs:
            self.tally.n_ids += len(job.ids)
            law = f"StreamDecode, skip={job.skip}, hold={job.hold}, prompt={bool(job.prompt_ids)}"
            self.tally.same(law, (job.prompt_ids, job.ids), job.expected, job.text)
            self.tally.same("tokens of a stream", job.ids, len(job.ids), job.n_tokens)
            self.tally.same("end of a stream", job.ids, True, job.ended)

    def _job(self, ids: list[int], rng: random.Random) -> Job:
        skip, hold = rng.random() < 0.5, rng.random() < 0.5
        known_ids = self.reference.known
        known = [each for each in ids if each in known_ids]
        if self.reference.byte_ids and not hold:
            return Job(ids=ids, skip=skip, hold=hold, expected=self.reference.prompt_text(known, skip=skip))
        expected = self.reference.decode(known, skip=skip)
        cut = rng.randrange(len(ids) + 1)
        if not self.reference.byte_ids and rng.random() < 0.3:
            prompt = [each for each in ids[:cut] if each in known_ids]
            after = self._after(self.reference.decode(prompt, skip=skip), expected)
            if after is not None:
                return Job(ids=ids[cut:], skip=skip, hold=hold, expected=after, prompt_ids=ids[:cut])
        return Job(ids=ids, skip=skip, hold=hold, expected=expected)

    def _after(self, prompt: str, whole: str) -> str | None:
        """What comes after a prompt's own text; None where that is not told by the two texts alone."""
        if self.mode not in {"bytes", "text", "first-token"}:
            return None
        if not prompt.endswith("\ufffd"):
            return whole.removeprefix(prompt) if whole.startswith(prompt) else None
        # The last character is open, and completed by the first ids, or it is invalid or U+FFFD itself.
        if whole.startswith(prompt) or not whole.startswith(prompt[:-1]):
            return None
        return whole.removeprefix(prompt[:-1])

    @staticmethod
    def _messages(jobs: Sequence[Job], rng: random.Random) -> Iterator[pb.StreamDecodeRequest]:
        parts: dict[int, Any] = {number: [*chunks(rng, job.ids)] or [[]] for number, job in enumerate(jobs)}
        started: set[int] = set()
        ends_itself = {number for number in parts if rng.random() < 0.5}
        while parts:
            message = pb.StreamDecodeRequest()
            for number in rng.sample(sorted(parts), rng.randint(1, len(parts))):
                job, rest = jobs[number], parts[number]
                entry = message.sequences.add(sequence_id=number)
                if number not in started:
                    started.add(number)
                    entry.options.CopyFrom(job.options)
                    entry.prompt_ids.extend(job.prompt_ids)
                ids = rest.pop(0)
                if rng.random() < 0.5:
                    entry.ids.extend(ids)
                else:
                    entry.packed_ids = b"".join(each.to_bytes(4, "little") for each in ids)
                if not rest:
                    del parts[number]
                    entry.end = number in ends_itself
            yield message

    def _same_bytes(self, ids: list[int], text: str, raw: bytes) -> None:
        """`text` is the lossy reading of `raw_bytes`; of an invalid byte run it is a reading of its own."""
        try:
            read = raw.decode()
        except UnicodeDecodeError:
            if self.mode != "bytes":
                return
            read = raw.decode(errors="replace")
        self.tally.same("text is the reading of raw_bytes", ids, read, text)

    def _token_bytes(self) -> dict[int, bytes]:
        """What LookupTokens says of every id, compared with the library's word for it."""
        reference, tokenizer = self.reference, self.reference.tokenizer
        added = tokenizer.get_added_tokens_decoder()
        greatest = reference.known_ids[-1]
        self.tally.same("vocab_size", "", len(reference.known_ids), self.served.info.vocab_size)
        self.tally.same("max_id", "", greatest, self.served.info.max_id)
        control = {*reference.control.values()}
        found: dict[int, bytes] = {}
        asked = [*range(greatest + 2), UNKNOWN_ID]
        known = reference.known
        for token_id, got in zip(asked, self.client.lookup(asked), strict=True):
            self.tally.same("LookupTokens known", token_id, token_id in known, got.known)
            if token_id not in known:
                continue
            entry = added.get(token_id)
            string = reference.string(token_id) if entry is None else entry.content
            facts = (string, entry is not None, entry is not None and entry.special, token_id in control)
            self.tally.same("LookupTokens", token_id, facts, (got.token, got.added, got.special, got.control))
            self.tally.same("token_bytes", (token_id, string), reference.bytes_of(token_id), got.token_bytes)
            found[token_id] = got.token_bytes
        return found
