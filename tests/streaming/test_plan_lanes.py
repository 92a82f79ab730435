"""How many lanes, and which shards each gets."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming import FixedBatch, Plan
from streaming.plan.keys import permutation
from streaming.plan.lanes import MOST, MOST_SINGLES, choose_lanes, deal, permuted

COSTS = st.lists(st.integers(0, 9) | st.integers(0, 1000), max_size=60)


@given(st.integers(0, 5000), st.integers(1, 20))
def test_the_default_is_the_largest_of_its_kind(shards: int, each: int) -> None:
    """It is the largest 2**k or 3 * 2**k up to the limit with `each` shards a lane, and 1 where that is none."""
    candidates = sorted({base << k for base in (1, 3) for k in range(10) if base << k <= MOST})
    assert choose_lanes(shards, each) == max([n for n in candidates if n * each <= shards], default=1)


@pytest.mark.parametrize(("shards", "lanes"), [(0, 1), (7, 1), (8, 2), (12, 3), (16, 4), (332, 64), (100_000, 192)])
def test_lanes_of_known_datasets(shards: int, lanes: int) -> None:
    """A few defaults, pinned."""
    assert choose_lanes(shards, 4) == lanes


@given(COSTS, st.integers(1, 20), st.integers())
def test_each_shard_is_dealt_once(costs: list[int], lanes: int, seed: int) -> None:
    """Lanes hold every shard once, in rounds of the order, and are filled from the front."""
    order = permutation(len(costs), seed, "shards")
    table = deal(order, np.array(costs, dtype=np.int64), lanes)
    assert table.shape == (lanes, -(-len(costs) // lanes))
    assert table.dtype == np.int64
    for number, dealt in enumerate(table.T):
        slice_ = order[number * lanes : (number + 1) * lanes].tolist()
        assert sorted(dealt.tolist()) == sorted(slice_ + [-1] * (lanes - len(slice_)))
    for lane in table.tolist():
        assert -1 not in lane[:-1]


@given(COSTS, st.integers(1, 20), st.integers())
def test_loads_differ_by_at_most_the_largest_shard(costs: list[int], lanes: int, seed: int) -> None:
    """The heaviest lane carries no more than the lightest and one shard."""
    table = deal(permutation(len(costs), seed, "shards"), np.array(costs, dtype=np.int64), lanes)
    loads = [sum(costs[shard] for shard in lane if shard >= 0) for lane in table.tolist()]
    assert max(loads) - min(loads) <= max(costs, default=0)


@given(COSTS, st.integers(1, 20), st.integers(), st.integers(0, 2**31))
def test_permuted_lanes_keep_their_shards(costs: list[int], lanes: int, seed: int, epoch: int) -> None:
    """Each has those that it had, filled from the front, and what was dealt stays as it is."""
    table = deal(permutation(len(costs), seed, "shards"), np.array(costs, dtype=np.int64), lanes)
    before = table.copy()
    found = permuted(table, seed, epoch)
    assert (table == before).all()
    assert ((found >= 0) == (table >= 0)).all()
    assert [sorted(lane) for lane in found.tolist()] == [sorted(lane) for lane in table.tolist()]


def test_each_lane_is_permuted_by_seed_epoch_and_lane() -> None:
    """Lanes have orders of their own, new in each epoch and with each seed."""
    table = np.tile(np.arange(12), (4, 1))
    orders = [row for seed in (0, 1) for epoch in range(3) for row in permuted(table, seed, epoch).tolist()]
    assert len({tuple(order) for order in orders}) == 2 * 3 * 4


def test_one_lane_is_the_order_itself() -> None:
    """With a single lane nothing is sorted by cost, nor is the order changed in place."""
    order = np.array([2, 0, 1])
    table = deal(order, np.array([5, 9, 1]), lanes=1)
    assert table.tolist() == [[2, 0, 1]]
    assert deal(order.astype(np.int32), np.array([5, 9, 1]), lanes=1).dtype == np.int64


def test_more_lanes_than_shards_leaves_some_empty() -> None:
    """Each shard then has a lane of its own."""
    table = deal(np.arange(3), np.array([4, 4, 4]), lanes=5)
    assert sorted(chain(*table.tolist())) == [-1, -1, 0, 1, 2]
    assert deal(np.arange(0), np.zeros(0, dtype=np.int64), lanes=5).shape == (5, 0)


@pytest.mark.parametrize(("each_shard", "lanes"), [(1_000, 192), (100_000, 64), (10_000_000, 1)])
def test_large_shards_make_fewer_lanes(each_shard: int, lanes: int) -> None:
    """A block of each lane, all together, holds no more samples than a reader may keep the order of."""
    assert choose_lanes(1_000, 4, 1_000 * each_shard) == lanes


def test_single_samples_make_fewer_lanes() -> None:
    """A plan of single samples takes no more lanes than a process can keep the shards of open."""
    counts = np.full(1_000, 10)
    assert Plan.make(counts, batch=FixedBatch(2), shuffle=True).lanes == MOST
    assert Plan.make(counts, shuffle=True).lanes == MOST_SINGLES
    assert Plan.make(counts, shuffle=True, lanes=96).lanes == 96
