"""Leaving a failing service alone, and work that nobody waits for."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st
from shared_places import Clock

from streaming.cache.background import Background
from streaming.cache.resting import LONGEST, SHORTEST, Rest


@given(st.lists(st.tuples(st.floats(0, 400), st.booleans()), max_size=40))
def test_rests_double_until_it_works(steps: list[tuple[float, bool]]) -> None:
    """There is an attempt exactly when the last rest is over; each failure doubles the rest, success ends it."""
    clock, pause, until = Clock(), 0.0, 0.0
    rest = Rest(clock)
    for seconds, works in steps:
        clock.at += seconds
        attempt = rest.begin()
        assert (attempt is None) == (pause > 0 and clock.at < until)
        if attempt is None:
            assert rest.is_resting()
        elif works:
            rest.worked(attempt)
            pause = 0.0
        else:
            pause = min(max(SHORTEST, 2 * pause), LONGEST)
            until = clock.at + pause
            assert rest.failed(attempt) == pause


def test_failures_at_the_same_time_count_once() -> None:
    """Attempts that were under way when the rest began neither lengthen it nor end it."""
    clock = Clock()
    rest = Rest(clock)
    first, second, third = rest.begin(), rest.begin(), rest.begin()
    assert first is not None
    assert second is not None
    assert third is not None
    assert rest.failed(first) == SHORTEST
    assert rest.failed(second) is None
    rest.worked(third)
    assert rest.begin() is None


def test_after_a_rest_one_caller_tries_first() -> None:
    """The others go on resting until it has found out."""
    clock = Clock()
    rest = Rest(clock)
    rest.failed(rest.begin() or 0)
    clock.at += SHORTEST
    attempt = rest.begin()
    assert attempt is not None
    assert rest.begin() is None
    rest.worked(attempt)
    assert rest.begin() is not None


def test_jobs_are_done_in_order_and_bounded() -> None:
    """Sizes of what is not done stay within the bound; one that is larger is taken where there is nothing else."""
    background, go, done = Background(most=10), threading.Event(), list[int]()

    def first() -> None:
        go.wait(60)
        done.append(0)

    assert background.submit(first, 20)
    assert not background.submit(lambda: done.append(9), 1)
    assert background.submit(lambda: done.append(1), 0)
    go.set()
    while not background.has_room(10):
        pass
    assert background.submit(lambda: done.append(2), 10)
    assert background.close(wait=True) == 0
    assert done == [0, 1, 2]
    assert not background.submit(lambda: done.append(3))
    assert background.close(wait=True) == 0


def test_closing_without_waiting_finishes_the_job_in_hand() -> None:
    """The other jobs are left out and counted, those without a size not."""
    background, began, go, done = Background(most=10), threading.Event(), threading.Event(), list[int]()

    def first() -> None:
        began.set()
        go.wait(60)
        done.append(0)

    background.submit(first, 1)
    background.submit(lambda: done.append(1), 1)
    background.submit(lambda: done.append(2), 0)
    began.wait(60)
    threading.Timer(0.05, go.set).start()
    assert background.close(wait=False) == 1
    assert done == [0]
    assert not [thread for thread in threading.enumerate() if thread.name == "shardstream-put"]
