"""Clients that vanish: killed in mid stream, or silent behind a connection that stays open. Nothing of them is kept."""

import signal
import subprocess
import sys
import time

from tests.faults.load import LARGE
from tests.faults.silent_proxy import SilentProxy
from tests.integration.wire import Wire, in_flight, one_sequence, until

N_CLIENTS, N_SEQUENCES = (10, 1_000) if LARGE else (3, 100)
CLIENT = """
import sys, threading
from tests.integration.wire import Wire
from tokend.v1 import tokenizer_service_pb2 as pb, types_pb2 as types
wire = Wire(sys.argv[1])
stream = wire.stream("StreamDecode", timeout=None)
inputs = [types.SequenceInput(sequence_id=n, ids=[0xF0]) for n in range(int(sys.argv[2]))]
stream.ask(pb.StreamDecodeRequest(sequences=inputs))
print("open", flush=True)
threading.Event().wait()
"""


def test_clients_that_are_killed_in_mid_stream_leave_nothing_open(server_with, tell):
    server = server_with()
    command = [sys.executable, "-c", CLIENT, server.grpc, str(N_SEQUENCES)]
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(N_CLIENTS)]
    for client in clients:
        assert client.stdout.readline() == "open\n"
    assert server.metric("tokend_live_sequences") == N_CLIENTS * N_SEQUENCES
    for client in clients:
        client.send_signal(signal.SIGKILL)
    killed_s = time.monotonic()
    for client in clients:
        client.wait()
        client.stdout.close()
    until(lambda: in_flight(server) == {})
    tell(
        "clients killed in mid stream",
        load=f"{N_CLIENTS} clients, {N_SEQUENCES} open sequences each",
        lost="their own",
        after=f"nothing of them left after {time.monotonic() - killed_s:.1f} s",
    )


def test_a_silent_peer_is_asked_and_let_go_and_a_quiet_one_is_kept(server_with, tell):
    server = server_with("--keepalive-s", "1")
    with SilentProxy(server.grpc) as proxy, Wire(proxy.target) as silent, Wire(server.grpc) as quiet:
        kept = quiet.stream("StreamDecode", timeout=None)
        kept.ask(one_sequence([0xF0]))
        lost = [silent.stream("StreamDecode", timeout=None) for _ in range(N_CLIENTS)]
        for stream in lost:
            stream.ask(one_sequence([0xF0]))
        assert server.metric("tokend_live_sequences") == N_CLIENTS + 1
        proxy.fall_silent()
        silent_s = time.monotonic()
        until(lambda: server.metric("tokend_live_sequences") == 1)
        took_s = time.monotonic() - silent_s
        # The quiet one has said nothing for as long, and answers when it is asked.
        assert kept.ask(one_sequence([0x9F, 0x99, 0x82])).sequences[0].text == "🙂"
        kept.rest()
        for stream in lost:
            stream.cancel()
        until(lambda: in_flight(server) == {})
    tell(
        "a peer that goes silent without closing",
        load=f"{N_CLIENTS} streams behind it, `keepalive_s` 1",
        lost="its own streams; a quiet client beside it keeps its",
        after=f"nothing of it left after {took_s:.1f} s",
    )
