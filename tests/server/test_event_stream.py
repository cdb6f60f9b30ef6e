"""Which work of a StreamDecode is done on gRPC's serving thread, where everybody waits for it."""

import threading
from types import SimpleNamespace

import pytest

from tokend_server.transport.event_stream import EventStream, _Phase


class Threads:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def submit_short(self, fn, *_args) -> None:
        self.given.append(fn.__name__)


def arrives(data: bytes | None, *, holds_text: bool, n_open: int = 1) -> tuple[list[str], list[str]]:
    """What a stream does here, and what it leaves to the threads, when a message arrives."""
    stream, threads, here = EventStream(None, None, admission=None, live=None), Threads(), []
    stream._state = SimpleNamespace(condition=threading.Condition())
    stream._session = SimpleNamespace(holds_text=holds_text, n_open=n_open)
    stream._threads, stream._phase = threads, _Phase.WAITS

    def _answer(_data: bytes) -> None:
        here.append("_answer")

    def _flush(_error: object) -> None:
        here.append("_flush")

    stream._answer, stream._flush = _answer, _flush
    stream._received(SimpleNamespace(batch_operations=[SimpleNamespace(message=lambda: data)]))
    return here, threads.given


@pytest.mark.parametrize(("data", "step"), [(bytes(6), "_answer"), (None, "_flush")])
def test_what_is_small_is_done_at_once(data, step):
    assert arrives(data, holds_text=False) == ([step], [])


@pytest.mark.parametrize(("data", "step"), [(bytes(6), "_answer"), (None, "_flush")])
def test_the_end_of_a_held_text_may_take_seconds_and_is_left_to_a_thread(data, step):
    assert arrives(data, holds_text=True) == ([], [step])


def test_what_is_large_is_left_to_a_thread():
    assert arrives(bytes(2_049), holds_text=False) == ([], ["_answer"])
    assert arrives(None, holds_text=False, n_open=65) == ([], ["_flush"])
