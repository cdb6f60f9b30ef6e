"""Time limits on single answers."""

import threading
import time

from tokend._answer_watch import AnswerWatch


def test_what_waits_too_long_is_ended_and_what_ends_in_time_is_not() -> None:
    watch, expired = AnswerWatch(), list[str]()
    in_time = watch.begin(0.2, lambda: expired.append("in time"))
    watch.begin(0.3, lambda: expired.append("late"))
    # Ends before the thread's next look, so the thread has to be woken for it.
    watch.begin(0.05, lambda: expired.append("early"))
    watch.end(in_time)
    ends_s = time.monotonic() + 5
    while len(expired) < 2:
        assert time.monotonic() < ends_s
        time.sleep(0.01)
    # Time for the one that has ended to be taken for late.
    time.sleep(0.1)
    assert expired == ["early", "late"]


def test_the_thread_goes_when_nothing_waits_and_comes_back() -> None:
    # Those of other clients in this process.
    others = set(threading.enumerate())
    watch, expired = AnswerWatch(), threading.Event()
    for _ in range(2):
        expired.clear()
        watch.begin(0.02, expired.set)
        assert expired.wait(2)
        ends_s = time.monotonic() + 2
        while any(thread.name == "tokend-answer-watch" for thread in set(threading.enumerate()) - others):
            assert time.monotonic() < ends_s
            time.sleep(0.01)
