"""Text to ids: by the fast engine where it may, by the reference everywhere else, with the same answers."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import sub
from threading import Lock

from tokend_server.engine.artifact import REFERENCE_VERSION
from tokend_server.engine.bulk_threads import BulkThreads
from tokend_server.engine.encode_options import Encoded, EncodeOptions
from tokend_server.engine.engine_status import REFERENCE, EngineEvents, EngineState, EngineStatus
from tokend_server.engine.fast import FastEngine
from tokend_server.engine.offsets import OffsetUnit
from tokend_server.engine.packed import PackedBatch
from tokend_server.engine.reference import ReferenceEncoder
from tokend_server.engine.request_gate import RequestGate
from tokend_server.engine.shadow import ShadowCheck, ShadowResult
from tokend_server.engine.special_tokens import SpecialTokenPolicy
from tokend_server.errors import RequestError

__all__ = ["Encoder"]

_DEFAULTS = EncodeOptions()
_WARM_UP = "to and fro " * 1024
"""Long enough that a batch of it is spread over threads."""
_SHADOW_DIFFERENCE = "a sampled answer differed from the reference's"
_PANIC = "the fast engine panicked while it served"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lane:
    """The fast engine while it serves, and its guards."""

    engine: FastEngine
    gate: RequestGate
    shadow: ShadowCheck


# Not frozen, as it is made for each call: that would triple what making it costs.
@dataclass(kw_only=True, slots=True)
class _Run:
    """What one call got from the fast engine; the texts in `slow` have been encoded by the reference."""

    ids: bytes
    """Of the texts that the fast engine had, little-endian uint32."""
    bounds: list[int]
    """Text `n` has the ids from `bounds[n]` to `bounds[n + 1]`; of one in `slow` without meaning."""
    slow: dict[int, Encoded]

    def counts(self) -> list[int]:
        """Returns how many ids of the fast engine each text has."""
        return list(map(sub, self.bounds[1:], self.bounds))


class Encoder:
    """Encodes with the engine that is in service; safe to use from several threads.

    The fast engine gets only texts and options for which it was verified. Others of the same call go to the
    reference, one by one, and the answers keep their order. Its state is changed by whoever verifies, and by this
    class where the engine fails.
    """

    def __init__(self, reference: ReferenceEncoder) -> None:
        """Begins on the reference, with no fast engine."""
        self.reference = reference
        self._lane: _Lane | None = None
        self._events = EngineEvents()
        self._quarantine_listeners: list[Callable[[str], None]] = []
        self._status = _reference_status(EngineState.DISABLED, "no fast engine was asked for")
        self._change = Lock()
        self._bulk = BulkThreads()

    @property
    def status(self) -> EngineStatus:
        """Which engine is in service now, and why."""
        return self._status

    def observe(self, events: EngineEvents) -> None:
        """Tells these events from now on, beginning with the standing."""
        self._events = events
        events.changed(self._status)

    def on_quarantine(self, listener: Callable[[str], None]) -> None:
        """Tells this listener the reason when the fast engine is taken out of service for good."""
        self._quarantine_listeners.append(listener)

    def serve_reference(self, state: EngineState, reason: str) -> None:
        """Serves by the reference alone; a quarantine stays what it is."""
        self._become(None, _reference_status(state, reason))

    def serve_fast(self, engine: FastEngine, excluded: frozenset[int], *, shadow_every: int) -> None:
        """Puts a verified engine into service; after a quarantine it stays out.

        Args:
            engine: Verified for this very file.
            excluded: Code points on which it differs.
            shadow_every: One text in so many is checked behind the reply; 0: none.
        """
        lane = _Lane(
            engine=engine,
            gate=RequestGate(excluded, self.reference.may_hold_control_token),
            shadow=ShadowCheck(self.reference.encode, every=shadow_every, on_result=self._shadow_checked),
        )
        status = EngineStatus(
            name=engine.name,
            version=engine.version,
            state=EngineState.VERIFIED,
            reason="",
            excluded_code_points=len(excluded),
        )
        self._become(lane, status)

    def quarantine(self, reason: str) -> None:
        """Takes the fast engine out of service for good; texts in work are finished by whoever has them."""
        if self._become(None, _reference_status(EngineState.QUARANTINED, reason)):
            for listener in self._quarantine_listeners:
                listener(reason)

    def settle(self, timeout_s: float) -> bool:
        """Waits until the shadow check has nothing to do; False where that takes longer."""
        lane = self._lane
        return lane is None or lane.shadow.settle(timeout_s)

    def warm_up(self) -> None:
        """Has the fast engine, if it serves, start threads of its own from one of low priority, which they inherit."""
        lane = self._lane
        if lane is not None:
            self._bulk.begin(
                partial(lane.engine.encode_flat, [_WARM_UP] * 4, add_special_tokens=False, keep_control=False)
            )

    def close(self) -> None:
        """Ends the shadow check; encoding goes on to work."""
        lane = self._lane
        if lane is not None:
            lane.shadow.close()

    def tokens_added(self, *, pair: bool = False) -> int:
        """Returns how many tokens the post-processor adds to a single text, or to a pair."""
        return self.reference.tokens_added(pair=pair)

    def encode(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, options: EncodeOptions | None = None
    ) -> list[Encoded]:
        """Encodes texts, all or nothing; no texts give an empty list, an empty text gives what is added to it.

        Args:
            texts: The texts, without lone surrogates.
            pairs: A second text for each, or None.
            options: How; None means the defaults.

        Returns:
            One answer for each text, in order.

        Raises:
            RequestError: As `ReferenceEncoder.encode`.
        """
        options = options or _DEFAULTS
        run = self._run(texts, pairs, options)
        if run is None:
            return self.reference.encode(texts, pairs, options)
        ids, slow = memoryview(run.ids).cast("I"), run.slow
        return [
            slow[place]
            if place in slow
            else Encoded(ids=ids[start:end].tolist(), total_token_count=end - start)
            for place, (start, end) in enumerate(pairwise(run.bounds))
        ]

    def encode_packed(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, options: EncodeOptions | None = None
    ) -> PackedBatch:
        """Encodes texts into one buffer of ids; where the fast engine serves, no token becomes a Python object.

        Args:
            texts: As for `encode`.
            pairs: As for `encode`.
            options: As for `encode`; offsets and token strings have no place in the answer.

        Returns:
            The ids of all texts, in order; an empty batch for no texts.

        Raises:
            RequestError: As `ReferenceEncoder.encode`.
        """
        options = options or _DEFAULTS
        run = self._run(texts, pairs, options)
        if run is None:
            return PackedBatch.of(self.reference.encode(texts, pairs, options))
        counts = run.counts()
        if not run.slow:
            return PackedBatch(
                packed_ids=run.ids,
                token_counts=counts,
                total_token_counts=counts,
                special_text_counts=[0] * len(counts),
            )
        slow = PackedBatch.of(list(run.slow.values()))
        pieces = [run.ids[4 * start : 4 * end] for start, end in pairwise(run.bounds)]
        totals, special_counts, start = list(counts), [0] * len(counts), 0
        for n, place in enumerate(run.slow):
            end = start + 4 * slow.token_counts[n]
            pieces[place], counts[place] = slow.packed_ids[start:end], slow.token_counts[n]
            totals[place], special_counts[place] = slow.total_token_counts[n], slow.special_text_counts[n]
            start = end
        return PackedBatch(
            packed_ids=b"".join(pieces),
            token_counts=counts,
            total_token_counts=totals,
            special_text_counts=special_counts,
        )

    def count(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, options: EncodeOptions | None = None
    ) -> list[int]:
        """Counts the ids that `encode` gives for each text, without making lists of them.

        Args:
            texts: As for `encode`.
            pairs: As for `encode`.
            options: As for `encode`.

        Returns:
            One count for each text, in order; after truncation, where it was asked for.

        Raises:
            RequestError: As for `encode`.
        """
        options = options or _DEFAULTS
        run = self._run(texts, pairs, options)
        if run is None:
            return self.reference.count(texts, pairs, options)
        counts = run.counts()
        for place, encoded in run.slow.items():
            counts[place] = len(encoded.ids)
        return counts

    def _run(self, texts: Sequence[str], pairs: Sequence[str] | None, options: EncodeOptions) -> _Run | None:
        """Encodes what the fast engine may have, and the rest beside it; None: the reference is to do it all."""
        lane = self._lane
        if (
            lane is None
            or not texts
            or pairs is not None
            or options.include_tokens
            or options.offsets is not OffsetUnit.NONE
        ):
            self._events.encoded(REFERENCE, len(texts))
            return None
        self.reference.check(options, is_pair=False)
        keep_control = options.policy is not SpecialTokenPolicy.PARSE
        held_back = lane.gate.held_back(texts, keep_control=keep_control)
        # The reference first: where it refuses one of them, nothing else need be done.
        slow = None if len(held_back) == len(texts) else self._by_reference(texts, held_back, options)
        encoded = None
        if slow is not None:
            chosen = [text for place, text in enumerate(texts) if place not in slow] if slow else list(texts)
            encoded = self._by_engine(lane, chosen, options, keep_control=keep_control)
        if slow is None or encoded is None:
            self._events.encoded(REFERENCE, len(texts))
            return None
        ids, bounds = encoded
        for place in lane.shadow.sampled(len(chosen)):
            self._check(lane, chosen[place], ids[4 * bounds[place] : 4 * bounds[place + 1]], options)
        for place in held_back:
            bounds.insert(place, bounds[place])
        if options.truncation is not None:
            most = options.truncation.max_tokens
            cut = [place for place, (start, end) in enumerate(pairwise(bounds)) if end - start > most]
            by_reference = self._by_reference(texts, cut, options)
            if by_reference is None:
                self._events.encoded(REFERENCE, len(texts))
                return None
            slow |= by_reference
        self._events.encoded(lane.engine.name, len(texts) - len(slow))
        if slow:
            self._events.encoded(REFERENCE, len(slow))
        return _Run(ids=ids, bounds=bounds, slow=slow)

    def _by_reference(
        self, texts: Sequence[str], places: Sequence[int], options: EncodeOptions
    ) -> dict[int, Encoded] | None:
        """Encodes some of the texts; None where one is refused, so that the whole call tells its true index."""
        if not places:
            return {}
        try:
            encodings = self.reference.encode([texts[place] for place in places], None, options)
        except RequestError:
            return None
        return dict(zip(places, encodings, strict=True))

    def _by_engine(
        self, lane: _Lane, texts: list[str], options: EncodeOptions, *, keep_control: bool
    ) -> tuple[bytes, list[int]] | None:
        """Encodes with the fast engine, as `FastEngine.encode_flat`; None where it fails."""
        try:
            ids, bounds = self._bulk.run(
                sum(map(len, texts)),
                lane.engine.encode_flat,
                texts,
                add_special_tokens=options.add_special_tokens,
                keep_control=keep_control,
            )
        except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
            raise
        except Exception:  # noqa: BLE001 (whatever it is, the reference answers)
            self._events.engine_failed()
            return None
        except BaseException:  # noqa: BLE001 (a panic)
            self._events.engine_failed()
            self.quarantine(_PANIC)
            return None
        # Cheap, and an engine that loses a text would move all that follow it.
        if len(bounds) != len(texts) + 1 or bounds[0] != 0 or 4 * bounds[-1] != len(ids):
            self.quarantine("the fast engine's answer did not fit the texts")
            return None
        return ids, bounds

    def _check(self, lane: _Lane, text: str, packed_ids: bytes, options: EncodeOptions) -> None:
        lane.shadow.submit(text, packed_ids, dataclasses.replace(options, truncation=None))

    def _shadow_checked(self, result: ShadowResult) -> None:
        self._events.shadow_checked(result)
        if result is ShadowResult.DIFFERENT:
            self.quarantine(_SHADOW_DIFFERENCE)

    def _become(self, lane: _Lane | None, status: EngineStatus) -> bool:
        """Changes the standing, unless it is a quarantine, which nothing ends."""
        with self._change:
            if self._status.state is EngineState.QUARANTINED:
                return False
            before, self._lane, self._status = self._lane, lane, status
        if before is not None:
            before.shadow.close()
        self._events.changed(status)
        return True


def _reference_status(state: EngineState, reason: str) -> EngineStatus:
    return EngineStatus(
        name=REFERENCE, version=REFERENCE_VERSION, state=state, reason=reason, excluded_code_points=0
    )
