"""One pass over the shards: which lane reads which, cut into blocks, and the order of the samples inside a block.

>>> order = Order(np.array([3, 3]), shuffle=None, seed=0, epoch=0, lanes=1)
>>> order.lane_shards.tolist(), order.block_order(0, 1).tolist()
([[0, 1]], [0, 1, 2])
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .keys import permutation
from .lanes import deal, permuted
from .shuffle import Shuffle, block_order


class Order:
    """All of it follows from the arguments, and nothing is read.

    counts [shards]: samples of each shard.  Shards are permuted and dealt in units, runs of `unit` of them; costs
    [units] is what the lanes should carry equally (default: samples).  `block` is the number of units in a block
    (default: as many as hold the shards that are mixed).  With `sticky` a lane has the shards of epoch 0 in every
    epoch, each time in another order.
    """

    def __init__(
        self,
        counts: NDArray[Any],
        *,
        shuffle: Shuffle | None,
        seed: int,
        epoch: int,
        lanes: int,
        unit: int = 1,
        block: int | None = None,
        costs: NDArray[Any] | None = None,
        sticky: bool = False,
    ) -> None:
        self.epoch = epoch
        self.counts = counts
        self.shuffle = shuffle
        self.seed = seed
        self.in_order = shuffle is None
        units = -(-len(counts) // unit)
        dealt = np.arange(units) if shuffle is None else permutation(units, seed, "shards", 0 if sticky else epoch)
        self.lane_units = deal(dealt, counts if costs is None else costs, lanes)
        """[lanes, rounds]: the units of each lane in reading order, -1 behind the last."""
        if sticky and shuffle is not None:
            self.lane_units = permuted(self.lane_units, seed, epoch)
        self.block_units = block or (-(-shuffle.shards // unit) if shuffle else 1)
        self.block_shards = self.block_units * unit
        self.lane_shards = _shards(self.lane_units, unit, len(counts))
        """[lanes, rounds * unit]: the shards of each lane in reading order, -1 where there is none."""

    @property
    def blocks(self) -> int:
        """Blocks of the longest lane."""
        return -(-int(self.lane_shards.shape[1]) // self.block_shards)

    def block_sums(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Running sums of values [shards, g] over the blocks of each lane: [lanes, blocks + 1, g]."""
        lanes, rounds = self.lane_shards.shape
        out = np.zeros((lanes, self.blocks + 1, values.shape[1]), dtype=np.int64)
        edges = np.arange(0, rounds, self.block_shards)
        for lane in range(lanes if len(values) else 0):
            shards = self.lane_shards[lane]
            found = values[shards]
            found[shards < 0] = 0
            np.cumsum(np.add.reduceat(found, edges, axis=0, dtype=np.int64), axis=0, out=out[lane, 1:])
        return out

    def block_parts(self, lane: int, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The shards of a block, [k], and where each begins in their concatenation, [k + 1]."""
        first = block * self.block_shards
        shards = self.lane_shards[lane, first : first + self.block_shards]
        shards = shards[shards >= 0]
        return shards, np.concatenate([[0], np.cumsum(self.counts[shards])]).astype(np.int64)

    def shards_in(self, blocks: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[shards]: those with samples in some blocks, [lanes, blocks]."""
        inside = np.repeat(blocks, self.block_shards, axis=1)[:, : self.lane_shards.shape[1]]
        found = np.zeros(len(self.counts), dtype=bool)
        found[self.lane_shards[inside & (self.lane_shards >= 0)]] = True
        return found & (self.counts > 0)

    def block_order(self, lane: int, block: int) -> NDArray[np.uint32]:
        """The order in which a lane gives the samples of a block, counted through its concatenated shards."""
        _, starts = self.block_parts(lane, block)
        return block_order(np.diff(starts), self.shuffle, self.seed, epoch=self.epoch, lane=lane, block=block)


def _shards(lane_units: NDArray[np.int64], unit: int, shards: int) -> NDArray[np.int64]:
    if unit == 1:
        return lane_units
    found = lane_units[:, :, None] * unit + np.arange(unit)
    found = np.where((lane_units[:, :, None] >= 0) & (found < shards), found, -1)
    return found.reshape(len(lane_units), -1)
