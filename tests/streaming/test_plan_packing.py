"""Bins: how many are needed, what goes into each, and how evenly they are filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plans import KINDS, Sample, straight, values

from streaming import CostBudget, IndexMismatch, PixelBudget, Plan, Shuffle
from streaming.plan import ColumnStatistics
from streaming.plan.buckets import room
from streaming.plan.packing import Packing, make_packing, pack

COSTS = st.lists(st.integers(1, 50) | st.sampled_from([1, 7, 50]), max_size=40)


def make(tokens: list[Any], most: int, **options: Any) -> Plan:
    """A plan that packs shards of samples with these costs."""
    statistics = ColumnStatistics([{"tokens": np.asarray(t)} for t in tokens])
    return Plan.make(statistics, batch=CostBudget("tokens", most, pad=False, **options), shuffle=Shuffle(2, 50), seed=3)


def costs_of(plan: Plan, batch: list[Sample]) -> list[int]:
    statistics: Any = plan.statistics
    return [int(statistics.columns(shard)["tokens"][i]) for shard, i in batch]


@given(COSTS, st.integers(1, 12))
def test_the_largest_goes_first_into_the_emptiest(costs: list[int], bins: int) -> None:
    """As a loop over samples and bins does it, of equal ones the first."""
    load, wanted = [0] * bins, {}
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        wanted[i] = load.index(min(load))
        load[wanted[i]] += costs[i]
    assert pack(np.array(costs, dtype=np.int64), bins).tolist() == [wanted[i] for i in range(len(costs))]


@given(COSTS, st.integers(1, 12))
def test_bins_differ_by_no_more_than_the_largest_sample(costs: list[int], bins: int) -> None:
    """So none is empty where there are as many samples as bins."""
    assume(costs)
    load = np.bincount(pack(np.array(costs), bins), costs, minlength=bins)
    assert load.max() - load.min() <= max(costs)
    assert len(costs) < bins or load.min() > 0


@given(st.sampled_from(KINDS), st.lists(st.integers(0, 80), min_size=1, max_size=6), st.integers(0, 2**32), st.data())
@settings(max_examples=60)
def test_as_many_bins_as_were_counted_are_enough(kind: str, counts: list[int], seed: int, data: st.DataObject) -> None:
    """No bin is over the budget, none is empty, and each sample is in one; a few more bins than the sum needs."""
    random = np.random.default_rng(seed)
    tokens = [values(kind, n, random, 200) for n in counts]
    every = np.concatenate(tokens)
    most = data.draw(st.integers(1, 60) | st.sampled_from([200, 201, 1000, 5000, 10**6]))
    plan = make(tokens, most)
    groups = plan.groups
    assert isinstance(groups, Packing)
    batches = straight(plan.epoch(1))
    assert len(batches) == groups.total == plan.total
    assert plan.oversize == groups.alone.sum() == (every > most).sum()
    assert sorted(s for batch in batches for s in batch) == [(s, i) for s, n in enumerate(counts) for i in range(n)]
    for batch in batches:
        costs = costs_of(plan, batch)
        assert costs
        assert sum(costs) <= most or len(costs) == 1
    within = every[every <= most]
    large = (within > most // 2).sum()
    assert groups.bins.sum() >= max(large, -(-within.sum() // most))
    assert (
        groups.bins <= np.add.reduceat([(t <= most).sum() for t in tokens], range(0, len(counts), groups.unit))
    ).all()


def test_bins_are_filled_evenly() -> None:
    """With samples far below the budget, bins of an epoch are filled to within 3 % of it, and of one another."""
    random = np.random.default_rng(1)
    plan = make([values("heavy", 2000, random, 400) for _ in range(6)], 20_000)
    fills = np.array([sum(costs_of(plan, batch)) for batch in straight(plan.epoch(0))])
    assert fills.max() <= 20_000
    assert fills.mean() >= 0.97 * 20_000
    for epoch in (0, 1):
        batches = straight(plan.epoch(epoch))[: plan.total // 8 * 8]
        costs = np.array([sum(costs_of(plan, batch)) for batch in batches]).reshape(-1, 8)
        assert (costs.max(axis=1) <= 1.03 * costs.mean(axis=1)).all()


@pytest.mark.parametrize("giant", [10**3, 10**9])
def test_a_giant_takes_a_bin_and_no_more(giant: int) -> None:
    """One sample a million times the budget does not change how the others are packed."""
    plain, with_giant = make([[3] * 1000] * 4, 100), make([[3] * 1000 + [giant]] + [[3] * 1000] * 3, 100)
    assert with_giant.total == plain.total + 1
    batches = [batch for batch in straight(with_giant.epoch(0)) if (0, 1000) in batch]
    assert batches == [[(0, 1000)]]
    assert make([[3] * 1000 + [giant]] + [[3] * 1000] * 3, 100, oversize="skip").total == plain.total


@pytest.mark.parametrize(
    ("tokens", "most", "bins"),
    [
        ([[5, 5, 5, 5]], 5, 4),  # as large as the budget: one each
        ([[6] * 10], 11, 10),  # no two fit
        ([[1] * 10], 10, 2),  # one would do; the count allows for an uneven filling
        ([[0] * 10], 1 << 20, 1),
        ([[7]], 100, 1),
        ([[100] * 3 + [1] * 3], 100, 4),  # three are full, and the rest fits into a fourth
        ([[1] * 1000], 10, 112),
        ([[], []], 10, 0),
        ([], 10, 0),
    ],
)
def test_how_many_bins(tokens: list[list[int]], most: int, bins: int) -> None:
    """Few samples, worked out by hand."""
    statistics = ColumnStatistics([{"tokens": np.array(t, dtype=np.int64)} for t in tokens])
    over = np.zeros(len(tokens), dtype=np.int64)
    packing = make_packing(CostBudget("tokens", most, pad=False), statistics, over)
    assert packing.bins.sum() == bins
    assert packing.total == packing.full == bins


def test_shards_are_packed_in_units() -> None:
    """Where a shard fills few bins several form a unit, so that rounding up to whole bins costs little."""
    small = make([[5] * 4] * 200, 100).groups
    large = make([[5] * 4000] * 3, 100).groups
    assert isinstance(small, Packing)
    assert isinstance(large, Packing)
    assert small.unit > 1
    assert small.total <= 1.1 * 200 * 4 * 5 / 100
    assert large.unit == 1


def test_a_block_of_a_lane_is_packed_as_a_whole() -> None:
    """The samples of a bin are of one block of one lane, and neighbours in an epoch take turns over the lanes."""
    plan = make([[5, 9, 2, 30] * 60] * 40, 100)
    epoch: Any = plan.epoch(2)
    lanes = []
    for position, batch in enumerate(straight(epoch)):
        lane, block, _ = epoch.locate(position)
        shards, _ = epoch.order.block_parts(lane, block)
        assert {shard for shard, _ in batch} <= set(shards.tolist())
        lanes.append(lane)
    assert plan.lanes > 1
    assert lanes[: plan.lanes * 2] == list(range(plan.lanes)) * 2


def test_epochs_are_packed_anew() -> None:
    """Other epochs have other bins, as many; without shuffle all are the same."""
    plan = make([[5, 9, 2, 30] * 30] * 6, 100)
    first, second = (straight(plan.epoch(n)) for n in (0, 1))
    assert len(first) == len(second)
    assert {tuple(sorted(b)) for b in first} != {tuple(sorted(b)) for b in second}
    plain = Plan.make(plan.statistics, batch=plan.batch)  # type: ignore[arg-type]
    assert straight(plain.epoch(0)) == straight(plain.epoch(1))


@pytest.mark.parametrize("changed", [101, 99, 0])
def test_columns_that_changed_are_noticed(changed: int) -> None:
    """Sidecars with more samples over the budget than were counted, or larger ones, are no ground to pack on."""
    plan = make([[50] * 40 + [101]], 100)
    statistics: Any = plan.statistics
    statistics.columns(0)["tokens"][:] = changed
    with pytest.raises(IndexMismatch, match="do not have the costs"):
        plan.epoch(0).cursor().samples(np.array([0]))


@given(st.lists(st.tuples(st.integers(2, 30), st.integers(1, 25)), min_size=2, max_size=5), st.integers(2, 60))
def test_runs_that_can_be_packed_apart_can_be_packed_together(runs: list[tuple[int, int]], most: int) -> None:
    """Whatever unlike runs of shards meet in a block, the sum of their bins is enough."""
    samples = [np.minimum(1 + np.arange(n) * step % most, most) for n, step in runs]
    budget, none = CostBudget("tokens", most, pad=False), np.zeros(1, dtype=np.int64)
    bins = [int(make_packing(budget, ColumnStatistics([{"tokens": s}]), none).bins.sum()) for s in samples]
    every = np.concatenate(samples)
    load = np.bincount(pack(every, sum(bins)), every)
    assert load.max() <= most


@given(st.integers(1, 10**6), st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 2000)), min_size=1, max_size=30))
@settings(max_examples=50)
def test_images_that_are_scaled_down_count_so(most: int, sizes: list[tuple[int, int]]) -> None:
    """With `longest`, bins are counted from bounds of the scaled sizes and never too few."""
    height, width = np.array(sizes).T
    statistics = ColumnStatistics([{"height": height, "width": width}])
    plan = Plan.make(statistics, batch=PixelBudget(most, mode="pack", longest=100))
    assert isinstance(plan.groups, Packing)
    costs = plan.groups.costs.of_samples(statistics.columns(0))
    for batch in straight(plan.epoch(0)):
        assert sum(costs[i] for _, i in batch) <= most or len(batch) == 1


@given(st.floats(0.1, 1e9), st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_room_for_samples_of_a_size(most: float, sizes: list[float]) -> None:
    """As many as fit, at least 1, at most 65,536; one more would not."""
    held = room(np.array(sizes)[:, None], most)
    for size, n in zip(sizes, held.tolist(), strict=True):
        assert n == int(n)
        assert 1 <= n <= 1 << 16
        assert n * size <= most or n == 1
        assert (n + 1.000001) * size > most * (1 - 1e-9) or n >= (1 << 16) - 1
