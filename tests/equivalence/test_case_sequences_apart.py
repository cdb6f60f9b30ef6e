"""No sequence knows of another: not its bytes, not its errors, not its options, not its prompt, not its memory."""

import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokend
from tests.integration.wire import Wire, one_sequence, until
from tests.tokenizers_for_tests import BF, BL, load
from tokend.v1 import error_reason_pb2 as reasons
from tokend.v1 import tokenizer_service_pb2 as pb
from tokend.v1 import types_pb2 as types

FFFD = "\ufffd"
HALF_SMILE, OTHER_HALF = [0xF0, 0x9F], [0x99, 0x82]


@pytest.fixture(scope="module")
def byte_server(server_for):
    return server_for(BL())


@pytest.fixture(scope="module")
def wire(byte_server):
    with Wire(byte_server.grpc) as wire:
        yield wire


def message(inputs) -> pb.StreamDecodeRequest:
    return pb.StreamDecodeRequest(
        sequences=[types.SequenceInput(sequence_id=sequence_id, ids=ids) for sequence_id, ids in inputs]
    )


def texts(answers) -> dict[int, str]:
    joined: dict[int, str] = {}
    for answer in answers:
        for output in answer.sequences:
            joined[output.sequence_id] = joined.get(output.sequence_id, "") + output.text
    return joined


# State


def test_a_stream_that_was_left_gives_nothing_to_the_next_one(wire):
    left = wire.stream("StreamDecode")
    assert left.ask(one_sequence(HALF_SMILE)).sequences[0].pending_bytes == 2
    left.cancel()
    following = wire.stream("StreamDecode")
    assert following.ask(one_sequence([*OTHER_HALF, 104])).sequences[0].text == 2 * FFFD + "h"
    following.cancel()


def test_a_sequence_that_reuses_an_id_starts_anew(wire):
    stream = wire.stream("StreamDecode")
    stream.ask(one_sequence([*b"a", *HALF_SMILE], end=True))
    assert stream.ask(one_sequence(OTHER_HALF)).sequences[0].text == 2 * FFFD
    assert stream.rest() != []


@settings(max_examples=30)
@given(data=st.data())
def test_sequences_that_are_cut_and_mixed_at_will_each_get_their_own_decode(wire, data):
    lists = data.draw(st.lists(st.lists(st.integers(0, 264), max_size=12), min_size=2, max_size=8))
    rest = {sequence_id: list(ids) for sequence_id, ids in enumerate(lists)}
    stream = wire.stream("StreamDecode")
    answers = []
    while any(rest.values()):
        chosen = data.draw(st.lists(st.sampled_from(sorted(rest)), min_size=1, max_size=4))
        inputs = []
        for sequence_id in chosen:
            n_taken = data.draw(st.integers(1, 5))
            inputs.append((sequence_id, rest[sequence_id][:n_taken]))
            rest[sequence_id] = rest[sequence_id][n_taken:]
        answers.append(stream.ask(message(inputs)))
    joined = texts([*answers, *stream.rest()])
    assert all(text == load(BL()).decode(lists[sequence_id]) for sequence_id, text in joined.items())
    assert {sequence_id for sequence_id, ids in enumerate(lists) if ids} <= joined.keys()


def test_fifty_streams_side_by_side_each_get_their_own_decode(wire):
    chance = random.Random(50)
    lists = [[chance.choice([*HALF_SMILE, *OTHER_HALF, 97, 258, 262]) for _ in range(40)] for _ in range(50)]
    streams = [wire.stream("StreamDecode", timeout=60) for _ in lists]
    answers = [[] for _ in lists]
    left = [list(ids) for ids in lists]
    while any(left):
        n = chance.choice([n for n, ids in enumerate(left) if ids])
        n_taken = chance.randint(1, 3)
        answers[n].append(streams[n].ask(one_sequence(left[n][:n_taken])))
        left[n] = left[n][n_taken:]
    for ids, stream, given_answers in zip(lists, streams, answers, strict=True):
        assert texts([*given_answers, *stream.rest()])[0] == load(BL()).decode(ids)


