"""One pass over the shards: lanes, units, blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from plans import SHUFFLES

from streaming import Shuffle
from streaming.plan.keys import permutation
from streaming.plan.order import Order
from streaming.plan.shuffle import block_order

COUNTS = st.lists(st.sampled_from([0, 1]) | st.integers(0, 9), max_size=14)


@st.composite
def orders(draw: st.DrawFn, *, sticky: bool | None = None) -> Order:
    """Any order, of single shards or of units of several."""
    counts, unit = np.array(draw(COUNTS), dtype=np.int64), draw(st.integers(1, 4))
    units = -(-len(counts) // unit)
    costs = np.array(draw(st.lists(st.integers(0, 50), min_size=units, max_size=units)), dtype=np.int64)
    return Order(
        counts, shuffle=draw(SHUFFLES), seed=draw(st.integers(0, 9)), epoch=draw(st.integers(0, 3)),
        lanes=draw(st.integers(1, 5)), unit=unit, block=draw(st.none() | st.integers(1, 4)),
        costs=costs if unit > 1 else draw(st.sampled_from([None, costs])),
        sticky=draw(st.booleans()) if sticky is None else sticky,
    )  # fmt: skip


@given(orders(), st.integers(1, 4))
def test_each_shard_is_in_one_lane(order: Order, unit: int) -> None:
    """Once, and all shards of a unit one after the other, in their own order."""
    found = order.lane_shards[order.lane_shards >= 0].tolist()
    assert sorted(found) == list(range(len(order.counts)))
    each = order.block_shards // order.block_units
    for units, shards in zip(order.lane_units.tolist(), order.lane_shards.tolist(), strict=True):
        wanted = [s for u in units if u >= 0 for s in range(u * each, min((u + 1) * each, len(order.counts)))]
        assert [s for s in shards if s >= 0] == wanted


@given(orders())
def test_blocks_part_the_lanes(order: Order) -> None:
    """Block after block gives the shards of a lane; none is longer than it should be, and sums follow them."""
    sums = order.block_sums(np.stack([order.counts, order.counts**2], axis=1))
    assert sums.shape == (len(order.lane_shards), order.blocks + 1, 2)
    for lane, shards in enumerate(order.lane_shards.tolist()):
        parts = [order.block_parts(lane, block) for block in range(order.blocks)]
        assert [s for block, _ in parts for s in block.tolist()] == [s for s in shards if s >= 0]
        for block, (own, starts) in enumerate(parts):
            assert len(own) <= order.block_shards
            counts = order.counts[own]
            assert np.diff(starts).tolist() == counts.tolist()
            assert (sums[lane, block + 1] - sums[lane, block]).tolist() == [counts.sum(), (counts**2).sum()]
            laid_out = block_order(counts, order.shuffle, order.seed, epoch=order.epoch, lane=lane, block=block)
            assert order.block_order(lane, block).tolist() == laid_out.tolist()
        assert sums[lane, 0].tolist() == [0, 0]


@given(orders(sticky=False))
def test_units_are_permuted_by_seed_and_epoch(order: Order) -> None:
    """With shuffle the first units of the lanes are the first of the permutation; without, of the dataset."""
    units = int((order.lane_units >= 0).sum())
    wanted = permutation(units, order.seed, "shards", order.epoch).tolist() if order.shuffle else list(range(units))
    lanes = len(order.lane_units)
    rounds = [sorted(u for u in dealt.tolist() if u >= 0) for dealt in order.lane_units.T]
    assert [r for r in rounds if r] == [sorted(wanted[i : i + lanes]) for i in range(0, units, lanes)]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 6), st.integers(0, 5))
def test_lanes_carry_nearly_equal_cost(costs: list[int], lanes: int, seed: int) -> None:
    """They differ by no more than the costliest unit, whatever the samples of the shards."""
    counts = np.ones(2 * len(costs), dtype=np.int64)
    order = Order(counts, shuffle=Shuffle(1), seed=seed, epoch=0, lanes=lanes, unit=2, costs=np.array(costs))
    loads = [sum(costs[u] for u in row if u >= 0) for row in order.lane_units.tolist()]
    assert max(loads) - min(loads) <= max(costs)


def test_blocks_hold_the_shards_that_are_mixed() -> None:
    """As many units as that takes; without shuffle single units; or as many as asked for."""
    counts: Any = np.full(12, 3)
    arguments: dict[str, Any] = {"seed": 0, "epoch": 0, "lanes": 1}
    for shuffle, unit, block, wanted in [
        (Shuffle(4), 1, None, 4), (Shuffle(4), 3, None, 6), (Shuffle(2), 3, None, 3), (None, 1, None, 1),
        (None, 3, None, 3), (Shuffle(4), 3, 4, 12), (None, 2, 2, 4),
    ]:  # fmt: skip
        order = Order(counts, shuffle=shuffle, unit=unit, block=block, costs=np.full(-(-12 // unit), 1), **arguments)
        assert order.block_shards == wanted
        assert order.blocks == 12 // wanted


def test_an_order_of_nothing() -> None:
    """No shard, in units or not, has no block."""
    for unit in (1, 3):
        for shuffle in (None, Shuffle()):
            order = Order(np.zeros(0, np.int64), shuffle=shuffle, seed=0, epoch=0, lanes=2, unit=unit)
            assert order.blocks == 0
            assert order.block_sums(np.zeros((0, 3))).tolist() == [[[0, 0, 0]], [[0, 0, 0]]]
