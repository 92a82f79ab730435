"""Threads that work ahead."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
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


class Parts:
    """A job of several parts, which does what it is told to."""

    def __init__(self, number: int, parts: int, do: Callable[[int, str], Any], log: list[Any] | None = None) -> None:
        self.number, self.parts, self._do = number, parts, do
        self.log = [] if log is None else log

    def begin(self) -> None:
        """Say so."""
        self._note("begin")

    def part(self, i: int) -> None:
        """Say which."""
        self._note(f"part {i}")

    def end(self) -> int:
        """The number."""
        self._note("end")
        return self.number

    def _note(self, what: str) -> None:
        self.log.append((self.number, what, threading.current_thread().name))
        self._do(self.number, what)


def _nothing(number: int, what: str) -> None:
    """Take no time."""


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 6), max_size=12), st.integers(0, 4), st.integers(0, 3), st.integers(0, 1 << 30))
def test_parts_are_done_once(parts: list[int], threads: int, fetchers: int, seed: int) -> None:
    """Whatever threads and fetchers there are, a job is begun before its parts and ended behind them, each is done
    once, and results come in order.
    """
    delays, log = random.Random(seed), list[Any]()

    def do(number: int, what: str) -> None:
        time.sleep(delays.random() * 0.0005)

    jobs = [Parts(number, count, do, log) for number, count in enumerate(parts)]
    ahead = Readahead(jobs, threads=threads, ahead_bytes=1 << 20, fetchers=fetchers)
    assert list(ahead) == list(range(len(parts)))
    for number, count in enumerate(parts):
        done = [what for n, what, _ in log if n == number]
        assert done[0] == "begin"
        assert sorted(done[1:-1]) == [f"part {i}" for i in range(count)]
        assert done[-1] == "end"


def test_all_threads_work_on_the_oldest_job() -> None:
    """The parts of one job are done by all threads at once, though there are other jobs."""
    barrier = threading.Barrier(4, timeout=60)

    def do(number: int, what: str) -> None:
        if number == 0 and what.startswith("part"):
            barrier.wait()

    jobs = [Parts(number, 4, do) for number in range(6)]
    assert list(Readahead(jobs, threads=4, ahead_bytes=1 << 20)) == list(range(6))


def test_older_jobs_go_first() -> None:
    """A thread that becomes free takes a part of the oldest job that has one, not of a newer one."""
    both, log = threading.Event(), list[Any]()

    def do(number: int, what: str) -> None:
        if number == 0 and what == "part 0":
            both.wait(60)  # until the other thread has begun job 1, and waits in it
        elif number == 1 and what == "begin":
            both.set()
            time.sleep(0.02)

    jobs = [Parts(number, 3, do, log) for number in range(2)]
    assert list(Readahead(jobs, threads=2, ahead_bytes=1 << 20)) == [0, 1]
    order = [(number, what) for number, what, _ in log if what.startswith("part")]
    assert order.index((0, "part 1")) < order.index((1, "part 1"))
    assert order.index((0, "part 2")) < order.index((1, "part 1"))


def test_the_first_part_s_error_counts() -> None:
    """Where several parts fail, the error is that of the first of them, whichever was first in time; and the job is
    not ended.
    """
    late = threading.Event()

    def do(number: int, what: str) -> None:
        if what == "part 1":
            late.wait(60)
            raise ValueError("part 1")
        if what == "part 3":
            late.set()
            raise ValueError("part 3")

    job = Parts(0, 4, do)
    with pytest.raises(ValueError, match="part 1"):
        list(Readahead([job], threads=2, ahead_bytes=1 << 20))
    assert "end" not in [what for _, what, _ in job.log]


@pytest.mark.parametrize("where", ["begin", "part 1", "end"])
@pytest.mark.parametrize(("threads", "fetchers"), [(0, 0), (1, 0), (2, 0), (2, 3)])
def test_errors_anywhere_in_a_job(where: str, threads: int, fetchers: int, nothing_left: Callable[[], None]) -> None:
    """An error in the beginning, a part or the end of a job comes at its turn, also an exit; no thread stays."""

    def do(number: int, what: str) -> None:
        if (number, what) == (2, where):
            raise SystemExit(7)

    seen = []
    jobs = [Parts(number, 2, do) for number in range(8)]
    with pytest.raises(SystemExit):  # noqa: PT012  (what comes before the error counts)
        for number in Readahead(jobs, threads=threads, ahead_bytes=1 << 20, fetchers=fetchers):
            seen.append(number)
    assert seen == [0, 1]
    if where == "begin":
        assert [what for _, what, _ in jobs[2].log] == ["begin"]
    nothing_left()


def test_fetchers_begin_on_threads_of_their_own(nothing_left: Callable[[], None]) -> None:
    """With fetchers, several jobs are begun at a time while all threads work; parts are for the others."""
    barrier, log = threading.Barrier(3, timeout=60), list[Any]()

    def do(number: int, what: str) -> None:
        if what == "begin" and number in (1, 2, 3):  # how much a job holds is known behind the first
            barrier.wait()

    jobs = [Parts(number, 2, do, log) for number in range(6)]
    assert list(Readahead(jobs, threads=1, ahead_bytes=1 << 20, fetchers=3)) == list(range(6))
    for _, what, name in log:
        assert name.startswith("shardstream-fetch" if what == "begin" else "shardstream-decode")
    nothing_left()


def test_results_are_not_kept() -> None:
    """A result is the consumer's alone, and free before the next is waited for."""

    class Result:
        pass

    kept: list[Any] = []
    for result in _ahead(lambda _: Result(), range(20), threads=2, ahead_bytes=1 << 20):
        assert all(reference() is None for reference in kept)
        kept.append(weakref.ref(result))
        del result
    assert len(kept) == 20