def resident_bytes(process_id: int) -> int:
    status = Path(f"/proc/{process_id}/status").read_text(encoding="ascii")
    return int(re.search(r"^VmRSS:\s+(\d+) kB", status, flags=re.MULTILINE)[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
def test_streams_that_clients_left_leave_nothing_behind(byte_server, wire):
    many = message([(n, [*b"a" * 20, *HALF_SMILE]) for n in range(50)])

    def leave(n_streams):
        for _ in range(n_streams):
            stream = wire.stream("StreamDecode")
            stream.ask(many)
            stream.cancel()
        until(lambda: byte_server.metric("tokend_live_streams") == 0)

    leave(100)  # What the process keeps of a busy moment (arenas, threads) is there from now on.
    before_bytes = resident_bytes(byte_server.process.pid)
    leave(400)
    assert byte_server.metric("tokend_live_sequences") == 0
    # 20,000 sequences were open; the smallest object of Python for each would be more than this.
    assert resident_bytes(byte_server.process.pid) - before_bytes < 4 << 20


# Bad ids


@pytest.mark.parametrize("bad", [265, 5000, 2**31, 2**32 - 1])
def test_an_id_that_is_none_ends_its_own_sequence_with_the_text_before_it(wire, bad):
    stream = wire.stream("StreamDecode")
    stream.ask(message([(1, [97]), (2, [98, *HALF_SMILE])]))
    answer = stream.ask(message([(1, [97, *HALF_SMILE, bad, 98]), (2, OTHER_HALF)]))
    refused, other = answer.sequences
    assert (refused.text, refused.tokens, refused.ended) == ("a" + FFFD, 3, True)
    assert refused.error.reason == reasons.ERROR_REASON_UNKNOWN_TOKEN_ID
    assert refused.error.metadata["id"] == str(bad)
    assert (other.text, other.ended) == ("🙂", False)
    assert stream.ask(message([(2, [99])])).sequences[0].text == "c"
    stream.cancel()


@pytest.mark.parametrize("bad", [-1, 2**32, -(2**63)])
def test_a_client_refuses_an_id_that_the_wire_cannot_hold_before_it_sends(client_of, bad):
    client = client_of(BL())
    with pytest.raises(ValueError, match=r"ids\[1\] is"):
        client.decode([97, bad])
    pieces = []
    with pytest.raises(ValueError, match=r"ids\[1\] is"):
        pieces.extend(client.decode_stream(iter([97, bad, 98])))
    with client.decoder() as decoder:
        assert decoder.push(97) == "a"
        with pytest.raises(ValueError, match=r"ids\[0\] is"):
            decoder.push(bad)
        assert decoder.push(98) == "b", "nothing was sent, so the sequence is well"


def test_the_error_of_one_client_is_nobody_elses(client_of):
    client = client_of(BL())

    def run(n):
        ids = [97, 5000 + n] if n % 3 == 0 else [*b"ok", *"🙂".encode()]
        pieces = []
        try:
            # One by one, so that the pieces before an error are kept.
            pieces.extend(client.decode_stream([token_id] for token_id in ids))
        except tokend.UnknownTokenIdError as error:
            return "".join(pieces), error.metadata["id"]
        return "".join(pieces), None

    with ThreadPoolExecutor(32) as pool:
        outcomes = list(pool.map(run, range(300)))
    assert outcomes == [("a", str(5000 + n)) if n % 3 == 0 else ("ok🙂", None) for n in range(300)]


# Prompts

SECRET = [*b"Secret prompt "]


@pytest.mark.parametrize(
    ("prompt", "ids", "pieces"),
    [
        ([*SECRET, 0xF0, 0x9F], [0x8C, 0xB6, 111, 107], ["", "🌶", "o", "k", ""]),
        ([*SECRET, 0xF0, 0x9F], [111, 107], ["o", "k", ""]),
        ([*SECRET, 0xF0, 0x9F], [], [""]),
        (SECRET, [111], ["o", ""]),
        ([0xF0, 0x9F, 262], [0x8C, 0xB6], ["", "🌶", ""]),
    ],
    ids=[
        "a character that the ids complete is sent whole",
        "one that they do not complete was the prompt's",
        "nothing follows",
        "whole characters",
        "a skipped token in between",
    ],
)
def test_the_text_of_a_prompt_is_never_sent(client_of, streamed, prompt, ids, pieces):
    assert streamed(client_of(BL()), [[token_id] for token_id in ids], prompt_ids=prompt) == pieces


@settings(max_examples=100)
@given(text=st.text(max_size=12), place=st.integers(0, 60), name=st.sampled_from(["BL", "BF"]))
def test_a_prompt_and_what_follows_make_up_the_whole_text(client_of, streamed, text, place, name):
    file = {"BL": BL, "BF": BF}[name]()
    client = client_of(file)
    ids = client.encode("hi" + text, add_special_tokens=False).ids
    prompt, rest = ids[: 1 + place], ids[1 + place :]
    sent = "".join(streamed(client, [[token_id] for token_id in rest], prompt_ids=prompt))
    shown = client.decode(prompt, include_bytes=True).raw_bytes.decode(errors="ignore")
    # Without anything behind it an open character stays the prompt's.
    assert shown + sent == (client.decode(ids).text if rest else shown)
