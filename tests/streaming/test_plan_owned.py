"""Blocks of lanes that one reader reads mostly alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import EPOCHS, budget_plans, plans

from streaming.plan import FixedBatch, Plan, Shuffle
from streaming.plan.owned import MOSTLY, owned

KINDS: dict[str, st.SearchStrategy[Plan]] = {
    "plain": plans(),
    **{kind: budget_plans(kind) for kind in ("bucket", "pad", "pack", "padded", "packed")},
}


pytestmark = pytest.mark.usefixtures("few_bins_throughout")


def _blocks(plan: Plan, made: Any) -> dict[int, tuple[int, int]]:
    """Shard -> its lane and block."""
    order, found = made.order, {}
    for lane in range(plan.lanes):
        for block in range(order.blocks):
            found |= {int(shard): (lane, block) for shard in order.block_parts(lane, block)[0]}
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
@settings(max_examples=30)
def test_alone_means_that_others_read_little_of_the_block(kind: str, data: st.DataObject) -> None:
    """Where a position is said to be a reader's own, most samples of its first sample's block are that reader's, of
    all that the whole epoch has of the block; one reader has everything for itself.
    """
    plan, number = data.draw(KINDS[kind]), data.draw(EPOCHS)
    readers = data.draw(st.sampled_from([n for n in range(1, plan.apart + 1) if plan.apart % n == 0]))
    made = plan.epoch(number)
    cursor, blocks = made.cursor(), _blocks(plan, made)
    taken: Counter[tuple[int, tuple[int, int]]] = Counter()
    total: Counter[tuple[int, int]] = Counter()
    first: dict[int, tuple[int, int]] = {}
    for position in range(plan.total):
        for i, shard in enumerate(cursor.samples(np.array([position])).shards.tolist()):
            first.setdefault(position, blocks[shard]) if i == 0 else None
            taken[position % readers, blocks[shard]] += 1
            total[blocks[shard]] += 1
    for position in range(plan.total):
        alone = made.alone(np.array([position]), readers)
        if readers == 1:
            assert alone
        elif alone and kind in ("plain", "bucket", "pad", "padded"):
            block = first[position]
            assert taken[position % readers, block] >= MOSTLY * total[block] - 1e-9
        elif alone:  # bins, not samples, are counted
            assert taken[position % readers, first[position]] > 0


def test_most_of_a_long_epoch_is_the_readers_own() -> None:
    """With many batches in each lane, all but the ends of lanes belong to one reader; several positions at a time are
    own only if each is.
    """
    plan = Plan.make(np.full(24, 100), batch=FixedBatch(5), shuffle=Shuffle(shards=2), lanes=4, world_size=4)
    made = plan.epoch(0)
    own = [made.alone(np.array([p]), 4) for p in range(plan.total)]
    assert all(own)
    assert made.alone(np.arange(40), 4)
    longer = Plan.make(np.full(26, 100), batch=FixedBatch(5), shuffle=Shuffle(shards=2), lanes=4, world_size=4)
    own = [longer.epoch(0).alone(np.array([p]), 4) for p in range(longer.total)]
    assert own[:300] == [True] * 300
    assert not any(own[-10:])
    assert not longer.epoch(0).alone(np.array([0, longer.total - 1]), 4)


def test_a_block_that_is_left_to_all_in_part() -> None:
    """A block counts as own from four fifths on; one of no samples does too."""
    starts = np.array([[0, 100, 200, 200], [0, 100, 180, 180]])
    assert owned(starts, 180).tolist() == [[True, True, True], [True, True, True]]
    assert owned(starts, 179).tolist() == [[True, False, True], [True, True, True]]
