"""A part of a dataset's samples: its counts, histograms and columns, and the way back to the whole."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import Asked, sized

from shardwriter.aggregate import SIZE
from streaming import PlanError
from streaming.plan import Chosen, ColumnStatistics, CostBudget, PixelBudget, Plan
from streaming.plan.chosen import originals
from streaming.plan.where import Where

WHERES = ["pixels > 300", "width > height", "width % 2 == 0", "pixels < 0", "True", "width > 100 or height < 5"]


def by_hand(base: ColumnStatistics, keep: Any, only: list[int] | None) -> tuple[ColumnStatistics, list[Any]]:
    """The same samples as a dataset of their own, and their numbers in the whole."""
    shards, numbers = [], []
    for shard in range(len(base.counts)):
        columns = base.columns(shard)
        n = len(columns["width"])
        mask = keep(columns) if only is None or shard in only else np.ones(n, dtype=bool)
        shards.append({name: values[mask] for name, values in columns.items()})
        numbers.append(np.flatnonzero(mask))
    return ColumnStatistics(shards), numbers


@st.composite
def chosen(draw: st.DrawFn) -> tuple[Chosen, ColumnStatistics, list[Any]]:
    """A part of a dataset, the same by hand, and the numbers of its samples in the whole."""
    base, keep = draw(sized(column="pixels")), Where(draw(st.sampled_from(WHERES)))
    shards = range(len(base.counts))
    only = draw(st.none() | st.lists(st.sampled_from(shards), unique=True)) if shards else None
    return (Chosen(base, keep, only=only), *by_hand(base, keep, only))


@given(chosen())
@settings(max_examples=60)
def test_it_is_as_if_there_were_no_others(drawn: tuple[Chosen, ColumnStatistics, list[Any]]) -> None:
    """Counts, sums, columns and histograms are those of a dataset with these samples alone."""
    part, plain, _ = drawn
    assert part.counts.tolist() == plain.counts.tolist()
    for name in ("width", "pixels", "nothing"):
        assert part.sums(name).tolist() == plain.sums(name).tolist()
    for shard in range(len(plain.counts)):
        here, there = part.columns(shard), plain.columns(shard)
        assert here.keys() == there.keys()
        assert all(np.array_equal(here[name], there[name]) for name in here)
    for name in ("pixels", SIZE):
        found, wanted = part.histogram(name), plain.histogram(name)
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            assert cells(found) == cells(wanted)
            at = np.searchsorted(found.cells, wanted.cells)
            assert (found.bounds[at, 0] <= wanted.bounds[:, 0]).all()
            assert (found.bounds[at, 1] >= wanted.bounds[:, 1]).all()


def cells(table: Any) -> list[dict[int, int]]:
    """Samples of each cell that has any, by shard."""
    return [{int(c): int(n) for c, n in zip(table.cells, row, strict=True) if n} for row in table.counts]


@given(chosen())
@settings(max_examples=60)
def test_samples_are_found_again_in_the_whole(drawn: tuple[Chosen, ColumnStatistics, list[Any]]) -> None:
    """Number i of a shard's chosen samples is the i-th that holds, also for a part of a part and after pickling."""
    part, _, numbers = drawn
    again = pickle.loads(pickle.dumps(part))
    narrower = Chosen(again, Where("height % 3 != 0"))
    for shard, wanted in enumerate(numbers):
        indices = part.indices(shard)
        assert (np.arange(len(wanted)) if indices is None else indices).tolist() == wanted.tolist()
        n = len(wanted)
        for statistics in (part, again):
            found = originals(statistics, np.full(n, shard), np.arange(n))
            assert found.tolist() == wanted.tolist()
        heights = part.columns(shard)["height"]
        m = int(narrower.counts[shard])
        twice = originals(narrower, np.full(m, shard), np.arange(m))
        assert twice.tolist() == wanted[heights % 3 != 0].tolist()


def test_samples_of_several_shards_at_once() -> None:
    """In any order, repeated or none; where nothing was chosen numbers stay as they are."""
    base = ColumnStatistics([{"c": np.arange(6)}, {"c": np.arange(10, 14)}])
    part = Chosen(base, lambda columns: columns["c"] % 2 == 1)
    shards, indices = np.array([1, 0, 1, 0, 0]), np.array([1, 2, 0, 0, 0])
    assert originals(part, shards, indices).tolist() == [3, 5, 1, 1, 1]
    assert originals(part, np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []
    for plain in (base, None):
        assert originals(plain, shards, indices) is indices


def test_only_the_shards_that_were_named_are_looked_at() -> None:
    """Others keep all their samples, and their columns are not asked for."""
    base = Asked([{"c": np.arange(n)} for n in (3, 4, 5)])
    part = Chosen(base, lambda columns: columns["c"] > 1, only=[1])
    part.histogram("c")
    part.sums("c")
    assert part.indices(0) is None
    assert set(base.asked) == {1}
    assert part.counts.tolist() == [3, 2, 5]


@given(chosen(), st.sampled_from(["bucket", "pad", "pack"]))
@settings(max_examples=30)
def test_plans_know_only_what_is_chosen(drawn: tuple[Chosen, ColumnStatistics, list[Any]], mode: Any) -> None:
    """A plan has each chosen sample once, within the budget, and none of the others."""
    part, plain, _ = drawn
    plan = Plan.make(part, batch=PixelBudget(50_000, mode=mode), shuffle=True, tail="uneven")
    epoch = plan.epoch(0)
    refs = epoch.cursor().samples(np.arange(epoch.total))
    given = sorted(zip(refs.shards.tolist(), refs.indices.tolist(), strict=True))
    assert given == [(s, i) for s, n in enumerate(plain.counts) for i in range(n)]


def test_values_below_zero_can_be_left_out() -> None:
    """A budget refuses them, with a predicate that leaves them out it does not."""
    base = ColumnStatistics([{"c": np.array([3, -1, 4])}, {"c": np.array([-2])}])
    for pad in (True, False):
        with pytest.raises(PlanError, match="values below 0, such as -2"):
            Plan.make(base, batch=CostBudget("c", 10, pad=pad))
        assert Plan.make(Chosen(base, Where("c >= 0")), batch=CostBudget("c", 10, pad=pad)).samples == 2


def test_images_of_unknown_size_can_be_left_out() -> None:
    """The same for images that the index does not know the size of."""
    base = ColumnStatistics([{"width": np.array([3, 0, 400]), "height": np.array([5, 0, 300])}])
    for mode in ("bucket", "pad", "pack"):
        budget: Any = PixelBudget(200_000, mode=mode)
        with pytest.raises(PlanError, match="1 samples have no image"):
            Plan.make(base, batch=budget)
        assert Plan.make(Chosen(base, Where("pixels > 0")), batch=budget).samples == 2
