"""One epoch of a mix: which source and pass each micro-batch, or each of its samples, is taken from.

>>> epoch = plan.epoch(0)
>>> epoch.cursor().samples(np.array([0])).shards
array([ 17,   3, ...])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from .epoch import Cursor, EpochPlan, SampleRefs
from .interleave import GroupBatches, Interleave, Runs, all_batches, full_batches
from .keys import phases
from .layout import Tail
from .mix import Stretch, quotas, stretches
from .recent import Recent
from .taken import Taken

if TYPE_CHECKING:
    from .packed import PackedCursor, PackedEpoch
    from .plan import Plan

Ints = NDArray[np.int64]
_PASSES: Final = 4
"""Passes over a source that are looked at one by one; what some ranks read of more is taken to be all of it."""
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class BatchMixture:
    """Sources whose batches are mixed: a plan of each, where its shards begin among all, its batches, and how many of
    them an epoch takes.
    """

    plans: tuple[Plan, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    quota: tuple[int, ...]

    @classmethod
    def make(
        cls, plans: Sequence[Plan], starts: Sequence[int], weights: Sequence[float], length: int | None, tail: Tail
    ) -> BatchMixture:
        """Short batches take part unless the tail drops them, or a source has no other."""
        sizes = [p.full if tail == "drop" and p.full else p.total for p in plans]
        total = sum(sizes) if length is None else length
        return cls(tuple(plans), tuple(starts), tuple(sizes), tuple(quotas(weights, total)))

    @property
    def full(self) -> int:
        """Batches of an epoch."""
        return sum(self.quota)

    @property
    def total(self) -> int:
        """All of them: a mix of batches has no end that is short."""
        return self.full

    @property
    def taken(self) -> Sequence[int]:
        """Batches that an epoch takes of each source."""
        return self.quota

    @property
    def dropped(self) -> int:
        """Samples in the short batches that a pass over each source leaves out, all sources together."""
        return sum(p.short_samples for p, size in zip(self.plans, self.sizes, strict=True) if size < p.total)

    @property
    def first_groups(self) -> list[int]:
        """Which number the first group of each source has, among those of all."""
        sizes = [max(1, p.kinds) for p in self.plans]
        return [sum(sizes[:i]) for i in range(len(sizes))]

    def epoch(self, epoch: int, seed: int, together: int, *, mixed: bool) -> MixedBatches:
        """The order of one epoch."""
        order = phases(len(self.plans), seed, epoch, mixed=mixed)
        return MixedBatches(self, epoch, Runs(np.array(self.quota), together, order))


class MixedBatches:
    """Batches of one source each."""

    def __init__(self, mixture: BatchMixture, epoch: int, merged: Runs) -> None:
        self.mixture = mixture
        self._epoch = epoch
        self._merged = merged
        self.total = merged.total
        """Positions that hold samples."""

    def locate(self, position: int) -> tuple[int, int, int]:
        """(source, pass, position in it) of a position."""
        source, number = self._merged.locate(position)
        quota, size = self.mixture.quota[source], self.mixture.sizes[source]
        return source, *divmod(self._epoch * quota + number, size)

    def shards_read(self, taken: Taken) -> Bools:
        """[shards]: all that hold a sample of some positions, and some more."""
        parts = [self._read_of(source, found) for source, found in enumerate(self._merged.numbers(taken))]
        return np.concatenate(parts)

    def _read_of(self, source: int, numbers: Sequence[Taken]) -> Bools:
        plan, size = self.mixture.plans[source], self.mixture.sizes[source]
        found = np.zeros(len(plan.counts), dtype=bool)
        parts = [some.moved(self._epoch * self.mixture.quota[source]) for some in numbers if some.low < some.high]
        if not parts:
            return found
        passes = range(min(p.low for p in parts) // size, -(-max(p.high for p in parts) // size))
        if len(passes) > _PASSES:
            return plan.counts > 0
        for number in passes:
            one_pass = plan.one_pass(number)
            for part in parts:  # counted through all passes
                found |= one_pass.shards_read(part.moved(-number * size).between(0, size))
        return found

    def cursor(self, capacity: int = 128) -> MixedBatchCursor:
        """A cursor over this epoch; `capacity` is that of the cursor over each source."""
        return MixedBatchCursor(self, capacity)


class MixedBatchCursor:
    """Evaluates an epoch of mixed batches."""

    def __init__(self, epoch: MixedBatches, capacity: int) -> None:
        self.epoch = epoch
        self._capacity = capacity
        self._passes: Recent[tuple[int, int], Cursor | PackedCursor] = Recent(2 * len(epoch.mixture.plans), spare=0)

    def samples(self, positions: NDArray[Any]) -> SampleRefs:
        """The samples of some positions, one position after the other."""
        parts = []
        for position in positions.tolist():
            source, number, inside = self.epoch.locate(position)
            refs = self._cursor(source, number).samples(np.array([inside]))
            parts.append((refs.shards + self.epoch.mixture.starts[source], refs.indices))
        return SampleRefs.joined(parts)

    def bucket(self, position: int) -> int:
        """The group of the samples of a position, counted over the groups of all sources."""
        source, number, inside = self.epoch.locate(position)
        return self.epoch.mixture.first_groups[source] + self._cursor(source, number).bucket(inside)

    def size(self, position: int) -> int:
        """How many samples a position has."""
        source, number, inside = self.epoch.locate(position)
        return self._cursor(source, number).size(inside)

    def _cursor(self, source: int, number: int) -> Cursor | PackedCursor:
        found = self._passes.get((source, number))
        if found is None:
            plan: EpochPlan | PackedEpoch = self.epoch.mixture.plans[source].one_pass(number)
            cursor: Cursor | PackedCursor = plan.cursor(self._capacity)
            self._passes.put((source, number), cursor, weight=1)
            return cursor
        return found


@dataclass(frozen=True, eq=False)
class SampleMixture:
    """Sources whose samples are mixed: where the shards of each begin among all, and, [sources, g], how many samples of
    each group it has, and an epoch takes.  capacity [g]: samples of a batch of each group.
    """

    starts: tuple[int, ...]
    sizes: Ints
    quota: Ints
    capacity: Ints
    one_pass: Callable[[int, int, Ints], EpochPlan]
    """The order of a source in one of its passes, in pieces of so many samples of each group."""

    @classmethod
    def make(
        cls,
        starts: Sequence[int],
        sizes: Ints,
        weights: Sequence[float],
        length: int | None,
        capacity: Ints,
        one_pass: Callable[[int, int, Ints], EpochPlan],
    ) -> SampleMixture:
        """Quotas of the sources in their shares, and of groups within a source as its samples are spread over them."""
        of_sources = quotas(weights, int(sizes.sum()) if length is None else length)
        quota = np.array([quotas(row.tolist(), n, least=1) for row, n in zip(sizes, of_sources, strict=True)])
        return cls(tuple(starts), sizes, quota.reshape(sizes.shape), capacity, one_pass)

    @property
    def taken(self) -> Sequence[int]:
        """Samples that an epoch takes of each source."""
        return [int(n) for n in self.quota.sum(axis=1)]

    @cached_property
    def samples(self) -> Ints:
        """[g]: samples of each group in an epoch."""
        return np.asarray(self.quota.sum(axis=0))

    @cached_property
    def full(self) -> int:
        """Full batches of an epoch."""
        return full_batches(self.samples, self.capacity)

    @cached_property
    def total(self) -> int:
        """Batches of an epoch, the short ones included."""
        return all_batches(self.samples, self.capacity)

    def pieces(self, source: int) -> Ints:
        """[g]: samples of a source in a batch of each group, about."""
        share = self.quota[source] / np.maximum(1, self.samples)
        return np.asarray(np.maximum(1, np.rint(self.capacity * share)), dtype=np.int64)

    def epoch(self, epoch: int, seed: int, together: int, *, mixed: bool) -> MixedSamples:
        """The order of one epoch."""
        return MixedSamples(self, epoch, seed, together, mixed=mixed)


class MixedSamples:
    """Batches of samples of all sources."""

    def __init__(self, mixture: SampleMixture, epoch: int, seed: int, together: int, *, mixed: bool) -> None:
        self.mixture = mixture
        self._epoch = epoch
        samples, groups = mixture.samples, len(mixture.capacity)
        self._batches = GroupBatches(samples, mixture.capacity, together, phases(groups, seed, epoch, mixed=mixed))
        order = phases(len(mixture.starts), seed, epoch, mixed=mixed)
        self._sources = [Interleave(mixture.quota[:, group], order) for group in range(groups)]
        self.total = self._batches.total
        """Positions that hold samples."""

    def number(self, position: int) -> tuple[int, int]:
        """(group, number among the batches of the group) of a position."""
        return self._batches.locate(position)

    def parts(self, position: int) -> list[tuple[int, Stretch]]:
        """(source, samples of its group in one of its passes) that a position is made of."""
        group, number = self.number(position)
        size, merged = int(self.mixture.capacity[group]), self._sources[group]
        low, high = number * size, min((number + 1) * size, merged.total)
        found = []
        for source, (a, b) in enumerate(zip(merged.before(low), merged.before(high), strict=True)):
            quota, held = int(self.mixture.quota[source, group]), int(self.mixture.sizes[source, group])
            found += [(source, s) for s in stretches(self._epoch, quota, int(a), int(b), held)]
        return found

    def shards_read(self, taken: Taken) -> Bools:  # noqa: ARG002
        """[shards]: all of the epoch, since any batch may hold samples of any lane of a source."""
        return np.concatenate([self._read_of(source) for source in range(len(self.mixture.starts))])

    def _read_of(self, source: int) -> Bools:
        mixture, pieces = self.mixture, self.mixture.pieces(source)
        size, quota = np.maximum(1, mixture.sizes[source]), mixture.quota[source]
        low, high = self._epoch * quota, (self._epoch + 1) * quota  # counted through all passes, for each group
        first, end = int((low // size).min()), int((-(-high // size)).max())
        counts = mixture.one_pass(source, first, pieces).order.counts
        if end - first > _PASSES:
            return counts > 0
        found = np.zeros(len(counts), dtype=bool)
        for number in range(first, end):
            begin, stop = (np.clip(samples - number * size, 0, size) for samples in (low, high))
            batches = [
                Taken.whole(a, b)
                for a, b in zip((begin // pieces).tolist(), (-(-stop // pieces)).tolist(), strict=True)
            ]
            found |= mixture.one_pass(source, number, pieces).shards_with(enumerate(batches))
        return found

    def cursor(self, capacity: int = 128) -> MixedSampleCursor:
        """A cursor over this epoch; `capacity` is that of the cursor over each source."""
        return MixedSampleCursor(self, capacity)


class MixedSampleCursor:
    """Evaluates an epoch of mixed samples."""

    def __init__(self, epoch: MixedSamples, capacity: int) -> None:
        self.epoch = epoch
        self._capacity = capacity
        self._passes: Recent[tuple[int, int], Cursor] = Recent(2 * len(epoch.mixture.starts), spare=0)

    def samples(self, positions: NDArray[Any]) -> SampleRefs:
        """The samples of some positions, one position after the other."""
        parts = []
        for position in positions.tolist():
            group, _ = self.epoch.number(position)
            for source, stretch in self.epoch.parts(position):
                cursor = self._cursor(source, stretch.number)
                refs = cursor.gather(cursor.epoch.sample_runs(group, stretch.low, stretch.high))
                parts.append((refs.shards + self.epoch.mixture.starts[source], refs.indices))
        return SampleRefs.joined(parts)

    def bucket(self, position: int) -> int:
        """The group of the samples of a position."""
        return self.epoch.number(position)[0]

    def size(self, position: int) -> int:
        """How many samples a position has."""
        return sum(stretch.high - stretch.low for _, stretch in self.epoch.parts(position))

    def _cursor(self, source: int, number: int) -> Cursor:
        found = self._passes.get((source, number))
        if found is None:
            mixture = self.epoch.mixture
            plan = mixture.one_pass(source, number, mixture.pieces(source))
            found = self._passes.put((source, number), plan.cursor(self._capacity), weight=1)
        return found
