"""Requests in flight, asked for twice where they stall, given up at their deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from shardwriter.errors import ObjectChanged, StoreError
from shardwriter.store import open_store
from streaming import transfers
from streaming.stats import Counters
from streaming.transfers import PART, RAMP, Transfers

DATA = bytes(range(256)) * 512 * 200


@dataclass
class Slow:
    """A store whose requests wait for what the test says, one function for each, and else answer at once."""

    faults: list[Callable[[Callable[[], bool]], None]] = field(default_factory=list)
    deadline: float = 60.0
    url: str = "s3://bucket"
    path: Any = None
    asked: list[tuple[int, int]] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    def read_view(
        self, name: str, start: int, end: int, *, version: str | None = None, wanted: Callable[[], bool] = lambda: True
    ) -> memoryview:
        """As Store."""
        with self.lock:
            self.asked.append((start, end))
            fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            fault(wanted)
        return memoryview(DATA)[start:end]


def _stalls(wanted: Callable[[], bool]) -> None:
    """Nothing comes until nobody wants it any more."""
    while wanted():
        threading.Event().wait(0.01)
    raise StoreError("given up")


def _fails(wanted: Callable[[], bool]) -> None:
    raise ObjectChanged("replaced")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are asked for again after a tenth of a second."""
    monkeypatch.setattr(transfers, "FIRST_HEDGE", 0.1)
    monkeypatch.setattr(transfers, "LEAST_HEDGE", 0.1)
    monkeypatch.setattr(transfers, "GRACE", 0.1)


def _read(store: Slow, low: int, high: int, counters: Counters | None = None) -> bytes:
    with Transfers(counters) as some:
        return bytes(some.read(store, "a.tar", low, high, "v"))  # type: ignore[arg-type]


@pytest.mark.parametrize("span", [(0, 0), (5, 6), (100, RAMP[0] + 100), (3, 9 << 20)])
def test_ranges_are_whole(span: tuple[int, int]) -> None:
    """A range has its bytes, asked for in one part or several."""
    store = Slow()
    assert _read(store, *span) == DATA[slice(*span)]
    covered = sorted(store.asked)
    assert covered[0][0] == span[0]
    assert covered[-1][1] == span[1]
    assert all(a[1] == b[0] for a, b in pairwise(covered))


def test_first_reads_are_cut_small() -> None:
    """The first reads come in several small parts at a time, later ones in one request."""
    store = Slow()
    with Transfers() as some:
        for _ in range(len(RAMP) + 1):
            some.read(store, "a.tar", 0, 4 << 20, None)  # type: ignore[arg-type]
    assert [end - start for start, end in store.asked[:4]] == [RAMP[0]] * 4
    assert store.asked[-1] == (0, 4 << 20)
    assert all(end - start <= PART for start, end in store.asked)


def test_a_stalled_request_is_made_again(quick: None) -> None:
    """Where nothing comes the range is asked for a second time, and the second answer counts."""
    store, counters = Slow([_stalls]), Counters()
    assert _read(store, 7, 1000, counters) == DATA[7:1000]
    assert store.asked == [(7, 1000)] * 2
    assert counters.totals()["hedged"] == 1


def test_the_first_answer_counts(quick: None) -> None:
    """A second request that stalls does not hold up the first, once that answers."""
    second = threading.Event()

    def slow(wanted: Callable[[], bool]) -> None:
        second.wait(30)

    def stalls(wanted: Callable[[], bool]) -> None:
        second.set()
        _stalls(wanted)

    assert _read(Slow([slow, stalls]), 0, 100) == DATA[:100]


def test_a_failure_waits_for_the_other_request(quick: None) -> None:
    """An error of one request is no error while the other may still answer; of two errors the first one's counts."""
    begun = threading.Event()

    def fails_late(wanted: Callable[[], bool]) -> None:
        begun.wait(30)
        raise StoreError("the first")

    def answers_later(wanted: Callable[[], bool]) -> None:
        begun.set()
        threading.Event().wait(0.3)

    def fails_too(wanted: Callable[[], bool]) -> None:
        begun.set()
        raise StoreError("the second")

    assert _read(Slow([fails_late, answers_later]), 0, 100) == DATA[:100]
    begun.clear()
    with pytest.raises(StoreError, match="the first"):
        _read(Slow([fails_late, fails_too]), 0, 100)


def test_errors_come_through() -> None:
    """What the store raises for a part is raised for the whole."""
    with pytest.raises(ObjectChanged, match="replaced"):
        _read(Slow([_fails]), 0, 100)


def test_nothing_comes_at_all(quick: None) -> None:
    """What has not come at the deadline is an error that names object and offset."""
    with pytest.raises(StoreError) as caught:
        _read(Slow([_stalls, _stalls], deadline=0.5), 7, 100)
    assert (caught.value.shard, caught.value.offset) == ("s3://bucket/a.tar", 7)
    assert "deadline" in str(caught.value)


def test_a_server_that_is_slow_in_everything_gets_no_more_to_do(quick: None) -> None:
    """Only so many requests are made again at once."""
    counters = Counters()
    store = Slow([_stalls] * 40, deadline=1.5)
    with Transfers(counters) as some:
        parts = [some.ask(store, "a.tar", i, i + 1, None) for i in range(10)]  # type: ignore[arg-type]
        for part in parts:
            with pytest.raises(StoreError):
                some.wait(part)
    assert counters.totals()["hedged"] <= transfers.FREE_HEDGES


def test_close_ends_what_is_under_way(nothing_left: Callable[[], None]) -> None:
    """Closing gives up what stalls, ends the threads, and refuses what comes later."""
    store = Slow([_stalls] * 3)
    some = Transfers()
    parts = [some.ask(store, "a.tar", i, i + 1, None) for i in range(30)]  # type: ignore[arg-type]
    some.close()
    with pytest.raises(StoreError):
        some.wait(parts[0])
    with pytest.raises(StoreError, match="closed"):
        some.ask(store, "a.tar", 0, 1, None)  # type: ignore[arg-type]


def test_local_files_too(tmp_path: Any) -> None:
    """Files of a folder are read in the same way."""
    (tmp_path / "a.tar").write_bytes(DATA)
    with Transfers() as some:
        assert bytes(some.read(open_store(tmp_path), "a.tar", 10, 3 << 20, None)) == DATA[10 : 3 << 20]
