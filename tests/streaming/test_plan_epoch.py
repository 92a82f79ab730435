"""One epoch of a plan: which samples form the micro-batch at a position."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from plans import EPOCHS, Sample, all_samples, batch_samples, block_samples, by_hand, lane_order, plans

from streaming import FixedBatch, Plan, PlanError, Shuffle
from streaming.plan import EpochPlan, SampleRefs
from streaming.plan.keys import permutation
from streaming.plan.order import Order
from streaming.plan.shuffle import block_order


def pairs(refs: SampleRefs) -> list[Sample]:
    return list(zip(refs.shards.tolist(), refs.indices.tolist(), strict=True))


def make(counts: list[int], *, batch: int = 1, shuffle: Shuffle | None = None, lanes: int = 1) -> EpochPlan:
    order = Order(np.array(counts, dtype=np.int64), shuffle=shuffle, seed=3, epoch=1, lanes=lanes)
    return EpochPlan(order, np.array([batch]))


@given(plans(), EPOCHS, st.integers(1, 3))
def test_positions_give_what_a_loop_over_lanes_gives(plan: Plan, number: int, capacity: int) -> None:
    """Every micro-batch is as by hand, all but the last are full, and a cursor may keep few blocks."""
    epoch = plan.epoch(number)
    straight = by_hand(epoch)
    assert epoch.total == plan.total == len(straight)
    assert all(len(batch) == batch_samples(plan) for batch in straight[: plan.full])
    cursor = epoch.cursor(capacity)
    assert [pairs(cursor.samples(np.array([p]))) for p in range(epoch.total)] == straight
    for position, batch in enumerate(straight):
        assert [s for lane, _, low, high in epoch.runs(position) for s in lane_order(epoch, lane)[low:high]] == batch


@given(plans(), EPOCHS, st.data())
def test_positions_may_be_asked_for_in_any_order(plan: Plan, number: int, data: st.DataObject) -> None:
    """Several positions at once, unordered and repeated as where a padded epoch starts over, give each its own."""
    epoch = plan.epoch(number)
    straight = by_hand(epoch)
    wanted = data.draw(st.lists(st.integers(0, len(straight) - 1), max_size=30)) if straight else []
    refs = epoch.cursor(2).samples(np.array(wanted, dtype=np.int64))
    assert pairs(refs) == [s for position in wanted for s in straight[position]]
    assert refs.shards.dtype == refs.indices.dtype == np.int64
    assert len(refs) == len(refs.shards) == len(refs.indices)


@given(plans(), EPOCHS)
def test_nothing_crosses_the_border_of_a_block(plan: Plan, number: int) -> None:
    """A block holds the samples of its own shards, all of them, and starts where the one before it ends."""
    epoch = plan.epoch(number)
    each = plan.shuffle.shards if plan.shuffle else 1
    for lane, shards in enumerate(epoch.order.lane_shards.tolist()):
        place = 0
        for block in range(-(-len(shards) // each)):
            refs = block_samples(epoch, lane, block)
            own = [s for s in shards[block * each : (block + 1) * each] if s >= 0]
            assert sorted(refs) == sorted((s, i) for s in own for i in range(plan.counts[s]))
            if refs:
                assert epoch.block_of(lane, 0, place) == (block, place, place + len(refs))
                assert epoch.block_of(lane, 0, place + len(refs) - 1) == (block, place, place + len(refs))
            place += len(refs)


@given(plans(), EPOCHS)
def test_shards_are_permuted_by_seed_and_epoch(plan: Plan, number: int) -> None:
    """With shuffle, the first shards of the lanes are the first of the epoch's permutation; without, of the dataset."""
    epoch, n = replace(plan, sticky=False).epoch(number), len(plan.counts)
    order = permutation(n, plan.seed, "shards", number).tolist() if plan.shuffle else list(range(n))
    rounds = [[s for s in dealt.tolist() if s >= 0] for dealt in epoch.order.lane_shards.T]
    assert [sorted(dealt) for dealt in rounds] == [sorted(order[i : i + plan.lanes]) for i in range(0, n, plan.lanes)]


