"""Load whose every answer is known: mixed calls on many connections, until it is stopped."""

import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence

import grpc
from tokenizers import Tokenizer

from tests.integration.wire import Failure, Wire, encode_options, failure_of, little_endian, one_sequence
from tests.tokenizers_for_tests import byte_level_bpe
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2 as types

__all__ = ["LARGE", "Load"]

LARGE = os.environ.get("TOKEND_TEST_FAULTS") == "large"
"""Asked for by `make reliability-table`: longer and more of everything than in CI."""
_WORDS = ("the", " the", "é", "🙂", "北京", "th", "\n", "hello ")
_PACKED = encode_options(id_format=types.ID_FORMAT_PACKED)


class Load:
    """One thread a connection; each asks, compares, and asks again."""

    def __init__(self, wires: Sequence[Wire], *, at_a_refusal: str = "go on") -> None:
        """Begin.

        Args:
            wires: The connections.
            at_a_refusal: `go on`, or `end` the thread that had it.
        """
        self.n_answered = 0
        self.n_wrong = 0
        self.answered: set[str] = set()
        """The request ids of the calls that were answered."""
        self.failures: list[Failure] = []
        self._end_at_a_refusal = at_a_refusal == "end"
        self._reference = Tokenizer.from_str(byte_level_bpe())
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._started_s = time.monotonic()
        self._threads = [
            threading.Thread(target=self._ask, args=(wire, random.Random(n))) for n, wire in enumerate(wires)
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, wire: Wire, chance: random.Random) -> None:
        for number in itertools.count():
            if self._stopped.is_set():
                return
            request_id = f"load-{id(wire)}-{number}"
            text = "".join(chance.choices(_WORDS, k=chance.randint(1, 200)))
            try:
                right = self._turn(wire, chance, text, request_id)
            except grpc.RpcError as error:
                with self._lock:
                    self.failures.append(failure_of(error))
                if self._end_at_a_refusal:
                    return
                time.sleep(0.01)
            else:
                with self._lock:
                    self.n_answered += 1
                    self.answered.add(request_id)
                    self.n_wrong += not right

    def _turn(self, wire: Wire, chance: random.Random, text: str, request_id: str) -> bool:
        """Make one call; tells whether its answer is right."""
        ids = self._reference.encode(text, add_special_tokens=False).ids
        kind = chance.randrange(4)
        options = {"timeout": 20, "metadata": [("x-request-id", request_id)]}
        if kind == 0:
            request = pb.EncodeRequest(text=text, options=encode_options())
            return list(wire.stub.Encode(request, **options).encoding.ids) == ids
        if kind == 1:
            batch = pb.BatchEncodeRequest(texts=[text, text], options=_PACKED)
            return wire.stub.BatchEncode(batch, **options).packed_ids == 2 * little_endian(ids)
        if kind == 2:
            return wire.stub.Decode(pb.DecodeRequest(ids=ids), **options).text == text
        cut = chance.randint(0, len(ids))
        messages = [one_sequence(ids[:cut]), one_sequence(ids[cut:], end=True)]
        # No stub's iterator: what an error of a stream says is read off the call.
        answers = wire.stub.StreamDecode(iter(messages), **options)
        return "".join(output.text for answer in answers for output in answer.sequences) == text

    @property
    def a_second(self) -> float:
        """Right answers a second so far."""
        return self.n_answered / (time.monotonic() - self._started_s)

    def codes(self) -> Counter[str]:
        """What failures there were, by their code and reason."""
        with self._lock:
            return Counter(f"{each.code.name} {each.reason}".strip() for each in self.failures)

    def join(self, within_s: float) -> None:
        """Wait until every thread has had its refusal."""
        deadline_s = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
            assert not thread.is_alive()

    def stop(self) -> None:
        """End, once the calls in work have their answers."""
        self._stopped.set()
        self.join(within_s=30)
