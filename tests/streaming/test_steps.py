"""The steps of a pass, out of the units of one or more workers."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming import PlanError
from streaming.stats import Counters
from streaming.steps import Steps


class Item:
    """Something that a batch can be."""

    def __init__(self, step: int) -> None:
        self.step = step


class _Source:
    """Workers that have `steps` steps together, in units of these sizes."""

    def __init__(self, count: int, steps: int, sizes: list[int], *, lazy: bool = False) -> None:
        self.count, self.taken = count, list[int]()
        self._lazy = lazy
        self._sizes = sizes
        self._left = [list(range(worker, steps, count)) for worker in range(count)]
        self.waiting: set[int] = set()

    def take(self, worker: int) -> tuple[dict[str, Any], Any]:
        """The next unit of a worker."""
        self.taken.append(worker)
        size = self._sizes[len(self.taken) % len(self._sizes)]
        steps, self._left[worker] = self._left[worker][:size], self._left[worker][size:]
        assert steps
        items = (Item(step) for step in steps)
        return {"count": len(steps), "skipped": 1}, items if self._lazy else list(items)

    def ready(self, worker: int) -> bool:
        """Whether it need not be waited for."""
        return worker not in self.waiting


def _steps(source: _Source, left: int) -> tuple[Steps, Counters]:
    counters = Counters()
    return Steps(source, left=left, counters=counters), counters  # type: ignore[arg-type]


@given(st.integers(1, 5), st.integers(0, 40), st.lists(st.integers(1, 7), min_size=1, max_size=5), st.booleans())
def test_steps_come_in_order(count: int, left: int, sizes: list[int], lazy: bool) -> None:
    """Whatever the number of workers and the sizes of their units, steps come in order, each counted, and all."""
    source = _Source(count, left, sizes, lazy=lazy)
    steps, counters = _steps(source, left)
    assert [(done, item.step) for done, item in steps] == [(i + 1, i) for i in range(left)]
    assert next(steps, None) is None
    totals = counters.totals()
    assert totals.get("asked", 0) == totals.get("skipped", 0) == len(source.taken)
    assert not left or 0 <= totals["waited"] <= totals["seconds"]


def test_no_step_no_question() -> None:
    """Where no step is left no worker is asked, and none is ready."""
    steps, counters = _steps(_Source(2, 8, [1]), 0)
    assert not steps.ready()
    assert list(steps) == []
    assert counters.totals() == {}


def test_what_is_ready() -> None:
    """A step is ready where it is held already, or its own worker has it; how often it was is counted."""
    source = _Source(2, 8, [2])
    steps, counters = _steps(source, 8)
    source.waiting = {1}
    assert steps.ready()
    next(steps)
    assert not steps.ready()  # step 1 is worker 1's
    next(steps)
    source.waiting = {0, 1}
    assert steps.ready()  # steps 2 and 3 came with steps 0 and 1
    next(steps)
    next(steps)
    assert not steps.ready()
    assert counters.totals()["asked"] == 2
    assert counters.totals()["ready"] == 1


@pytest.mark.parametrize("lazy", [False, True])
def test_items_are_not_kept(lazy: bool) -> None:
    """An item is nobody's but the trainer's once it is given, before the next one is asked for."""
    steps, _ = _steps(_Source(2, 8, [1], lazy=lazy), 8)
    for _ in range(4):
        item = weakref.ref(next(steps)[1])
        gc.collect()
        assert item() is None


def test_time_counts_once() -> None:
    """What has passed is counted at each call, and no second of it twice."""
    steps, counters = _steps(_Source(1, 8, [1]), 8)
    for _ in steps:
        steps.passed()
    before = counters.totals()["seconds"]
    steps.passed()
    assert counters.totals()["seconds"] >= before


def test_a_pass_that_is_superseded() -> None:
    """Steps that another pass has taken the place of give no more, whatever they hold: that is an error."""
    source = _Source(1, 8, [4])
    steps, _ = _steps(source, 8)
    next(steps)
    steps.check()
    steps.supersede()
    assert not steps.ready()
    for _ in range(2):
        with pytest.raises(PlanError, match="another iteration over this loader has begun, or it was closed"):
            next(steps)
    with pytest.raises(PlanError, match="another iteration"):
        steps.check()
    assert source.taken == [0]
