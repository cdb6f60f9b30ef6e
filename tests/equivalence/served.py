"""A server in another process, as the comparisons use it: the client, the bare stub, and what it says of itself."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

import tokend
from tests.equivalence.reference import Reference
from tests.servers import RunningServer
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import tokenizer_service_pb2_grpc as pb_grpc
from tokend.v1 import types_pb2 as types

WITHIN_S = 240
_SIZES = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]
_OPTIONS = [*_SIZES, ("grpc.enable_http_proxy", 0)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """One tokenizer, served and read."""

    client: tokend.Client
    stub: pb_grpc.TokenizerServiceStub
    info: tokend.TokenizerInfo
    reference: Reference
    token_bytes: dict[int, bytes] = field(default_factory=dict)
    """What LookupTokens says of each id, once it was asked."""

    def encode_one_by_one(
        self, texts: Sequence[str], options: types.EncodeOptions
    ) -> list[pb.StreamEncodeResponse]:
        """Each text as a batch of its own on one StreamEncode, so that a refused one is an error in its answer."""
        requests = (
            pb.StreamEncodeRequest(batch_id=index, texts=[text], options=options)
            for index, text in enumerate(texts)
        )
        return list(self.stub.StreamEncode(requests, timeout=WITHIN_S))

    def stream_decode(self, messages: Iterable[pb.StreamDecodeRequest]) -> Iterator[pb.StreamDecodeResponse]:
        """One StreamDecode with these messages, then half-close."""
        answers: Iterator[pb.StreamDecodeResponse] = self.stub.StreamDecode(iter(messages), timeout=WITHIN_S)
        return answers


def file_of(source: Path | str, folder: Path) -> Path:
    """The tokenizer's file; a text is written into `folder`."""
    if isinstance(source, Path):
        return source
    path = folder / f"{abs(hash(source))}.json"
    path.write_text(source, encoding="utf-8")
    return path


@contextmanager
def connected(server: RunningServer, path: Path) -> Iterator[Served]:
    """Connect to a server that runs already."""
    reference = Reference(path)
    with (
        tokend.Client(server.grpc, timeout_s=WITHIN_S) as client,
        grpc.insecure_channel(server.grpc, options=_OPTIONS) as channel,
    ):
        yield Served(
            client=client,
            stub=pb_grpc.TokenizerServiceStub(channel),
            info=client.tokenizer_info(),
            reference=reference,
        )


@contextmanager
def serving(source: Path | str, folder: Path) -> Iterator[Served]:
    """Start a server for one tokenizer, and stop it at the end.

    It computes ids by the reference, unless the environment says `TOKEND_ENGINE=auto`: then the file is verified first,
    so that the fast engine serves it from the start if it may.
    """
    path = file_of(source, folder)
    env = {"TOKEND_ENGINE": "reference", "TOKEND_STATE_DIR": str(folder), **os.environ}
    if env["TOKEND_ENGINE"] == "auto":
        command = [sys.executable, "-m", "tokend_server", "verify", str(path)]
        verified = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert verified.returncode in {0, 3}, verified.stderr
    server = RunningServer(tokenizer=path, env=env)
    try:
        with connected(server, path) as served:
            yield served
    finally:
        assert server.stop() == 0
