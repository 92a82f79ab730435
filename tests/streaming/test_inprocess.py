"""Reading in the trainer's own process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from reading import FailAt, flat, planned

from streaming import FixedBatch, ShardError, StreamingDataset, TooManySkipped, TransformError
from streaming.inprocess import InProcess


def _open(source: str, **options: Any) -> StreamingDataset:
    return StreamingDataset(source, **{"batch": FixedBatch(2), "shuffle": True, "seed": 5, **options})


def _here(dataset: StreamingDataset, *, threads: int = 2, continuous: bool = False) -> InProcess:
    return InProcess(dataset.recipe, threads=threads, continuous=continuous)


def _taken(here: InProcess, units: int) -> Iterator[Any]:
    for _ in range(units):
        header, items = here.take(0)
        found = list(items)
        assert header["count"] == len(found)
        yield from found


def _threads() -> int:
    return sum(thread.name.startswith("shardstream-decode") for thread in threading.enumerate())


def _numbers(dataset: StreamingDataset, epoch: int, start: int = 0) -> list[int]:
    return [n for batch in planned(dataset, epoch)[start:18] for n in batch]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_pass(small: str, threads: int, nothing_left: Callable[[], None]) -> None:
    """A pass gives the plan's batches from where it begins, each with its state; its threads end with it."""
    dataset = _open(small)
    here = _here(dataset, threads=threads)
    here.begin(epoch=3, start=4)
    batches = list(_taken(here, 14))
    assert flat(batches) == _numbers(dataset, 3, 4)
    assert [batch["__state__"]["position"] for batch in batches] == [*range(5, 18), 0]
    assert batches[-1]["__state__"]["epoch"] == 4
    assert _threads() == threads
    here.over()
    assert _threads() == 0
    nothing_left()


def test_single_samples(small: str) -> None:
    """Units of single samples have many items; they have no states of their own."""
    dataset = _open(small, batch=None, shuffle=False)
    here = _here(dataset)
    here.begin(0, 0)
    header, items = here.take(0)
    assert header["count"] > 1
    assert flat(items) == list(range(header["count"]))
    here.close()


def test_a_pass_that_is_begun_again(small: str) -> None:
    """begin() is the start that it names, also where the same was begun before and not ended."""
    dataset = _open(small)
    here = _here(dataset)
    for start in (0, 0, 6):
        here.begin(0, start)
        assert flat(_taken(here, 3)) == _numbers(dataset, 0, start)[:6]
    here.left()
    assert _threads() == 0


def test_continuous_passes(small: str) -> None:
    """Where passes are continuous, the next one goes on on the same threads; where another is wanted it is begun."""
    dataset = _open(small)
    here = _here(dataset, continuous=True)
    here.begin(0, 0)
    first = _threads()
    for epoch in range(3):
        here.begin(epoch, 0)
        work = here._work
        assert flat(_taken(here, 18)) == _numbers(dataset, epoch)
        here.over()
        assert here._work is work
    assert first <= _threads() == 2
    here.begin(7, 2)
    assert flat(_taken(here, 2)) == _numbers(dataset, 7, 2)[:4]
    here.left()
    here.begin(8, 0)
    assert flat(_taken(here, 1)) == _numbers(dataset, 8)[:2]
    here.close()
    assert _threads() == 0


def test_errors_end_the_pass(small: str, nothing_left: Callable[[], None]) -> None:
    """An error comes at its turn and leaves no thread; the next pass is as good as any."""
    dataset = _open(small, shuffle=False, transform=FailAt(5))
    here = _here(dataset)
    here.begin(0, 0)
    assert flat(_taken(here, 2)) == [0, 1, 2, 3]
    with pytest.raises(TransformError):
        here.take(0)
    assert _threads() == 0
    with pytest.raises(ShardError, match="before begin"):
        here.take(0)
    here.begin(0, 3)
    assert flat(_taken(here, 1)) == [6, 7]
    here.close()
    nothing_left()


def test_skips_are_counted_for_each_pass(small: str) -> None:
    """What is skipped stands in the header; the limit is that of one pass."""
    dataset = _open(small, shuffle=False, on_error="skip", skip_limit=2, transform=FailAt(0, 2, 4), batch=FixedBatch(3))
    here = _here(dataset)
    for _ in range(2):
        here.begin(0, 0)
        header, items = here.take(0)
        assert (header["skipped"], flat(items)) == (2, [1])
        here.left()
    here.begin(0, 0)
    here.take(0)
    with pytest.raises(TooManySkipped):
        here.take(0)
    assert _threads() == 0


def test_what_was_done_is_kept(small: str) -> None:
    """Totals go on over passes, and say how many threads there are."""
    here = _here(_open(small))
    [before] = here.totals
    assert before == {"threads": 2}
    for times in (1, 2):
        here.begin(0, 0)
        list(_taken(here, 18))
        here.over()
        [totals] = here.totals
        assert totals["bytes_read"] == times * sum(len(f"{n}text {n}") for n in _numbers(_open(small), 0))


def test_what_is_ready(small: str) -> None:
    """Nothing is ready before a pass, nor behind it."""
    here = _here(_open(small))
    assert not here.ready(0)
    here.begin(0, 0)
    assert len(list(_taken(here, 1))) == 1
    here.close()
    assert not here.ready(0)
    assert not here.closed