def test_leftovers_are_pooled_in_the_order_of_the_lanes() -> None:
    """What is short of a micro-batch at the ends of the lanes forms the last ones together."""
    epoch = make([5, 4, 2], batch=3, lanes=3)
    assert [epoch.runs(p) for p in range(4)] == [
        [(0, 0, 0, 3)],
        [(1, 0, 0, 3)],
        [(0, 0, 3, 5), (1, 0, 3, 4)],
        [(2, 0, 0, 2)],
    ]
    assert [pairs(epoch.cursor().samples(np.array([p]))) for p in (2, 3)] == [
        [(0, 3), (0, 4), (1, 3)],
        [(2, 0), (2, 1)],
    ]


@pytest.mark.parametrize("shuffle", [None, Shuffle(2, 3)])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("counts", [[], [0], [0, 0, 0]])
def test_a_dataset_without_samples_has_no_positions(counts: list[int], batch: int, shuffle: Any) -> None:
    """No shard, or only empty ones, on one lane or more."""
    for lanes in (1, 2, 5):
        epoch = make(counts, batch=batch, shuffle=shuffle, lanes=lanes)
        assert epoch.total == 0
        assert pairs(epoch.cursor().samples(np.zeros(0, dtype=np.int64))) == []


def test_empty_shards_are_passed_over() -> None:
    """They take no position, at the ends of a dataset or in its midst, whatever the lanes."""
    counts = [0, 2, 0, 0, 3, 1, 0]
    for lanes in (1, 2, 3, 9):
        for shuffle in (None, Shuffle(1, 2), Shuffle(3, 2)):
            for batch in (1, 2):
                samples = [s for b in by_hand(make(counts, batch=batch, shuffle=shuffle, lanes=lanes)) for s in b]
                assert sorted(samples) == all_samples(counts)


def test_a_shard_of_any_size_is_read_in_order_without_laying_it_out() -> None:
    """10**15 samples in one shard: the last micro-batch costs what the first does."""
    plan = Plan.make(np.array([10**15, 3]), batch=FixedBatch(64))
    cursor = plan.epoch(0).cursor()
    assert pairs(cursor.samples(np.array([0]))) == [(0, i) for i in range(64)]
    last = 10**15 // 64 - 1
    assert pairs(cursor.samples(np.array([last])))[::63] == [(0, 64 * last), (0, 64 * last + 63)]
    assert pairs(cursor.samples(np.array([last + 1]))) == [(1, 0), (1, 1), (1, 2)]
    singles = Plan.make(np.array([2**40, 3])).epoch(0).cursor()
    assert pairs(singles.samples(np.array([2**40 + 2, 2**33, 0]))) == [(1, 2), (0, 2**33), (0, 0)]


def test_a_shuffled_block_of_4_billion_samples_is_refused() -> None:
    """It can't be laid out; the error says so before memory is taken."""
    epoch = make([2**32], shuffle=Shuffle())
    with pytest.raises(PlanError, match="a block of 4294967296 samples"):
        epoch.cursor().samples(np.array([0]))


@given(plans(), EPOCHS)
@example(Plan.make(np.full(6, 5), shuffle=Shuffle(2, 100), lanes=1), 0)
@example(Plan.make(np.full(12, 5), shuffle=Shuffle(3, 4), lanes=2), 1)
def test_each_block_has_random_numbers_of_its_own(plan: Plan, number: int) -> None:
    """The order in a block is that of its seed, epoch, lane and number, counted through its shards."""
    epoch, each = plan.epoch(number), plan.shuffle.shards if plan.shuffle else 1
    for lane, shards in enumerate(epoch.order.lane_shards.tolist()):
        for block in range(-(-len(shards) // each)):
            own = [s for s in shards[block * each : (block + 1) * each] if s >= 0]
            inside = [(s, i) for s in own for i in range(plan.counts[s])]
            order = block_order(plan.counts[own], plan.shuffle, plan.seed, epoch=number, lane=lane, block=block)
            assert block_samples(epoch, lane, block) == [inside[i] for i in order.tolist()]
