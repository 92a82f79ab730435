"""Plans of many shapes for property tests, and what they should give, worked out the slow and plain way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from streaming.plan import FixedBatch, Plan, Share, Shuffle
from streaming.plan.layout import TAILS

Sample = tuple[int, int]
"""(shard, index)"""
Given = tuple[list[Sample], bool]
"""The samples of a position, and whether they are a repeat."""

COUNTS = st.lists(st.sampled_from([0, 1, 2]) | st.integers(0, 14), max_size=9) | st.lists(
    st.integers(0, 70), max_size=1
)
"""Samples of shards: empty ones, single samples, no shard at all, and one giant."""
RANKS = st.integers(1, 16)
WORKERS = st.integers(0, 5)
"""Workers of each rank; 0 is the trainer's own process."""
BUFFERS = st.integers(1, 9) | st.just(10_000)
SHUFFLES = (
    st.builds(Shuffle, shards=st.integers(1, 2), buffer=BUFFERS)
    | st.builds(Shuffle, shards=st.integers(1, 5), buffer=BUFFERS)
    | st.none()
)
BATCHES = st.none() | st.builds(FixedBatch, st.integers(1, 9))
SEEDS = st.integers(-5, 5) | st.integers()
EPOCHS = st.integers(0, 5) | st.integers(0, 2**31 - 1)


@st.composite
def plans(draw: st.DrawFn, *, counts: st.SearchStrategy[list[int]] = COUNTS, tails: Any = TAILS) -> Plan:
    """Any plan that can be made."""
    return Plan.make(
        np.array(draw(counts), dtype=np.int64),
        batch=draw(BATCHES),
        shuffle=draw(SHUFFLES) or False,
        seed=draw(SEEDS),
        lanes=draw(st.none() | st.integers(1, 3) | st.integers(1, 12)),
        tail=draw(st.sampled_from(tails)),
        world_size=draw(RANKS),
    )


def batch_samples(plan: Plan) -> int:
    """Samples of a full micro-batch of a plan without a budget."""
    return plan.batch.samples if isinstance(plan.batch, FixedBatch) else 1


def on_ranks(plan: Plan, world_size: int) -> Plan:
    """The same plan for another number of ranks."""
    return replace(plan, world_size=world_size)


def all_samples(counts: Any) -> list[Sample]:
    """Every sample of a dataset, in the order of its shards."""
    return [(shard, index) for shard, count in enumerate(counts) for index in range(int(count))]


def block_samples(epoch: Any, lane: int, block: int) -> list[Sample]:
    """All samples of a block in the order in which the lane gives them."""
    shards, starts = epoch.order.block_parts(lane, block)
    inside = [(s, i) for s, n in zip(shards.tolist(), np.diff(starts).tolist(), strict=True) for i in range(n)]
    return [inside[i] for i in epoch.order.block_order(lane, block).tolist()]


def lane_order(epoch: Any, lane: int) -> list[Sample]:
    """The samples of a lane, one block after the other."""
    blocks = -(-epoch.order.lane_shards.shape[1] // epoch.order.block_shards)
    return [sample for block in range(blocks) for sample in block_samples(epoch, lane, block)]


def by_hand(epoch: Any) -> list[list[Sample]]:
    """The micro-batches of an epoch by position: lanes take turns, and what is left in them forms the last ones."""
    size = int(epoch.capacity[0])
    lanes = [lane_order(epoch, lane) for lane in range(len(epoch.order.lane_shards))]
    full = [[lane[i : i + size] for i in range(0, len(lane) - size + 1, size)] for lane in lanes]
    turns = [batches[j] for j in range(max(map(len, full))) for batches in full if j < len(batches)]
    pool = [s for lane in lanes for s in lane[len(lane) // size * size :]]
    return turns + [pool[i : i + size] for i in range(0, len(pool), size)]


def read(plan: Plan, epoch: Any, *, workers: int = 0, start: int = 0, run: int = 1) -> dict[int, Given]:
    """What all readers of a layout give, by position; single samples are planned in runs of `run` at a time."""
    given: dict[int, Given] = {}
    for rank in range(plan.world_size):
        for worker in range(max(1, workers)):
            share = Share(rank, plan.world_size, worker, max(1, workers), start)
            turns = np.arange(share.turns(plan.steps(start=start, rank=rank)))
            found = reader(plan, epoch, share.positions(turns).tolist(), run if plan.batch is None else 1)
            assert not found.keys() & given.keys()
            given |= found
    return given


def reader(plan: Plan, epoch: Any, positions: list[int], run: int) -> dict[int, Given]:
    """What one reader gives at the positions of its share."""
    given: dict[int, Given] = {}
    cursor = epoch.cursor(capacity=2)
    for low in range(0, len(positions), run):
        these = positions[low : low + run]
        sources = [plan.source(p) for p in these]
        refs = cursor.samples(np.array([p for p, _ in sources], dtype=np.int64))
        samples = list(zip(refs.shards.tolist(), refs.indices.tolist(), strict=True))
        parts = [samples] if run == 1 else [[s] for s in samples]
        given |= {p: (part, again) for p, part, (_, again) in zip(these, parts, sources, strict=True)}
    return given


def expected(plan: Plan, straight: list[list[Sample]], positions: range) -> dict[int, Given]:
    """What should come at some positions; behind the last sample an epoch starts over."""
    return {p: (straight[p % len(straight)], p >= len(straight)) for p in positions}
