"""The plan: everything that decides which samples come when, made from the manifest's numbers alone.

>>> print(Plan.make(np.full(20, 100), batch=FixedBatch(32), shuffle=True, seed=7, world_size=2))
2,000 samples in 20 shards, read along 4 lanes (Shuffle(shards=4, buffer=10000), seed 7)
62 full micro-batches of FixedBatch(32) and a short one of 16: 31 steps on each of 2 ranks
tail "drop": 16 of 2,000 samples left out each epoch (0.80 %)
workers per rank that read no byte twice: 1, 2

A plan prints, compares and computes; it opens no file, starts no thread and knows no torch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from .describe import describe
from .epoch import EpochPlan
from .groups import Groups
from .keys import words
from .layout import Tail, check_place, good_workers, steps_of
from .making import (
    Batch,
    check_arguments,
    checked,
    choose,
    costs_of,
    fixed_size,
    groups_for,
    settled_for,
    units_of,
)
from .mix import Mix, Slice
from .mixed import BatchMixture, MixedBatches, MixedSamples, SampleMixture
from .order import Order
from .packed import PackedEpoch
from .packing import Packing
from .ranks import own_shards, shards_of_ranks
from .shuffle import Shuffle
from .statistics import Statistics

ORDER_VERSION: Final = 1
"""Changes when the same arguments give another order; part of every saved state."""


TOGETHER: Final = 8
"""Micro-batches of one kind that come together: as many as a machine often has devices."""


@dataclass(frozen=True, slots=True)
class TailReport:
    """What the tail policy does to an epoch, in samples and micro-batches."""

    dropped_samples: int
    repeated_samples: int
    repeated_batches: int


@dataclass(frozen=True, eq=False)
class Plan:
    """Samples, lanes, batches and tail of a dataset for a number of ranks.  Made by `Plan.make` or `dataset.plan`."""

    counts: NDArray[np.int64]
    batch: Batch | None
    shuffle: Shuffle | None
    seed: int
    lanes: int
    tail: Tail
    world_size: int
    dataset: str
    together: int = TOGETHER
    where: str | None = None
    groups: Groups | Packing | None = None
    """What a budget makes of the dataset."""
    statistics: Statistics | None = field(default=None, repr=False)
    oversize: int = 0
    """Samples that are over the budget by themselves."""
    mix: Mix | None = None
    sources: tuple[tuple[int, int], ...] = ()
    """With a mix: the shards low ... high - 1 of each source."""
    plans: tuple[Plan, ...] = ()
    """With a mix by batch: the plan of each source."""
    sticky: bool = False
    """Whether a lane has the same shards in every epoch."""

    @classmethod
    def make(
        cls,
        counts: NDArray[Any] | Statistics,
        *,
        batch: Batch | None = None,
        shuffle: Shuffle | bool = False,
        seed: int = 0,
        lanes: int | None = None,
        tail: Tail | None = None,
        world_size: int = 1,
        dataset: str = "",
        together: int = TOGETHER,
        where: str | None = None,
        mix: Mix | None = None,
        sources: Sequence[int] = (),
        sticky: bool = False,
    ) -> Self:
        """Check the arguments and fill in what was left open.

        counts [shards]: samples of each shard, or, for budgets, the Statistics of a dataset.  `lanes` defaults to as
        many as leave each lane a whole block of shards, or 1 without shuffle (the order of the dataset itself); `tail`
        to "drop" with shuffle, "pad" without; `dataset`, a name for the content, to a digest of the counts.
        `together`, for budgets: how many micro-batches of one group of similar samples come one after the other.
        `where`, the predicate that chose the samples, is noted only.  With a mix, `sources` says how many shards, one
        after the other, belong to each source.  `sticky`: a lane has the shards of epoch 0 in every epoch, each time in
        another order, so that caches of nodes that read the same lanes stay warm; without shuffle that is so anyway.
        Raises PlanError for arguments that make no plan.
        """
        check_arguments(batch, shuffle, seed, lanes, tail, together, sticky)
        check_place(0, world_size)
        shuffled = shuffle if isinstance(shuffle, Shuffle) else Shuffle() if shuffle else None
        known = None if isinstance(counts, np.ndarray | list | tuple) else counts
        settled = settled_for(batch, known)
        chosen_from = settled.statistics if settled else known
        numbers = checked(chosen_from.counts if chosen_from is not None else counts)
        groups = None if mix is not None and mix.by == "batch" else groups_for(batch, settled, lanes, shuffled)
        made = cls(
            numbers, batch, shuffled, int(seed), choose(lanes, numbers, batch, shuffled, groups),
            tail or ("drop" if shuffled else "pad"), world_size,
            dataset or hashlib.sha256(numbers.astype("<i8").tobytes()).hexdigest()[:24],
            together, where, groups, chosen_from, settled.samples if settled else 0, sticky=sticky,
        )  # fmt: skip
        return made if mix is None else made._mixed(mix, sources, lanes)

    def _mixed(self, mix: Mix, shards: Sequence[int], lanes: int | None) -> Self:
        """The plan for a mix whose sources have so many shards each."""
        edges = np.cumsum([0, *shards]).tolist()
        sources = tuple(pairwise(edges))
        if edges[-1] != len(self.counts) or len(sources) != len(mix.weights):
            raise PlanError(f"{mix!r} has {len(mix.weights)} sources, {len(sources)} are given")
        for name, (low, high) in zip(mix.weights, sources, strict=True):
            if not self.counts[low:high].sum():
                raise PlanError(f"Mix: {name!r} has no samples", hint="leave it out")
        if mix.by == "sample" and isinstance(self.groups, Packing):
            raise PlanError(
                "a mix by sample can't be packed: how many bins it needs depends on which samples meet",
                hint='use Mix(..., by="batch"), or mode="pad" or "bucket"',
            )
        whole = max(
            choose(lanes, self.counts[low:high], self.batch, self.shuffle, self.groups) for low, high in sources
        )
        plans: tuple[Plan, ...] = ()
        if mix.by == "batch":
            plans = tuple(self._plan_of(i, low, high, lanes) for i, (low, high) in enumerate(sources))
        return replace(self, mix=mix, sources=sources, plans=plans, lanes=max([whole, *(p.lanes for p in plans)]))

    def _plan_of(self, i: int, low: int, high: int, lanes: int | None) -> Plan:
        """The plan of one source of a mix by batch; `statistics` are settled, so nothing is over the budget twice."""
        part = self.counts[low:high] if self.statistics is None else Slice(self.statistics, low, high)
        return Plan.make(
            part, batch=self.batch, shuffle=self.shuffle or False, seed=self._seed_of(i), lanes=lanes, tail="uneven",
            together=self.together, sticky=self.sticky,
        )  # fmt: skip

    def _seed_of(self, source: int) -> int:
        return int(words(1, self.seed, "source", source)[0])

    @cached_property
    def samples(self) -> int:
        """Samples of the dataset: of all sources together, for a mix."""
        return int(self.counts.sum())

    @property
    def kinds(self) -> int:
        """Groups of similar samples; 1 without a budget and for packing."""
        return len(self.groups) if isinstance(self.groups, Groups) else 1

    @property
    def short_samples(self) -> int:
        """Samples of an epoch's short micro-batches, without a mix."""
        if isinstance(self.groups, Groups):
            return int((self.groups.samples % self.groups.capacity).sum())
        return 0 if self.groups is not None else self.samples % fixed_size(self.batch)

    @property
    def full(self) -> int:
        """Full micro-batches of an epoch.  It does not depend on the lanes, since what is left in them is pooled."""
        if self.mixture is not None:
            return self.mixture.full
        return self.groups.full if self.groups is not None else self.samples // fixed_size(self.batch)

    @property
    def total(self) -> int:
        """Micro-batches of an epoch, the short ones included: the positions that hold samples."""
        if self.mixture is not None:
            return self.mixture.total
        return self.groups.total if self.groups is not None else -(-self.samples // fixed_size(self.batch))

    @cached_property
    def mixture(self) -> BatchMixture | SampleMixture | None:
        """How much of each source an epoch takes; None without a mix."""
        if self.mix is None:
            return None
        starts, weights, length = [low for low, _ in self.sources], list(self.mix.weights.values()), self.mix.length
        if self.mix.by == "batch":
            return BatchMixture.make(self.plans, starts, weights, length, self.tail)
        counts = self.groups.counts if isinstance(self.groups, Groups) else self.counts[:, None]
        capacity = self.groups.capacity if isinstance(self.groups, Groups) else np.array([fixed_size(self.batch)])
        sizes = np.array([counts[low:high].sum(axis=0, dtype=np.int64) for low, high in self.sources])
        return SampleMixture.make(starts, sizes, weights, length, capacity, self._pass_of)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "mixture"}

    @property
    def end(self) -> int:
        """The position at which the epoch is over for rank 0 of this plan's ranks."""
        return self.steps() * self.world_size

    def __len__(self) -> int:
        return self.steps()

    def steps(self, *, start: int = 0, rank: int = 0) -> int:
        """How many micro-batches `rank` yields from `start` on; the same for all ranks unless tail="uneven"."""
        return steps_of(
            total=self.total, full=self.full, world_size=self.world_size, tail=self.tail, start=start, rank=rank
        )

    def source(self, position: int) -> tuple[int, bool]:
        """(position whose samples are given, whether that is a repeat), for positions that a padded epoch runs over."""
        return (position, False) if position < self.total else ((position - self.total) % self.total, True)

    def epoch(self, epoch: int) -> EpochPlan | PackedEpoch | MixedBatches | MixedSamples:
        """The order of one epoch."""
        if self.mixture is not None:
            return self.mixture.epoch(epoch, self.seed, self.together, mixed=self.shuffle is not None)
        return self.one_pass(epoch)

    def shards_of_ranks(self, epoch: int, ranks: Collection[int], *, start: int = 0) -> NDArray[np.int64]:
        """Numbers, ascending, of the shards that some ranks read in an epoch, or in what is left of it from `start` on.

        None is missing, but some may be there that are not read: blocks of shards count as a whole, and all shards that
        an epoch of a mix by sample reads count for all ranks.
        """
        return shards_of_ranks(self, epoch, ranks, start)

    def own_shards(self, epoch: int, ranks: Collection[int], *, start: int = 0) -> NDArray[np.int64]:
        """Numbers, ascending, of the shards in the lanes that some ranks read until the first lanes end.

        These hold most of what the ranks read, and with `sticky` are the same in every epoch: what a node's cache
        should hold first.  Lanes that ranks share count for each; with a mix all do, since passes begin anywhere.
        """
        return own_shards(self, epoch, ranks, start)

    @property
    def keeps_lanes(self) -> bool:
        """Whether each rank has lanes of its own, the same in every epoch: then `sticky` keeps its cache warm."""
        return self.mix is None and self.own_lanes(self.world_size)

    def own_lanes(self, readers: int) -> bool:
        """Whether each of so many readers has lanes of its own; in a mix passes begin anywhere, so only one has."""
        return readers == 1 or (self.mix is None and self.apart % readers == 0)

    @property
    def apart(self) -> int:
        """Readers that it divides have lanes of their own, without a mix."""
        return math.gcd(self.lanes, self.together) if isinstance(self.groups, Groups) else self.lanes

    def one_pass(self, number: int) -> EpochPlan | PackedEpoch:
        """The order of pass `number` over all samples: without a mix, of that epoch."""
        unit, block = units_of(self.groups, self.shuffle)
        order = Order(
            self.counts, shuffle=self.shuffle, seed=self.seed, epoch=number, lanes=self.lanes, unit=unit, block=block,
            costs=costs_of(self.groups), sticky=self.sticky,
        )  # fmt: skip
        if self.groups is None:
            return EpochPlan(order, np.array([fixed_size(self.batch)]))
        known = self._known()
        if isinstance(self.groups, Packing):
            costs = self.groups.costs
            return PackedEpoch(order, self.groups, lambda shard: costs.of_samples(known.columns(shard)))
        groups = self.groups
        return EpochPlan(
            order, groups.capacity, groups.counts, lambda shard: groups.of(known.columns(shard)), together=self.together
        )

    def _pass_of(self, source: int, number: int, pieces: NDArray[np.int64]) -> EpochPlan:
        """The order of a source of a mix by sample in one of its passes."""
        low, high = self.sources[source]
        counts = self.counts[low:high]
        lanes = min(self.lanes, choose(None, counts, self.batch, self.shuffle)) if self.shuffle else self.lanes
        order = Order(
            counts, shuffle=self.shuffle, seed=self._seed_of(source), epoch=number, lanes=lanes, sticky=self.sticky
        )
        if not isinstance(self.groups, Groups):
            return EpochPlan(order, pieces)
        groups, known = self.groups, self._known()
        return EpochPlan(order, pieces, groups.counts[low:high], lambda shard: groups.of(known.columns(low + shard)))

    def _known(self) -> Statistics:
        if self.statistics is None:
            raise PlanError("a plan with a budget needs the sizes of the samples")
        return self.statistics

    def tail_report(self, epoch: int = 0) -> TailReport:
        """How many samples the tail policy leaves out or gives again, known before the first batch.

        With a budget or a mix that varies a little with the epoch.
        """
        given = self.steps() * self.world_size
        if self.tail == "uneven" or self.total == 0 or given == self.total:
            return TailReport(0, 0, 0)
        if self.tail == "drop":
            return TailReport(sum(self._sizes(epoch, given, self.total)), 0, 0)
        whole, rest = divmod(given - self.total, self.total)
        every = sum(self._sizes(epoch, 0, self.total)) if whole else 0
        repeated = whole * every + sum(self._sizes(epoch, 0, rest))
        return TailReport(0, repeated, given - self.total)

    def _sizes(self, epoch: int, low: int, high: int) -> list[int]:
        """Samples of the micro-batches at positions low ... high - 1."""
        if self.groups is None and self.mix is None:
            size = fixed_size(self.batch)
            return [min(size, self.samples - p * size) for p in range(low, high)]
        if low == 0 and high == self.total and self.mix is None:
            return [self.samples]
        cursor = self.epoch(epoch).cursor()
        return [cursor.size(p) for p in range(low, high)]

    def fingerprint(self) -> dict[str, Any]:
        """What the order depends on; two plans with equal fingerprints give equal sequences.  JSON-able."""
        more = {
            "groups": [p.groups.digest for p in (self, *self.plans) if p.groups is not None] or None,
            "together": self.together if isinstance(self.groups, Groups) or self.mix is not None else None,
            "where": self.where,
            "sticky": True if self.sticky and self.shuffle is not None else None,
            "mix": self.mix.order_key if self.mix is not None else None,
            "sources": [high - low for low, high in self.sources] or None,
            "passes": list(self.mixture.sizes) if isinstance(self.mixture, BatchMixture) else None,
        }
        return {
            "order": ORDER_VERSION,
            "dataset": self.dataset,
            "samples": self.samples,
            "shards": len(self.counts),
            "batch": self.batch.order_key if self.batch else None,
            "shuffle": repr(self.shuffle) if self.shuffle else None,
            "seed": self.seed,
            "lanes": self.lanes,
            **{name: value for name, value in more.items() if value is not None},
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        mine, theirs = (
            (self.fingerprint(), self.tail, self.world_size),
            (other.fingerprint(), other.tail, other.world_size),
        )
        return mine == theirs and np.array_equal(self.counts, other.counts)

    def __hash__(self) -> int:
        return hash((repr(self.fingerprint()), self.tail, self.world_size))

    def __str__(self) -> str:
        return describe(self)

    def good_workers(self) -> list[int] | None:
        """Worker counts per rank, up to 64, with which no byte is read twice; None where that is so with any.

        In order and without a budget each micro-batch is one run of the dataset.  Otherwise each reader needs lanes of
        its own: as many as divide the lanes and, where similar samples come together, the batches that do.
        """
        if self.lanes == 1 and self.shuffle is None and self.groups is None and self.mix is None:
            return None
        if self.mix is not None:  # passes begin anywhere in an epoch, so readers meet in the lanes of a source
            return good_workers(1, self.world_size)
        return good_workers(self.apart, self.world_size)
