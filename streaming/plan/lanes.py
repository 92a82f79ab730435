"""Lanes: the parallel tracks along which a dataset is read, whoever reads it.

>>> choose_lanes(shards=332, each=4)
64
>>> deal(np.arange(5), np.array([10, 10, 10, 10, 10]), lanes=2).tolist()
[[0, 2, 4], [1, 3, -1]]
>>> permuted(np.array([[0, 2, 4], [1, 3, -1]]), seed=7, epoch=1).tolist()
[[4, 2, 0], [3, 1, -1]]
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .keys import permutation

MOST: Final = 192
"""Lanes that a plan takes by itself.  A reader keeps a block of shards open in each of its lanes, so one that reads
alone holds 192 blocks; jobs with more readers than that ask for more lanes."""


MOST_SINGLES: Final = 64
"""The same for single samples: one after the other comes from another lane, so all their shards must stay open, and a
process may often hold no more than 1,024 files."""
OPEN_SAMPLES: Final = 1 << 25
"""Samples in one block of each lane, all lanes together, that a plan allows by itself: 4 bytes each for their order."""


def choose_lanes(shards: int, each: int, samples: int = 0, most: int = MOST) -> int:
    """The largest 2**k or 3 * 2**k that leaves every lane at least `each` shards; 1 if there are too few.

    At most `most`, and with large shards (`samples` in all) so many that OPEN_SAMPLES holds on average.
    """
    most = min(most, OPEN_SAMPLES * shards // (each * samples) if samples else most)
    best = 1
    for base in (1, 3):
        lanes = base
        while lanes * each <= shards and lanes <= most:
            best = max(best, lanes)
            lanes *= 2
    return best


def deal(order: NDArray[Any], costs: NDArray[Any], lanes: int) -> NDArray[np.int64]:
    """Deal shards to lanes so that the lanes carry nearly equal cost: [lanes, rounds], -1 where a lane has no more.

    `order` is the sequence of shards, `costs[shard]` what is to be balanced.  Each round takes the next `lanes` shards
    and gives the costliest to the lane that carries least so far, and so on: the first shards of all lanes are the
    first of the order, and loads differ by no more than the largest shard of the order.
    """
    if lanes == 1:
        return np.asarray(order, dtype=np.int64)[np.newaxis]
    rounds = -(-len(order) // lanes)
    table = np.full((rounds, lanes), -1, dtype=np.int64)
    load = np.zeros(lanes, dtype=np.int64)
    for r in range(rounds):
        shards = order[r * lanes : (r + 1) * lanes]
        cost = costs[shards]
        heaviest = np.argsort(-cost, kind="stable")
        lightest = np.argsort(load, kind="stable")[: len(shards)]
        table[r, lightest] = shards[heaviest]
        load[lightest] += cost[heaviest]
    return np.ascontiguousarray(table.T)


def permuted(dealt: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
    """The same lanes, each with its own shards in a random order that belongs to (seed, epoch, lane)."""
    out = dealt.copy()
    for lane, shards in enumerate(dealt):
        held = shards[shards >= 0]
        out[lane, : len(held)] = held[permutation(len(held), seed, "lane", epoch, lane)]
    return out
