"""A mixed load for servers on loopback that moves every series that calls can move; bounded, and ends by itself."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc

from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import tokenizer_service_pb2_grpc as pb_grpc
from tokend.v1 import types_pb2 as types

_TEXTS = (
    "The quick brown fox jumps over the lazy dog. ",
    "Ein Satz mit Umlauten: Über den Wolken. ",
    "def f(x):\n    return x ** 2\n",
    "数え切れないほどの星が見える夜だった。",
    "<|im_start|>user\nsay <|im_end|> please",
)
# A character of several byte tokens: the first of them alone decodes to U+FFFD.
_RARE = "\N{EGYPTIAN HIEROGLYPH A001}"
CALLERS = ("app", "training", "chat", "newcomer")
"""Who makes which kind of load: small calls, batches, chats and wrong requests."""
_NO_ID = 4_000_000_000
_TIMEOUT_S = 20


class _WithToken(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    def __init__(self, token: str) -> None:
        self._metadata = [("authorization", f"Bearer {token}")]

    def _intercept(self, call: Callable[..., Any], details: Any, request: Any) -> Any:
        return call(details._replace(metadata=self._metadata), request)

    intercept_unary_unary = intercept_stream_stream = _intercept


def _stub(channel: grpc.Channel, token: str) -> Any:
    return pb_grpc.TokenizerServiceStub(grpc.intercept_channel(channel, _WithToken(token)))


class MixedLoad:
    """Small calls, batches, chats and wrong requests, each from a thread of its own, against some servers."""

    def __init__(self, targets: Sequence[str], tokens: Mapping[str, str], *, pause_s: float = 0.02) -> None:
        """Connect.

        Args:
            targets: The servers; every kind of load goes to each of them.
            tokens: The token of each of `CALLERS`.
            pause_s: Between two steps of one thread, so that a shared machine is not filled.
        """
        self._channels = [
            grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])
            for target in targets
            for _ in CALLERS
        ]
        self._pause_s = pause_s
        self._stop = threading.Event()
        self.failures: list[Exception] = []
        """What went wrong that should not have."""
        loads = (self._small, self._batches, self._chat, self._wrong)
        self._threads = [
            threading.Thread(target=self._run, args=(load, _stub(channel, tokens[caller])))
            for channel, (load, caller) in zip(
                self._channels, itertools.cycle(zip(loads, CALLERS, strict=True)), strict=False
            )
        ]

    def run(self, for_s: float) -> None:
        """Run the load for so many seconds."""
        for thread in self._threads:
            thread.start()
        time.sleep(for_s)
        self._stop.set()
        for thread in self._threads:
            thread.join(_TIMEOUT_S)
        for channel in self._channels:
            channel.close()

    def _run(self, load: Callable[[Any, int], None], stub: Any) -> None:
        try:
            for n in self._steps():
                load(stub, n)
        except Exception as error:  # noqa: BLE001 (whoever runs the load raises it)
            self.failures.append(error)

    def _steps(self) -> Iterator[int]:
        for n in itertools.count():
            if self._stop.wait(self._pause_s):
                return
            yield n

    def _small(self, stub: Any, n: int) -> None:
        ids = stub.Encode(
            pb.EncodeRequest(text=_TEXTS[n % 5] * (1 + n % 40)), timeout=_TIMEOUT_S
        ).encoding.ids
        stub.Decode(pb.DecodeRequest(ids=ids), timeout=_TIMEOUT_S)
        skip = types.DecodeOptions(unknown_ids=types.UNKNOWN_IDS_SKIP)
        stub.Decode(pb.DecodeRequest(ids=[*ids, _NO_ID], options=skip), timeout=_TIMEOUT_S)
        rare = stub.Encode(pb.EncodeRequest(text=_RARE), timeout=_TIMEOUT_S).encoding.ids
        sequences = [types.IdList(ids=ids), types.IdList(ids=rare[:1])]
        stub.BatchDecode(pb.BatchDecodeRequest(sequences=sequences), timeout=_TIMEOUT_S)
        stub.GetTokenizer(pb.GetTokenizerRequest(), timeout=_TIMEOUT_S)

    def _batches(self, stub: Any, n: int) -> None:
        texts = [text * (1 + n % 20) for text in _TEXTS] * (1 + n % 50)
        packed = types.EncodeOptions(id_format=types.ID_FORMAT_PACKED)
        stub.BatchEncode(pb.BatchEncodeRequest(texts=texts, options=packed), timeout=_TIMEOUT_S)
        stub.CountTokens(pb.CountTokensRequest(texts=texts), timeout=_TIMEOUT_S)
        batches = (pb.StreamEncodeRequest(batch_id=k, texts=texts, options=packed) for k in range(4))
        list(stub.StreamEncode(batches, timeout=_TIMEOUT_S))

    def _chat(self, stub: Any, n: int) -> None:
        ids = stub.Encode(pb.EncodeRequest(text=_TEXTS[n % 4] * 8), timeout=_TIMEOUT_S).encoding.ids
        rare = stub.Encode(pb.EncodeRequest(text=_RARE), timeout=_TIMEOUT_S).encoding.ids[:1]

        def messages() -> Iterator[pb.StreamDecodeRequest]:
            for token_id in [*ids[:20], *rare, *ids[:20]]:
                yield pb.StreamDecodeRequest(
                    sequences=[types.SequenceInput(sequence_id=k, ids=[token_id]) for k in range(8)]
                )
                if self._stop.wait(self._pause_s):
                    return

        list(stub.StreamDecode(messages(), timeout=_TIMEOUT_S))

    def _wrong(self, stub: Any, n: int) -> None:
        reject = types.EncodeOptions(special_tokens=types.SPECIAL_TOKENS_REJECT)
        other = types.EncodeOptions(expected_fingerprint="0" * 64)
        wrong = (
            (stub.Encode, pb.EncodeRequest(text=_TEXTS[4], options=reject)),
            (stub.Encode, pb.EncodeRequest(text="a", options=other)),
            (stub.Decode, pb.DecodeRequest(ids=[_NO_ID])),
            (stub.BatchEncode, pb.BatchEncodeRequest(texts=["a"] * 5000)),
        )
        method, request = wrong[n % len(wrong)]
        try:
            method(request, timeout=_TIMEOUT_S)
        except grpc.RpcError:
            return
        raise AssertionError("a wrong request was answered")
