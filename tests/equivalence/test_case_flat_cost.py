"""The cost of an id does not grow with the length of its sequence, whatever the ids are.

Times are compared with times of the same run: a machine under load is slower, not steeper. Work that looks back over
the whole sequence would make the long one cost 256 times as much as the short one, not 16 times.
"""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizers_for_tests import BF, BL, WP, load, suffix_bpe, word_level_with_rewriting_decoder

N_SHORT, N_LONG, MESSAGE_IDS = 1_000, 16_000, 500
ALLOWED = 4 * N_LONG / N_SHORT
FFFD = "\ufffd"

SEQUENCES = {
    "ordinary letters": (BL(), [97], {}),
    "special tokens that are skipped": (BL(), [262], {}),
    "special tokens that are shown": (BL(), [262], {"skip_special_tokens": False}),
    "unknown ids that are skipped": (BL(), [5000], {"unknown_ids": "SKIP"}),
    "unknown ids that are replaced": (BL(), [5000], {"unknown_ids": "REPLACE"}),
    "bytes that begin nothing": (BL(), [0xFF], {}),
    "beginnings of characters": (BL(), [0xE4], {}),
    "true replacement characters": (BL(), [*FFFD.encode()], {}),
    "one valid run of byte tokens": (BF(), [3 + byte for byte in "中".encode()], {}),
    "one valid run of byte tokens, held": (BF(), [3 + byte for byte in "中".encode()], {"byte_runs": "HOLD"}),
    "one invalid run of byte tokens": (BF(), [3 + 0xFF], {}),
    "one invalid run of byte tokens, held": (BF(), [3 + 0xFF], {"byte_runs": "HOLD"}),
    "word marks alone": (BF(), [259], {}),
    "continuation pieces": (WP(), [11], {}),
    "word ends": (suffix_bpe(), [6, 12], {}),
    "ids that are held to the end": (word_level_with_rewriting_decoder(), [1, 3], {}),
    "the beginning of a stop string": (BL(), [97], {"stop": ["a" * 200 + "b"]}),
}


def timed(client, ids, options):
    """Seconds that the messages of one sequence take, and its text."""
    with client.decoder(**options) as decoder:
        start_s = time.perf_counter()
        pieces = [decoder.push(ids[at : at + MESSAGE_IDS]) for at in range(0, len(ids), MESSAGE_IDS)]
        pieces.append(decoder.finish())
        return time.perf_counter() - start_s, "".join(pieces)


@pytest.mark.parametrize("kind", SEQUENCES)
def test_sixteen_times_the_ids_cost_about_sixteen_times_the_time(client_of, kind):
    file, pattern, options = SEQUENCES[kind]
    client = client_of(file)
    long_ids = pattern * (N_LONG // len(pattern))
    short_s = min(timed(client, long_ids[:N_SHORT], options)[0] for _ in range(5))
    long_s, text = min(timed(client, long_ids, options) for _ in range(3))
    assert long_s / short_s < ALLOWED
    if options.get("unknown_ids") == "REPLACE":
        assert text == FFFD * N_LONG
    else:
        skip = options.get("skip_special_tokens", True)
        assert text == load(file).decode(long_ids, skip_special_tokens=skip)


@settings(max_examples=20)
@given(n_skipped=st.integers(0, 3000), chunk=st.integers(1, 1000))
def test_text_behind_any_number_of_skipped_ids_comes_at_once(client_of, n_skipped, chunk):
    skipped = [262, 263] * (n_skipped // 2)
    with client_of(BL()).decoder() as decoder:
        assert {decoder.push(skipped[at : at + chunk]) for at in range(0, len(skipped), chunk)} <= {""}
        assert decoder.push([*b"ok"]) == "ok"


LONG_TEXTS = {
    "one letter": ("a", 400_000),
    "spaces": (" ", 400_000),
    "one sign": ("^", 400_000),
    "accents on one letter": ("\u0301", 150_000),
    "words without spaces": ("hi", 200_000),
    "ideographs": ("日本語文字列検査", 20_000),
}


@pytest.mark.parametrize("kind", LONG_TEXTS)
def test_sixteen_times_the_text_costs_about_sixteen_times_the_time(client_of, kind):
    part, n = LONG_TEXTS[kind]
    client = client_of(BL())

    def encode_s(text):
        start_s = time.perf_counter()
        assert len(client.encode(text)) > len(text) / 16
        return time.perf_counter() - start_s

    short_s = min(encode_s("e" + part * (n // 16)) for _ in range(5))
    long_s = min(encode_s("e" + part * n) for _ in range(3))
    assert long_s / short_s < ALLOWED
    assert client.encode("a", add_special_tokens=False).ids == [97], "the server is well after it"
