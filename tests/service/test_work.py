"""What is in work is bounded in texts and bytes: the rest is refused, or waits its turn."""

import threading

import pytest

from tests.integration.wire import until
from tokend_server.errors import ServerOverloaded
from tokend_server.service.work import LARGE_BYTES, Budget, CallGone, Work


class Shown:
    value = 0.0

    def set(self, value: float) -> None:
        self.value = value


TEXTS, BYTES = 16, 8 * LARGE_BYTES


@pytest.fixture
def shown() -> tuple[Shown, Shown]:
    return Shown(), Shown()


@pytest.fixture
def budget(shown: tuple[Shown, Shown]) -> Budget:
    return Budget(max_texts=TEXTS, max_bytes=BYTES, texts=shown[0], text_bytes=shown[1])


def test_what_is_in_work_is_shown_and_gone_afterwards(budget: Budget, shown):
    with budget.enter(1_000) as work:
        work.has_texts(3)
        assert [each.value for each in shown] == [3, 1_000]
        with budget.enter(10):
            assert [each.value for each in shown] == [4, 1_010]
    work.let_go()
    assert [each.value for each in shown] == [0, 0]


def test_bytes_beyond_the_bound_are_refused_until_there_is_room(budget: Budget):
    large = budget.enter(6 * LARGE_BYTES)
    with pytest.raises(ServerOverloaded) as refused:
        budget.enter(2 * LARGE_BYTES)
    assert 0 < refused.value.retry_after_ms < 1_000
    assert "max_work_bytes" in refused.value.message
    large.let_go()
    budget.enter(2 * LARGE_BYTES).let_go()


def test_the_last_eighth_is_for_small_messages(budget: Budget):
    with budget.enter(7 * LARGE_BYTES):
        with pytest.raises(ServerOverloaded):
            budget.enter(LARGE_BYTES + 1)
        small = [budget.enter(LARGE_BYTES // 8) for _ in range(8)]
        with pytest.raises(ServerOverloaded):
            budget.enter(1)
        for work in small:
            work.let_go()


def test_texts_beyond_the_bound_are_refused(budget: Budget):
    with budget.enter(10) as first, budget.enter(10) as second:
        first.has_texts(10)
        with pytest.raises(ServerOverloaded):
            second.has_texts(5)
        second.has_texts(4)
    some = [budget.enter(1) for _ in range(TEXTS)]
    with pytest.raises(ServerOverloaded):
        budget.enter(1)
    for work in some:
        work.let_go()


def test_what_is_above_the_bound_alone_comes_in_when_nothing_else_is_there(budget: Budget, shown):
    with budget.enter(100 * BYTES) as work:
        work.has_texts(100 * TEXTS)
        with pytest.raises(ServerOverloaded):
            budget.enter(1)
    with budget.enter(1), pytest.raises(ServerOverloaded):
        budget.enter(100 * BYTES)
    assert [each.value for each in shown] == [0, 0]


def test_a_batch_waits_for_room_and_comes_in_by_its_turn(budget: Budget, shown):
    large = budget.wait(7 * LARGE_BYTES, 1, gone=lambda: False)
    order: list[str] = []
    places: dict[str, Work] = {}

    def waits(name: str, n_bytes: int) -> threading.Thread:
        def run() -> None:
            places[name] = budget.wait(n_bytes, 1, gone=lambda: False)
            order.append(name)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    first = waits("first", 7 * LARGE_BYTES)
    until(lambda: len(budget._waiting) == 1)
    # There would be room for it, but not before its turn.
    second = waits("second", 10)
    until(lambda: len(budget._waiting) == 2)
    assert order == []
    large.let_go()
    first.join(10)
    second.join(10)
    assert sorted(order) == ["first", "second"]
    for work in places.values():
        work.let_go()
    assert [each.value for each in shown] == [0, 0]


def test_a_batch_whose_caller_has_left_does_not_wait_on_and_holds_up_nobody(budget: Budget):
    large = budget.wait(7 * LARGE_BYTES, 1, gone=lambda: False)
    left = threading.Event()
    ended: list[str] = []

    def gone() -> None:
        with pytest.raises(CallGone):
            budget.wait(7 * LARGE_BYTES, 1, gone=left.is_set)
        ended.append("gone")

    def behind() -> None:
        budget.wait(10, 1, gone=lambda: False).let_go()
        ended.append("behind")

    threads = [threading.Thread(target=gone), threading.Thread(target=behind)]
    for n, thread in enumerate(threads):
        thread.start()
        until(lambda n=n: len(budget._waiting) == n + 1)
    left.set()
    for thread in threads:
        thread.join(10)
    assert sorted(ended) == ["behind", "gone"]
    large.let_go()


def test_work_that_is_only_counted_is_never_held_up(budget: Budget, shown):
    with budget.enter(7 * LARGE_BYTES), budget.count(5 * BYTES, 0), budget.count(5, 40):
        assert [each.value for each in shown] == [42, 7 * LARGE_BYTES + 5 * BYTES + 5]


def test_many_threads_leave_nothing_behind(budget: Budget, shown):
    refused = []

    def run() -> None:
        for n in range(300):
            try:
                with budget.enter(n * 100) as work:
                    work.has_texts(n % 5)
            except ServerOverloaded:
                refused.append(n)
            budget.wait(n * 200, n % 7, gone=lambda: False).let_go()

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert [each.value for each in shown] == [0, 0]
