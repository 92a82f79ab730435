"""One epoch of packed batches: which samples form the bin at a position (see packing for how many bins there are).

>>> epoch = PackedEpoch(order, packing, costs_of)
>>> epoch.cursor().samples(np.array([0])).indices
array([  3, 117, ...])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import IndexMismatch
from .epoch import SampleRefs
from .keys import permutation
from .layout import Turns
from .order import Order
from .owned import owned
from .packing import Packing, pack
from .recent import Recent
from .taken import Taken, blocks_with

Bins = tuple[NDArray[np.int64], NDArray[np.int64]]


class PackedEpoch:
    """The bins of one epoch.  A block of a lane is packed as a whole, into the bins of its units, in random order."""

    def __init__(self, order: Order, packing: Packing, costs_of: Callable[[int], NDArray[np.int64]]) -> None:
        self.order = order
        self.packing = packing
        self.costs_of = costs_of
        every = packing.bins + packing.alone
        units = np.where(order.lane_units >= 0, every[order.lane_units], 0) if len(every) else order.lane_units
        edges = np.arange(0, units.shape[1], order.block_units)
        blocks = np.add.reduceat(units, edges, axis=1) if len(edges) else units
        self._starts = np.concatenate([np.zeros((len(units), 1), np.int64), np.cumsum(blocks, axis=1)], axis=1)
        self._turns = Turns(self._starts[:, -1])
        self.total = self._turns.total
        """Positions that hold samples."""

    def cursor(self, capacity: int = 128) -> PackedCursor:
        """A cursor over this epoch that keeps the bins of the last `capacity` blocks it met."""
        return PackedCursor(self, capacity)

    def locate(self, position: int) -> tuple[int, int, int]:
        """(lane, block, bin in it) of a position."""
        lanes, numbers = self._turns.locate(np.array([position]))
        starts = self._starts[int(lanes[0])]
        block = int(np.searchsorted(starts, int(numbers[0]), side="right")) - 1
        return int(lanes[0]), block, int(numbers[0] - starts[block])

    def alone(self, positions: NDArray[Any], readers: int) -> bool:
        """Whether the samples of these positions lie in blocks that one of `readers` readers reads mostly alone."""
        if readers == 1:
            return True
        last = int(self._starts[:, -1].min())
        mine = owned(self._starts, last)
        for lane, number in zip(*(found.tolist() for found in self._turns.locate(positions)), strict=True):
            block = int(np.searchsorted(self._starts[lane], number, side="right")) - 1
            if number >= last or not mine[lane, block]:
                return False
        return True

    def shards_read(self, taken: Taken) -> NDArray[np.bool_]:
        """[shards]: all that hold a sample of some positions, and others of the same blocks."""
        found = self._turns.stretches(taken.between(0, self.total))
        return self.order.shards_in(blocks_with(self._starts, *found))

    def units(self, lane: int, block: int) -> NDArray[np.int64]:
        """The units of a block."""
        first = block * self.order.block_units
        units = self.order.lane_units[lane, first : first + self.order.block_units]
        return units[units >= 0]


class PackedCursor:
    """Evaluates an epoch of packed batches; keeps the blocks that it met last."""

    def __init__(self, epoch: PackedEpoch, capacity: int) -> None:
        self.epoch = epoch
        self._blocks: Recent[tuple[int, int], Bins] = Recent(capacity)

    def samples(self, positions: NDArray[Any]) -> SampleRefs:
        """The samples of some positions, one position after the other."""
        return SampleRefs.joined(self._bin(*self.epoch.locate(position)) for position in positions.tolist())

    def _bin(self, lane: int, block: int, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """(shards, indices) of the samples of a bin."""
        members, begins = self._packed(lane, block)
        flat = members[begins[number] : begins[number + 1]]
        shards, starts = self.epoch.order.block_parts(lane, block)
        which = np.searchsorted(starts, flat, side="right") - 1
        return shards[which], flat - starts[which]

    def bucket(self, position: int) -> int:  # noqa: ARG002
        """All bins are of one kind."""
        return 0

    def size(self, position: int) -> int:
        """How many samples a position has."""
        return len(self.samples(np.array([position])))

    def _packed(self, lane: int, block: int) -> Bins:
        """The samples of a block by bin, and where each bin begins."""
        found = self._blocks.get((lane, block))
        if found is None:
            order, epoch = self.epoch.order, self.epoch.order.epoch
            laid_out = order.block_order(lane, block).astype(np.int64)
            shards, _ = order.block_parts(lane, block)
            costs = np.concatenate([self.epoch.costs_of(s) for s in shards.tolist()] or [np.zeros(0, np.int64)])
            bins, count = self._bins(lane, block, costs[laid_out])
            if not order.in_order:
                bins = permutation(count, order.seed, "bins", epoch, lane, block)[bins]
            by_bin = np.argsort(bins, kind="stable")
            begins = np.concatenate([[0], np.cumsum(np.bincount(bins, minlength=count))])
            found = self._blocks.put((lane, block), (laid_out[by_bin], begins), weight=len(laid_out))
        return found

    def _bins(self, lane: int, block: int, costs: NDArray[Any]) -> tuple[NDArray[Any], int]:
        """Bin of each sample in lane order, and how many bins there are."""
        packing, units = self.epoch.packing, self.epoch.units(lane, block)
        most, alone, count = packing.costs.most, int(packing.alone[units].sum()), int(packing.bins[units].sum())
        over = costs > most
        bins = np.zeros(len(costs), dtype=np.int64)
        bins[over] = count + np.arange(int(over.sum()))
        if count:
            bins[~over] = pack(costs[~over], count)
        loads = np.bincount(bins[~over], costs[~over], minlength=count)
        if int(over.sum()) != alone or (loads > most).any() or not loads.all():
            raise IndexMismatch(
                "the sidecars of some shards do not have the costs that the manifest counted",
                hint="make the index again (shardstream index)",
            )
        return bins, count + alone