class _Dangling:
    """Holds an iterator, and itself: only a collection finds it."""

    def __init__(self, iterator: Any) -> None:
        self.iterator, self.itself = iterator, self


@pytest.mark.timeout(60)
def test_an_iterator_that_its_own_thread_collects(nothing_left: Callable[[], None]) -> None:
    """A collection in one of the threads, at a moment when others wait for it, may find the iterator: it ends, and
    nothing hangs.
    """
    lock, left, collected = threading.Lock(), threading.Event(), threading.Event()

    def work(i: int) -> int:
        if i == 0:
            return i
        with lock:
            if not collected.is_set():
                left.wait(60)
                time.sleep(0.01)  # the others wait for the lock now
                gc.collect()
                collected.set()
        return i

    dangling = _Dangling(iter(_ahead(work, range(50), threads=3, ahead_bytes=1 << 20)))
    next(dangling.iterator)
    gone = weakref.ref(dangling)
    gc.disable()
    try:
        del dangling
        left.set()
        assert collected.wait(30)
    finally:
        gc.enable()
    assert gone() is None
    nothing_left()


_PROGRAM = """
import sys, threading, time
from streaming.readahead import Call, Readahead

def work(i):
    time.sleep(0.01)
    return i

iterator = iter(Readahead((Call(work, i) for i in range(1000)), threads=3, ahead_bytes=1 << 20))
print(next(iterator))
{}
"""


@pytest.mark.parametrize(
    ("then", "code"),
    [
        ("class Cycle: pass\ncycle = Cycle(); cycle.me = cycle; cycle.iterator = iterator; del iterator, cycle", 0),
        ("threading.Thread(target=lambda: [time.sleep(0.001) for _ in zip(iterator, range(9))]).start()", 0),
        ("raise ValueError('mine')", 1),
    ],
)
def test_the_end_of_a_program(then: str, code: int) -> None:
    """A program ends as it would without, though it still holds an iterator whose threads are at work."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(then)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert done.stdout == "0\n"
    assert ("Traceback" in done.stderr) == (code == 1)
