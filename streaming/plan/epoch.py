"""One epoch of a plan: which samples form the micro-batch at a position.

>>> epoch = EpochPlan(np.array([3, 3]), batch=2, shuffle=None, seed=0, epoch=0, lanes=1)
>>> [epoch.cursor().samples(np.array([p])).indices.tolist() for p in range(3)]
[[0, 1], [2, 0], [1, 2]]
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .keys import permutation
from .lanes import deal
from .layout import Turns
from .shuffle import Shuffle, block_order


@dataclass(frozen=True, slots=True)
class SampleRefs:
    """Samples by place: sample i is number indices[i] of shard shards[i].  Both arrays are [n] int64."""

    shards: NDArray[np.int64]
    indices: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shards)


class EpochPlan:
    """The micro-batches of one epoch; all of it follows from the arguments, and nothing is read.

    counts [shards]: samples of each shard; batch: samples of a micro-batch.

    Lane l gives its samples in lane order; its j-th micro-batch holds samples j * batch ... (j + 1) * batch - 1 of that
    order.  The samples that are left at the ends of the lanes, fewer than `batch` each, are pooled in the order of the
    lanes and form the last micro-batches, of which only the very last may be short.
    """

    def __init__(
        self, counts: NDArray[Any], *, batch: int, shuffle: Shuffle | None, seed: int, epoch: int, lanes: int
    ) -> None:
        self.batch = batch
        self.epoch = epoch
        self._counts = counts
        self._shuffle = shuffle
        self._seed = seed
        shards = np.arange(len(counts)) if shuffle is None else permutation(len(counts), seed, "shards", epoch)
        self.lane_shards = deal(shards, counts, lanes)
        """[lanes, rounds]: the shards of each lane in reading order, -1 behind the last."""
        self.in_order = shuffle is None
        self.block_shards = shuffle.shards if shuffle else 1
        sizes = (
            np.where(self.lane_shards >= 0, counts[self.lane_shards], 0) if len(counts) else np.zeros((lanes, 0), int)
        )
        edges = np.arange(0, sizes.shape[1], self.block_shards)
        blocks = np.add.reduceat(sizes, edges, axis=1) if len(edges) else np.zeros((lanes, 0), np.int64)
        self._starts = np.concatenate([np.zeros((lanes, 1), np.int64), np.cumsum(blocks, axis=1)], axis=1)
        lane_samples = self._starts[:, -1]
        self._turns = Turns(lane_samples // batch)
        self._pool = np.concatenate([[0], np.cumsum(lane_samples % batch)])
        self._lane_full = lane_samples // batch * batch
        self.total = self._turns.total + -(-int(self._pool[-1]) // batch)
        """Positions that hold samples."""

    def cursor(self, capacity: int = 128) -> Cursor:
        """A cursor over this epoch that keeps the order of the last `capacity` blocks it met."""
        return Cursor(self, capacity)

    def runs(self, position: int) -> list[tuple[int, int, int]]:
        """Where the samples of a position lie: (lane, low, high), half-open in lane order."""
        if position < self._turns.total:
            lanes, numbers = self._turns.locate(np.array([position]))
            low = int(numbers[0]) * self.batch
            return [(int(lanes[0]), low, low + self.batch)]
        low = (position - self._turns.total) * self.batch
        high = min(low + self.batch, int(self._pool[-1]))
        runs = []
        lane = int(np.searchsorted(self._pool, low, side="right")) - 1
        while low < high:
            end = min(high, int(self._pool[lane + 1]))
            if end > low:
                base = int(self._lane_full[lane]) - int(self._pool[lane])
                runs.append((lane, base + low, base + end))
            low, lane = end, lane + 1
        return runs

    def locate(self, positions: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(lane, place in the lane) of the one sample of each position, for micro-batches of one sample."""
        return self._turns.locate(positions)

    def block_of(self, lane: int, place: int) -> tuple[int, int, int]:
        """(block, first place, end place) of the block of a lane that holds a place in lane order."""
        block = int(np.searchsorted(self._starts[lane], place, side="right")) - 1
        return block, int(self._starts[lane, block]), int(self._starts[lane, block + 1])

    def block_parts(self, lane: int, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The shards of a block, [k], and where each begins in their concatenation, [k + 1]."""
        first = block * self.block_shards
        shards = self.lane_shards[lane, first : first + self.block_shards]
        shards = shards[shards >= 0]
        return shards, np.concatenate([[0], np.cumsum(self._counts[shards])]).astype(np.int64)

    def block_order(self, lane: int, block: int) -> NDArray[np.uint32]:
        """The order in which a lane gives the samples of a block, counted through its concatenated shards."""
        _, starts = self.block_parts(lane, block)
        return block_order(np.diff(starts), self._shuffle, self._seed, epoch=self.epoch, lane=lane, block=block)


class Cursor:
    """Evaluates an epoch plan; keeps the blocks that it met last, since neighbours in a lane share them."""

    def __init__(self, epoch: EpochPlan, capacity: int) -> None:
        self.epoch = epoch
        self._capacity = max(1, capacity)
        self._blocks: OrderedDict[tuple[int, int], NDArray[np.uint32]] = OrderedDict()

    def samples(self, positions: NDArray[Any]) -> SampleRefs:
        """The samples of some positions, one position after the other."""
        if self.epoch.batch == 1:
            return self._singles(positions)
        parts = [part for p in positions.tolist() for run in self.epoch.runs(p) for part in self._run(*run)]
        return SampleRefs(
            np.concatenate([p[0] for p in parts] or [np.zeros(0, np.int64)]).astype(np.int64),
            np.concatenate([p[1] for p in parts] or [np.zeros(0, np.int64)]).astype(np.int64),
        )

    def _run(self, lane: int, low: int, high: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        parts = []
        while low < high:
            block, first, end = self.epoch.block_of(lane, low)
            parts.append(self._take(lane, block, np.arange(low - first, min(high, end) - first)))
            low = min(high, end)
        return parts

    def _singles(self, positions: NDArray[Any]) -> SampleRefs:
        lanes, places = self.epoch.locate(positions)
        shards = np.empty(len(positions), np.int64)
        indices = np.empty(len(positions), np.int64)
        for lane in np.unique(lanes).tolist():
            left = np.flatnonzero(lanes == lane)
            while len(left):  # one block after the other; where a padded epoch starts over, places go back
                block, first, end = self.epoch.block_of(lane, int(places[left[0]]))
                here = (places[left] >= first) & (places[left] < end)
                inside, left = left[here], left[~here]
                shards[inside], indices[inside] = self._take(lane, block, places[inside] - first)
        return SampleRefs(shards, indices)

    def _take(self, lane: int, block: int, places: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """(shards, indices) of some places of a block, counted from its start."""
        shards, starts = self.epoch.block_parts(lane, block)
        # In order, a block needs no laying out, however large its shards are.
        flat = places if self.epoch.in_order else self._order(lane, block)[places].astype(np.int64)
        which = np.searchsorted(starts, flat, side="right") - 1
        return shards[which], flat - starts[which]

    def _order(self, lane: int, block: int) -> NDArray[np.uint32]:
        found = self._blocks.get((lane, block))
        if found is None:
            found = self._blocks[lane, block] = self.epoch.block_order(lane, block)
            if len(self._blocks) > self._capacity:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end((lane, block))
        return found
