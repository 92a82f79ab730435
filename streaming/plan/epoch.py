"""One epoch of a plan: which samples form the micro-batch at a position.

>>> order = Order(np.array([3, 3]), shuffle=None, seed=0, epoch=0, lanes=1)
>>> epoch = EpochPlan(order, np.array([2]))
>>> [epoch.cursor().samples(np.array([p])).indices.tolist() for p in range(3)]
[[0, 1], [2, 0], [1, 2]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import IndexMismatch, PlanError
from .interleave import GroupBatches
from .keys import phases
from .layout import Turns
from .order import Order
from .owned import owned
from .recent import Recent
from .taken import Taken, blocks_with

GroupOf = Callable[[int], NDArray[Any]]


def _one_group(shard: int) -> NDArray[Any]:
    raise PlanError(f"the groups of the samples of shard number {shard} are not known", hint="give group_of=")


@dataclass(frozen=True, slots=True)
class SampleRefs:
    """Samples by place: sample i is number indices[i] of shard shards[i].  Both arrays are [n] int64."""

    shards: NDArray[np.int64]
    indices: NDArray[np.int64]
    scattered: bool = False
    """Whether other readers read many of the samples beside these."""

    def __len__(self) -> int:
        return len(self.shards)

    @classmethod
    def joined(cls, parts: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> SampleRefs:
        """The samples of (shards, indices), one part after the other."""
        found = list(parts)
        none = [np.zeros(0, np.int64)]
        return cls(
            np.concatenate([shards for shards, _ in found] or none).astype(np.int64),
            np.concatenate([indices for _, indices in found] or none).astype(np.int64),
        )


class Run(NamedTuple):
    """Some samples that follow one another in a lane: numbers low ... high - 1 of one group."""

    lane: int
    group: int
    low: int
    high: int


class EpochPlan:
    """The micro-batches of one epoch; all of it follows from the arguments.

    capacity [g]: samples of a micro-batch of each group of similar samples; counts [shards, g]: how many each shard
    has (default: one group of all samples); group_of(shard): the group of each sample, [n].

    A lane gives the samples of each group in lane order; micro-batch j of a group in it holds its samples j * n ...
    (j + 1) * n - 1.  What is left at the ends of the lanes, fewer than n samples of each group in each, is pooled in
    the order of the lanes.  So the micro-batches of a group are: those of the lanes, which take turns, then those of
    the pool.  They come in runs of `together`, evenly interleaved with the runs of the other groups, so that ranks have
    batches of one kind at the same time; then follow, interleaved too, those that fill no run; last a short one for
    each group that has a rest.
    """

    def __init__(
        self,
        order: Order,
        capacity: NDArray[Any],
        counts: NDArray[Any] | None = None,
        group_of: GroupOf = _one_group,
        *,
        together: int = 1,
    ) -> None:
        self.order = order
        self.capacity = np.asarray(capacity, dtype=np.int64)
        self.group_of = group_of
        self.together = together
        self._starts = order.block_sums(order.counts[:, None] if counts is None else counts)
        held = self._starts[:, -1]
        self._batches = held // self.capacity
        self._turns = [Turns(self._batches[:, group]) for group in range(self.groups)]
        zero = np.zeros((1, self.groups), np.int64)
        self._pool = np.concatenate([zero, np.cumsum(held % self.capacity, axis=0)])
        begin = phases(self.groups, order.seed, order.epoch, mixed=not order.in_order)
        self._order_of_batches = GroupBatches(held.sum(axis=0), self.capacity, together, begin)
        self.total = self._order_of_batches.total
        """Positions that hold samples."""

    @property
    def groups(self) -> int:
        """Groups of similar samples."""
        return len(self.capacity)

    def cursor(self, capacity: int = 128) -> Cursor:
        """A cursor over this epoch that keeps the order of the last `capacity` blocks it met."""
        return Cursor(self, capacity)

    def locate(self, positions: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(lane, place in the lane) of each position, for single samples of one group."""
        return self._turns[0].locate(positions)

    def alone(self, positions: NDArray[Any], readers: int) -> bool:
        """Whether the samples of these positions lie in blocks that one of `readers` readers reads mostly alone."""
        if readers == 1:
            return True
        if self.groups == 1:
            groups, numbers = np.zeros(len(positions), np.int64), np.asarray(positions)
        else:
            groups, numbers = np.array([self._number(position) for position in positions.tolist()]).T
        places, lanes = np.divmod(numbers, len(self._starts))
        if (numbers >= self._in_turn[groups]).any() or ((numbers - positions) % readers).any():
            return False
        low = places * self.capacity[groups]
        blocks = (self._starts[lanes, :, groups] <= low[:, np.newaxis]).sum(axis=1) - 1
        return bool(self._owned[lanes, blocks].all())

    @cached_property
    def _owned(self) -> NDArray[np.bool_]:
        lanes = len(self._starts)
        turns = -(-np.maximum(0, self._in_turn - np.arange(lanes)[:, np.newaxis]) // lanes)  # [lanes, groups]
        return owned(self._starts, (turns * self.capacity)[:, np.newaxis])

    @cached_property
    def _in_turn(self) -> NDArray[np.int64]:
        """[groups]: how many batches of a group come while all lanes have any, and in whole runs: batch n of these is
        of lane n % lanes, and readers take them in that order.
        """
        full = self._starts[:, -1].sum(axis=0) // self.capacity
        in_runs = full // self.together * self.together
        return np.asarray(np.minimum(self._batches.min(axis=0) * len(self._starts), in_runs))

    def _number(self, position: int) -> tuple[int, int]:
        """(group, number among the micro-batches of the group) of a position."""
        return self._order_of_batches.locate(position)

    def runs(self, position: int) -> list[Run]:
        """Where the samples of a position lie."""
        return self.batch_runs(*self._number(position))

    def batch_runs(self, group: int, number: int) -> list[Run]:
        """Where the samples of a micro-batch of a group lie; the short one is the last."""
        size, turns = int(self.capacity[group]), self._turns[group]
        if number < turns.total:
            lanes, places = turns.locate(np.array([number]))
            low = int(places[0]) * size
            return [Run(int(lanes[0]), group, low, low + size)]
        pool = self._pool[:, group]
        low = (number - turns.total) * size
        high = min(low + size, int(pool[-1]))
        runs = []
        lane = int(np.searchsorted(pool, low, side="right")) - 1
        while low < high:
            end = min(high, int(pool[lane + 1]))
            if end > low:
                base = int(self._batches[lane, group]) * size - int(pool[lane])
                runs.append(Run(lane, group, base + low, base + end))
            low, lane = end, lane + 1
        return runs

    def bucket(self, position: int) -> int:
        """The group of the samples of a position."""
        return self._number(position)[0]

    def size(self, position: int) -> int:
        """How many samples a position has."""
        return sum(run.high - run.low for run in self.runs(position))

    def sample_runs(self, group: int, low: int, high: int) -> list[Run]:
        """Where samples low ... high - 1 of a group lie, counted through its micro-batches."""
        size, found = int(self.capacity[group]), []
        for number in range(low // size, -(-high // size)):
            begin = number * size
            for run in self.batch_runs(group, number):
                end = begin + run.high - run.low
                first, last = max(low, begin), min(high, end)
                if first < last:
                    found.append(Run(run.lane, group, run.low + first - begin, run.low + last - begin))
                begin = end
        return found

    def block_of(self, lane: int, group: int, number: int) -> tuple[int, int, int]:
        """(block, first, end): the block that holds sample `number` of a group of a lane, and the numbers it holds."""
        starts = self._starts[lane, :, group]
        block = int(np.searchsorted(starts, number, side="right")) - 1
        return block, int(starts[block]), int(starts[block + 1])

    def shards_read(self, taken: Taken) -> NDArray[np.bool_]:
        """[shards]: all that hold a sample of some positions, and others of the same blocks."""
        if taken.all_of(self.total):
            return self.order.counts > 0
        numbers = self._order_of_batches.numbers(taken)
        return self.shards_with((group, part) for group, parts in enumerate(numbers) for part in parts)

    def shards_with(self, batches: Iterable[tuple[int, Taken]]) -> NDArray[np.bool_]:
        """[shards]: the same for (group, some of the numbers among the micro-batches of the group)."""
        blocks = np.zeros((len(self._starts), self.order.blocks), dtype=bool)
        for group, numbers in batches:
            if numbers.low < numbers.high:
                blocks |= self._blocks_with(group, numbers)
        return self.order.shards_in(blocks)

    def _blocks_with(self, group: int, numbers: Taken) -> NDArray[np.bool_]:
        """[lanes, blocks]: all that hold a sample of some of the micro-batches of a group."""
        size, batches = int(self.capacity[group]), self._batches[:, group]
        of_lanes = self._turns[group].total
        lanes, first, end = self._turns[group].stretches(numbers.between(0, of_lanes))
        pool = self._pool[:, group]
        pooled = numbers.has(of_lanes + np.arange(-(-int(pool[-1]) // size)))
        rest = np.flatnonzero(np.diff(pool))  # what a lane leaves is in one micro-batch of the pool, or two
        rest = rest[pooled[pool[rest] // size] | pooled[(pool[rest + 1] - 1) // size]]
        left = batches[rest] * size
        return blocks_with(
            self._starts[:, :, group],
            np.concatenate([lanes, rest]),
            np.concatenate([first * size, left]),
            np.concatenate([end * size, left + pool[rest + 1] - pool[rest]]),
        )

    def block_counts(self, lane: int, block: int) -> NDArray[np.int64]:
        """[g]: samples of each group in a block."""
        return np.asarray(self._starts[lane, block + 1] - self._starts[lane, block])


class Cursor:
    """Evaluates an epoch plan; keeps the blocks that it met last, since neighbours in a lane share them."""

    def __init__(self, epoch: EpochPlan, capacity: int) -> None:
        self.epoch = epoch
        self._order = epoch.order
        self._blocks: Recent[tuple[int, int], tuple[NDArray[np.uint32], NDArray[np.int64]]] = Recent(capacity)

    def samples(self, positions: NDArray[Any]) -> SampleRefs:
        """The samples of some positions, one position after the other."""
        if self.epoch.groups == 1 and self.epoch.capacity[0] == 1:
            return self._singles(positions)
        return self.gather(run for p in positions.tolist() for run in self.epoch.runs(p))

    def gather(self, runs: Iterable[Run]) -> SampleRefs:
        """The samples of some runs, one run after the other."""
        return SampleRefs.joined(part for run in runs for part in self._run(run))

    def bucket(self, position: int) -> int:
        """The group of the samples of a position."""
        return self.epoch.bucket(position)

    def size(self, position: int) -> int:
        """How many samples a position has."""
        return self.epoch.size(position)

    def _run(self, run: Run) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        parts, low = [], run.low
        while low < run.high:
            block, first, end = self.epoch.block_of(run.lane, run.group, low)
            places = np.arange(low - first, min(run.high, end) - first)
            parts.append(self._take(run.lane, block, run.group, places))
            low = min(run.high, end)
        return parts

    def _singles(self, positions: NDArray[Any]) -> SampleRefs:
        lanes, places = self.epoch.locate(positions)
        shards = np.empty(len(positions), np.int64)
        indices = np.empty(len(positions), np.int64)
        for lane in np.unique(lanes).tolist():
            left = np.flatnonzero(lanes == lane)
            while len(left):  # one block after the other; where a padded epoch starts over, places go back
                block, first, end = self.epoch.block_of(lane, 0, int(places[left[0]]))
                here = (places[left] >= first) & (places[left] < end)
                inside, left = left[here], left[~here]
                shards[inside], indices[inside] = self._take(lane, block, 0, places[inside] - first)
        return SampleRefs(shards, indices)

    def _take(self, lane: int, block: int, group: int, places: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """(shards, indices) of some places of a group in a block, counted from the block's start."""
        shards, starts = self._order.block_parts(lane, block)
        if self._order.in_order and self.epoch.groups == 1:  # needs no laying out, however large its shards are
            flat = places
        else:
            laid_out, begins = self._laid_out(lane, block)
            flat = laid_out[begins[group] + places].astype(np.int64)
        which = np.searchsorted(starts, flat, side="right") - 1
        return shards[which], flat - starts[which]

    def _laid_out(self, lane: int, block: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The samples of a block by group, in lane order within each, and where each group begins."""
        found = self._blocks.get((lane, block))
        if found is None:
            laid_out = self._order.block_order(lane, block)
            begins = np.array([0, len(laid_out)])
            if self.epoch.groups > 1:
                laid_out, begins = self._by_group(lane, block, laid_out)
            found = self._blocks.put((lane, block), (laid_out, begins), weight=len(laid_out))
        return found

    def _by_group(
        self, lane: int, block: int, laid_out: NDArray[np.uint32]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        shards, _ = self._order.block_parts(lane, block)
        groups = np.concatenate([self.epoch.group_of(s) for s in shards.tolist()] or [np.zeros(0, np.int16)])
        begins = np.concatenate([[0], np.cumsum(self.epoch.block_counts(lane, block))])
        if len(groups) != len(laid_out) or (np.bincount(groups, minlength=self.epoch.groups) != np.diff(begins)).any():
            raise IndexMismatch(
                "the sidecars of some shards do not have the sizes that the manifest counted",
                hint="make the index again (shardstream index)",
            )
        return laid_out[np.argsort(groups[laid_out], kind="stable")], begins
