"""Threads that work ahead."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.readahead import Call, Readahead


def _ahead(work: Callable[[int], Any], units: Iterable[int], **options: Any) -> Readahead:
    return Readahead((Call(work, unit) for unit in units), **options)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 40), st.integers(0, 6), st.integers(1, 1 << 12), st.integers(0, 1 << 30))
def test_order_under_random_delays(count: int, threads: int, ahead_bytes: int, seed: int) -> None:
    """However long units take, and whatever the bound and the threads, results come in the order of the units."""
    delays = [random.Random(seed + i).random() * 0.002 for i in range(count)]

    def work(i: int) -> bytes:
        time.sleep(delays[i])
        return bytes(i)

    got = list(_ahead(work, range(count), threads=threads, ahead_bytes=ahead_bytes))
    assert got == [bytes(i) for i in range(count)]


@pytest.mark.parametrize(("ahead_bytes", "most"), [(1, 1), (3_000, 3), (4_500, 4), (1 << 30, 8)])
def test_bytes_bound_what_is_ahead(ahead_bytes: int, most: int) -> None:
    """Once the size of a unit is known, no more of them are started and not delivered than the bytes allow; one passes
    whatever it holds, and threads are the bound where bytes are not.
    """
    lock, started, delivered, peaks = threading.Lock(), 0, 0, []

    def work(i: int) -> bytes:
        nonlocal started
        with lock:
            started += 1
            peaks.append(started - delivered)
        return bytes(1_000)

    for i, _ in enumerate(_ahead(work, range(60), threads=4, ahead_bytes=ahead_bytes)):
        time.sleep(0.002)
        with lock:
            delivered += 1
            if i == 4:  # those that were started before a size was known are delivered
                peaks.clear()
    assert peaks
    assert max(peaks) <= most + 1  # the unit that the consumer holds is not ahead any more
    assert ahead_bytes < 1 << 30 or max(peaks) > 4


def test_threads_really_work_at_once() -> None:
    """Four units that wait for each other all finish with four threads."""
    barrier = threading.Barrier(4, timeout=60)
    assert len(list(_ahead(lambda _: barrier.wait(), range(4), threads=4, ahead_bytes=1 << 20))) == 4


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_errors_come_at_their_turn(threads: int, nothing_left: Callable[[], None]) -> None:
    """An error is raised behind all results before it, though it happened earlier; no thread stays."""
    failed = threading.Event()

    def work(i: int) -> int:
        if i == 2:
            failed.set()
            raise ValueError("number 2")
        if threads == 4 and i < 2:
            failed.wait(60)
        return i

    seen: list[int] = []
    with pytest.raises(ValueError, match="number 2"):  # noqa: PT012  (what comes before the error counts)
        for value in _ahead(work, range(10), threads=threads, ahead_bytes=1 << 20):
            seen.append(value)
    assert seen == [0, 1]
    nothing_left()


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_errors_of_the_units(threads: int, nothing_left: Callable[[], None]) -> None:
    """An error in the making of units is raised, and no thread stays."""

    def units() -> Any:
        yield 0
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        list(_ahead(str, units(), threads=threads, ahead_bytes=1 << 20))
    nothing_left()


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_leaving_early(taken: int, nothing_left: Callable[[], None]) -> None:
    """Closing the iterator cancels what has not started, waits for what has, and leaves no thread."""
    running, done = [], []

    def work(i: int) -> int:
        running.append(i)
        time.sleep(0.005)
        done.append(i)
        return i

    iterator: Any = iter(_ahead(work, range(1000), threads=3, ahead_bytes=1 << 20))
    for _ in range(taken):
        next(iterator)
    iterator.close()
    assert sorted(running) == sorted(done)
    assert len(running) < 20
    nothing_left()


def test_no_threads() -> None:
    """threads=0 works in the caller's own thread, unit by unit, on demand."""
    where: list[str] = []
    iterator = iter(
        _ahead(lambda i: where.append(threading.current_thread().name) or i, range(5), threads=0, ahead_bytes=1)
    )
    assert next(iterator) == 0
    assert where == [threading.current_thread().name]
