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
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from .batching import FixedBatch
from .buckets import fill, make_groups
from .budgets import CostBudget, PixelBudget
from .epoch import EpochPlan
from .groups import Groups
from .lanes import MOST, MOST_SINGLES, choose_lanes
from .layout import TAILS, Tail, check_place, good_workers, steps_of
from .order import Order
from .oversize import Settled, settle
from .packed import PackedEpoch
from .packing import BLOCK_BINS, Packing, make_packing
from .shuffle import Shuffle
from .statistics import Statistics

Batch = FixedBatch | PixelBudget | CostBudget

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
    ) -> Self:
        """Check the arguments and fill in what was left open.

        counts [shards]: samples of each shard, or, for budgets, the Statistics of a dataset.  `lanes` defaults to as
        many as leave each lane a whole block of shards, or 1 without shuffle (the order of the dataset itself); `tail`
        to "drop" with shuffle, "pad" without; `dataset`, a name for the content, to a digest of the counts.
        `together`, for budgets: how many micro-batches of one group of similar samples come one after the other.
        `where`, the predicate that chose the samples, is noted only.
        Raises PlanError for arguments that make no plan.
        """
        if shuffle is not None and not isinstance(shuffle, bool | Shuffle):
            raise PlanError(f"shuffle={shuffle!r}", hint="give True, False or Shuffle(shards=, buffer=)")
        mix = shuffle if isinstance(shuffle, Shuffle) else Shuffle() if shuffle else None
        if tail is not None and tail not in TAILS:
            raise PlanError(f"tail={tail!r}", hint=f"it is one of {', '.join(TAILS)}")
        if lanes is not None and (not isinstance(lanes, int) or isinstance(lanes, bool) or lanes < 1):
            raise PlanError(f"lanes={lanes!r}: a plan has at least 1 lane")
        if not isinstance(seed, int | np.integer) or isinstance(seed, bool):
            raise PlanError(f"seed={seed!r} is not a whole number")
        if batch is not None and not isinstance(batch, FixedBatch | PixelBudget | CostBudget):
            hint = "give FixedBatch(n), PixelBudget(pixels), CostBudget(column, cost), or None for single samples"
            raise PlanError(f"batch={batch!r}", hint=hint)
        if not isinstance(together, int) or isinstance(together, bool) or together < 1:
            raise PlanError(f"together={together!r}: at least 1 micro-batch of a kind comes at a time")
        check_place(0, world_size)
        known = None if isinstance(counts, np.ndarray | list | tuple) else counts
        settled = _settled(batch, known)
        chosen_from = settled.statistics if settled else known
        numbers = _checked(chosen_from.counts if chosen_from is not None else counts)
        groups: Groups | Packing | None = None
        if isinstance(batch, PixelBudget | CostBudget) and settled is not None:
            if _packs(batch):
                groups = make_packing(batch, settled.statistics, settled.alone)
            else:
                chosen = _lanes(lanes, numbers, batch, mix)
                groups = make_groups(batch, settled.statistics, chosen)
        chosen = _lanes(lanes, numbers, batch, mix, groups)
        name = dataset or hashlib.sha256(numbers.astype("<i8").tobytes()).hexdigest()[:24]
        return cls(
            numbers, batch, mix, int(seed), chosen, tail or ("drop" if mix else "pad"), world_size, name, together,
            where, groups, chosen_from, settled.samples if settled else 0,
        )  # fmt: skip

    @cached_property
    def samples(self) -> int:
        """Samples of the dataset."""
        return int(self.counts.sum())

    @property
    def full(self) -> int:
        """Full micro-batches of an epoch.  It does not depend on the lanes, since what is left in them is pooled."""
        if self.groups is not None:
            return self.groups.full
        return self.samples // _fixed(self.batch)

    @property
    def total(self) -> int:
        """Micro-batches of an epoch, the short ones included: the positions that hold samples."""
        if self.groups is not None:
            return self.groups.total
        return -(-self.samples // _fixed(self.batch))

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

    def epoch(self, epoch: int) -> EpochPlan | PackedEpoch:
        """The order of one epoch."""
        statistics, groups = self.statistics, self.groups
        unit, block = _units(groups, self.shuffle)
        order = Order(
            self.counts, shuffle=self.shuffle, seed=self.seed, epoch=epoch, lanes=self.lanes, unit=unit, block=block,
            costs=_costs(groups),
        )  # fmt: skip
        if groups is None:
            return EpochPlan(order, np.array([_fixed(self.batch)]))
        if statistics is None:
            raise PlanError("a plan with a budget needs the sizes of the samples")
        if isinstance(groups, Packing):
            return PackedEpoch(order, groups, lambda shard: groups.costs.of_samples(statistics.columns(shard)))
        return EpochPlan(
            order,
            groups.capacity,
            groups.counts,
            lambda shard: groups.of(statistics.columns(shard)),
            together=self.together,
        )

    def tail_report(self, epoch: int = 0) -> TailReport:
        """How many samples the tail policy leaves out or gives again, known before the first batch.

        With a budget that varies a little with the epoch.
        """
        given = self.steps() * self.world_size
        if self.tail == "uneven" or self.total == 0 or given == self.total:
            return TailReport(0, 0, 0)
        if self.tail == "drop":
            return TailReport(sum(self._sizes(epoch, given, self.total)), 0, 0)
        whole, rest = divmod(given - self.total, self.total)
        repeated = whole * self.samples + sum(self._sizes(epoch, 0, rest))
        return TailReport(0, repeated, given - self.total)

    def _sizes(self, epoch: int, low: int, high: int) -> list[int]:
        """Samples of the micro-batches at positions low ... high - 1."""
        if self.groups is None:
            size = _fixed(self.batch)
            return [min(size, self.samples - p * size) for p in range(low, high)]
        if low == 0 and high == self.total:
            return [self.samples]
        plan = self.epoch(epoch)
        if isinstance(plan, EpochPlan):
            return [plan.size(p) for p in range(low, high)]
        cursor = plan.cursor()
        return [cursor.size(p) for p in range(low, high)]

    def fingerprint(self) -> dict[str, Any]:
        """What the order depends on; two plans with equal fingerprints give equal sequences.  JSON-able."""
        of_budget = {
            "groups": self.groups.digest if self.groups is not None else None,
            "together": self.together if isinstance(self.groups, Groups) else None,
            "where": self.where,
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
            **{name: value for name, value in of_budget.items() if value is not None},
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
        return hash((tuple(self.fingerprint().values()), self.tail, self.world_size))

    def __str__(self) -> str:
        order = f"{self.shuffle}, seed {self.seed}" if self.shuffle else "in order"
        samples, shards = _number(self.samples, "sample"), _number(len(self.counts), "shard")
        lines = [f"{samples} in {shards}, read along {_number(self.lanes, 'lane')} ({order})"]
        ranks = f"each of {self.world_size} ranks" if self.world_size > 1 else "1 rank"
        more = self.total % self.world_size
        if self.tail == "uneven" and more:
            ranks = f"{more} of {self.world_size} ranks, one less on the others"
        steps = f"{_number(self.steps(), 'step')} on {ranks}"
        if self.batch is None:
            lines.append(f"single samples: {steps}")
        else:
            rest = self._short()
            lines.append(f"{_number(self.full, 'full micro-batch')} of {self.batch}{rest}: {steps}")
        lines += self._budget_lines()
        return "\n".join([*lines, self.describe_tail(), self._workers_line()])

    def _short(self) -> str:
        if isinstance(self.batch, FixedBatch):
            short = self.samples % self.batch.samples
            return f" and a short one of {short}" if short else ""
        short = self.total - self.full
        return f" and {_number(short, 'short one')}" if short else ""

    def _budget_lines(self) -> list[str]:
        lines = []
        if isinstance(self.groups, Groups) and isinstance(self.batch, PixelBudget | CostBudget):
            sizes = self.groups.capacity.tolist()
            most = self.batch.max_pixels if isinstance(self.batch, PixelBudget) else self.batch.max_cost
            share = float((fill(self.groups, most) * self.groups.samples).sum() / max(1, self.samples))
            lines.append(
                f"{_number(len(sizes), 'group')} of similar samples, {min(sizes, default=0):,} to "
                f"{max(sizes, default=0):,} in a batch, which take {100 * share:.1f} % of the budget"
            )
        if self.oversize:
            lines.append(self.describe_oversize())
        return lines

    def describe_oversize(self) -> str:
        """What happens to samples over the budget, in words."""
        done = "left out" if getattr(self.batch, "oversize", "alone") == "skip" else "each in a batch of its own"
        return f"{_number(self.oversize, 'sample')} over the budget by themselves: {done}"

    def describe_tail(self, epoch: int = 0) -> str:
        """What the tail policy does to an epoch, in words."""
        tail = self.tail_report(epoch)
        share = f"({100 * tail.dropped_samples / max(1, self.samples):.2f} %)"
        if self.tail == "drop":
            left_out = f"{tail.dropped_samples:,} of {_number(self.samples, 'sample')}"
            return f'tail "drop": {left_out} left out each epoch {share}'
        if self.tail == "pad":
            again = f"{_number(tail.repeated_samples, 'sample')} in {_number(tail.repeated_batches, 'micro-batch')}"
            return f'tail "pad": {again} given again, flagged'
        return 'tail "uneven": every sample exactly once'

    def good_workers(self) -> list[int] | None:
        """Worker counts per rank, up to 64, with which no byte is read twice; None where that is so with any.

        In order and without a budget each micro-batch is one run of the dataset.  Otherwise each reader needs lanes of
        its own: as many as divide the lanes and, where similar samples come together, the batches that do.
        """
        if self.lanes == 1 and self.shuffle is None and self.groups is None:
            return None
        apart = math.gcd(self.lanes, self.together) if isinstance(self.groups, Groups) else self.lanes
        return good_workers(apart, self.world_size)

    def _workers_line(self) -> str:
        good = self.good_workers()
        if good is None:
            return "workers per rank that read no byte twice: any (each micro-batch is one run of the dataset)"
        if good:
            return f"workers per rank that read no byte twice: {', '.join(map(str, good))}"
        lanes, ranks = _number(self.lanes, "lane"), _number(self.world_size, "rank")
        return f"readers share lanes ({lanes}, {ranks}) and read ranges of the same shards"


def _packs(batch: PixelBudget | CostBudget) -> bool:
    return batch.mode == "pack" if isinstance(batch, PixelBudget) else not batch.pad


def _fixed(batch: Batch | None) -> int:
    """Samples of a full micro-batch; 1 for an un-batched plan."""
    return batch.samples if isinstance(batch, FixedBatch) else 1


def _settled(batch: Batch | None, known: Statistics | None) -> Settled | None:
    if not isinstance(batch, PixelBudget | CostBudget):
        return None
    if known is None:
        raise PlanError(f"{batch!r} needs the sizes of the samples", hint="plan with the Statistics of a dataset")
    return settle(batch, known)


def _lanes(
    lanes: int | None,
    counts: NDArray[np.int64],
    batch: Batch | None,
    mix: Shuffle | None,
    groups: Groups | Packing | None = None,
) -> int:
    if lanes or not mix:
        return lanes or 1
    unit, block = _units(groups, mix)
    units = -(-len(counts) // unit)
    return choose_lanes(units, block or mix.shards, int(counts.sum()), MOST if batch else MOST_SINGLES)


def _units(groups: Groups | Packing | None, mix: Shuffle | None) -> tuple[int, int | None]:
    """(shards that are kept together, units in a block or None for as many as are mixed)."""
    if not isinstance(groups, Packing):
        return 1, None
    if mix is None:
        return groups.unit, None
    each = max(1, groups.total) / max(1, len(groups.bins))
    wanted = max(-(-mix.shards // groups.unit), math.ceil(BLOCK_BINS / each))
    return groups.unit, max(1, min(len(groups.bins), wanted))


def _costs(groups: Groups | Packing | None) -> NDArray[np.int64] | None:
    """What lanes should carry equally: [units], or None for samples."""
    if groups is None:
        return None
    if isinstance(groups, Packing):
        return groups.bins + groups.alone
    return np.asarray((groups.counts * ((1 << 24) // groups.capacity)).sum(axis=1), dtype=np.int64)


def _checked(counts: Any) -> NDArray[np.int64]:
    """A copy that nobody can change, so that a plan stays what it is."""
    given = np.asarray(counts)
    if given.ndim != 1 or (given.size and (given.dtype.kind not in "iu" or given.min() < 0)):
        raise PlanError("counts are no list of sample counts", hint="give one whole number of at least 0 a shard")
    checked = given.astype(np.int64)
    checked.flags.writeable = False
    return checked


def _number(n: int, what: str) -> str:
    """3,000 shards, 1 shard."""
    return f"{n:,} {what}{'' if n == 1 else 'es' if what.endswith('ch') else 's'}"
