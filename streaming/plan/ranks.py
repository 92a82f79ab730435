"""Which shards some ranks read in an epoch, such as those of a node whose cache should hold them.

>>> plan = Plan.make(np.full(8, 10), shuffle=Shuffle(1), lanes=4, world_size=2, sticky=True)
>>> [shards_of_ranks(plan, epoch, [0]).tolist() for epoch in range(2)]
[[0, 2, 5, 7], [0, 2, 5, 7]]
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .layout import check_place
from .taken import Taken

if TYPE_CHECKING:
    from .plan import Plan


def shards_of_ranks(plan: Plan, epoch: int, ranks: Collection[int], start: int = 0) -> NDArray[np.int64]:
    """Numbers, ascending, of all shards that the ranks read, and a few more (Plan.shards_of_ranks)."""
    taken = _taken(plan, ranks, start)
    if not len(ranks) or taken.low >= taken.high:
        return np.zeros(0, np.int64)
    if taken.high >= 2 * plan.total:  # so many ranks that each sample is read again
        return np.flatnonzero(plan.counts)
    made = plan.epoch(epoch)
    found = made.shards_read(taken.between(0, plan.total))
    if taken.high > plan.total:
        found |= made.shards_read(taken.moved(-plan.total).between(0, plan.total))
    return np.flatnonzero(found)


def own_shards(plan: Plan, epoch: int, ranks: Collection[int], start: int = 0) -> NDArray[np.int64]:
    """Numbers, ascending, of the shards in the lanes of the ranks (Plan.own_shards)."""
    taken = _taken(plan, ranks, start)
    if plan.mix is not None:
        return np.flatnonzero(plan.counts) if len(ranks) else np.zeros(0, np.int64)
    order, own = plan.one_pass(epoch).order, taken.numbers(0, plan.lanes, plan.apart)
    lanes = own.has(np.arange(plan.lanes))
    return np.flatnonzero(order.shards_in(np.repeat(lanes[:, np.newaxis], order.blocks, axis=1)))


def _taken(plan: Plan, ranks: Collection[int], start: int) -> Taken:
    """The positions that the ranks take, repeats included."""
    for rank in ranks:
        check_place(rank, plan.world_size)
    end = plan.total if plan.tail == "uneven" else start + plan.steps(start=start) * plan.world_size
    return Taken.by_ranks(ranks, plan.world_size, start, end)
