"""Stop strings: which match wins, what may be sent, and at what cost."""

import random
import time
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokend_server.engine.stops import StopMatcher
from tokend_server.errors import InvalidOption


def fed(stops, pieces):
    """Everything that is sent, and the stop string that ended it."""
    matcher = StopMatcher(stops)
    sent = ""
    for piece in pieces:
        text, stop = matcher.feed(piece)
        sent += text
        if stop is not None:
            return sent, stop
    return sent + matcher.finish(), None


def searched(stops, text):
    """The same by looking at every end in turn, the longest match first."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


def test_without_stop_strings_everything_passes_at_once():
    matcher = StopMatcher([])
    assert matcher.feed("text") == ("text", None)
    assert matcher.held_bytes == 0
    assert matcher.finish() == ""


def test_a_stop_string_across_pieces_is_found_and_no_part_of_it_is_sent():
    matcher = StopMatcher(["</end>"])
    assert matcher.feed("well</") == ("well", None)
    assert matcher.feed("en") == ("", None)
    assert matcher.feed("d>more") == ("", "</end>")


def test_what_only_began_like_a_stop_string_is_sent_as_soon_as_that_is_clear():
    matcher = StopMatcher(["</end>"])
    assert matcher.feed("a</e") == ("a", None)
    assert matcher.feed("x") == ("</ex", None)


def test_a_beginning_inside_a_failed_beginning_is_kept():
    matcher = StopMatcher(["aab"])
    assert matcher.feed("aa") == ("", None)
    assert matcher.feed("a") == ("a", None)
    assert matcher.feed("b") == ("", "aab")


def test_what_is_held_at_the_end_is_sent():
    matcher = StopMatcher(["stop"])
    assert matcher.feed("non st") == ("non ", None)
    assert matcher.finish() == "st"
    assert matcher.finish() == ""


def test_the_match_that_ends_first_wins():
    assert fed(["abcd", "bc"], ["xabcd"]) == ("xa", "bc")


def test_of_matches_with_one_end_the_longest_wins():
    assert fed(["c", "bc", "abc"], ["xabc"]) == ("x", "abc")
    assert fed(["abc", "bc"], ["xbc"]) == ("x", "bc")


def test_held_bytes_are_counted_in_utf_8():
    matcher = StopMatcher(["🙂é!"])
    matcher.feed("x🙂é")
    assert matcher.held_bytes == 6


def test_after_a_match_nothing_more_is_sent():
    matcher = StopMatcher(["."])
    assert matcher.feed("a.b") == ("a", ".")
    assert matcher.feed("c") == ("", ".")
    assert matcher.finish() == ""


def test_characters_with_a_meaning_in_patterns_are_plain():
    for stop in ("^", "]", "\\", "-", "[a-z]", ".*", "^]"):
        assert fed([stop], [f"abc{stop}d"]) == ("abc", stop)


def test_an_empty_stop_string_is_refused():
    with pytest.raises(InvalidOption):
        StopMatcher(["a", ""])


STOPS = st.lists(st.text("ab🙂", min_size=1, max_size=5), max_size=4)
PIECES = st.lists(st.text("ab🙂", max_size=6), max_size=12)


@given(STOPS, PIECES)
@example(["aba", "b"], ["ab"])
def test_any_pieces_give_what_a_search_of_the_whole_text_gives(stops, pieces):
    assert fed(stops, pieces) == searched(stops, "".join(pieces))


@given(STOPS, PIECES)
def test_only_what_may_become_a_stop_string_is_held(stops, pieces):
    matcher = StopMatcher(stops)
    text = sent = ""
    for piece in pieces:
        out, stop = matcher.feed(piece)
        text, sent = text + piece, sent + out
        if stop is not None:
            return
        held = text[len(sent) :]
        begun = [text[-n:] for n in range(1, len(text) + 1) if any(s.startswith(text[-n:]) for s in stops)]
        assert held == max(begun, key=len, default="")
        assert matcher.held_bytes == len(held.encode())


def test_a_text_that_begins_the_stop_string_over_and_over_costs_linear_time():
    stop = "a" * 2_000 + "b"
    start = time.perf_counter()
    sent, found = fed([stop], ["a"] * 100_000)
    assert (len(sent), found) == (100_000, None)
    assert time.perf_counter() - start < 5


def test_stop_strings_take_little_more_memory_than_their_characters():
    # Those of one sequence at the default limits; a message may have a thousand of them.
    characters = random.Random(1)
    stops = ["".join(characters.choices("abcdefgh", k=1024)) for _ in range(64)]
    tracemalloc.start()
    matcher = StopMatcher(stops)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 40 * 64 * 1024
    assert matcher.feed("-" + stops[63]) == ("-", stops[63])
