"""What a plan comes to, in numbers: steps, batches, buckets, padding, tail, and what workers read.

>>> print(report(plan, workers=4))
3,318,333 samples in 332 shards, read along 64 lanes (Shuffle(shards=4, buffer=10000), seed 0)
PixelBudget(12845056): 15,080 steps on each of 8 ranks
...

All of it comes from the manifest; the sidecars of a few shards are read for packed batches, and for a tail that counts
the samples of single batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.aggregate import SIZE

from .errors import PlanError
from .plan import CostBudget, FixedBatch, Groups, PixelBudget, Plan, TailReport
from .plan.costs import capped
from .plan.describe import number
from .plan.groups import needed_histogram
from .plan.packed import PackedEpoch

_LOOKED_AT: Final = 256
"""Packed batches whose samples are counted, at most: those of one block of shards."""
_SHOWN: Final = 24
"""Buckets that are printed; --json has all."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A group of similar samples: (height, width), or the cost, that they are cut to, or padded to at most."""

    shape: tuple[float, ...]
    batch: int
    """Samples of a full batch."""
    samples: int
    batches: int
    sample_share: float
    batch_share: float
    fill: float
    """Share of the budget that a full batch takes at most; on average, about, where a batch holds one sample."""
    padding: float
    """Share of that which is padding, at most and about: a batch is padded to its own largest, one sample never."""
    kept: float | None
    """Share of an image's pixels that is left once it is scaled down and cut, about; None where nothing is cut."""


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A plan in numbers.  Shares are between 0 and 1; `fill`, `padding` and `kept` are means over the epoch, and None
    where a plan has no budget.
    """

    batch: str
    samples: int
    shards: int
    lanes: int
    order: str
    sticky: bool
    """Whether lanes have the same shards in every epoch."""
    keeps_lanes: bool
    """Whether each rank has lanes of its own, the same in every epoch."""
    ranks: int
    steps: int
    """Of each rank; with tail="uneven" of the first one."""
    batches: int
    short: int
    """Those among them that are not full."""
    sizes: tuple[int, float, int]
    """Samples of a full batch: least, mean over all batches, greatest."""
    looked_at: int | None
    """From how many batches `sizes` and `fill` are, where the manifest alone does not say."""
    fill: float | None
    padding: float | None
    kept: float | None
    oversize: int
    """Samples that are over the budget by themselves."""
    tail: str
    tail_counts: TailReport
    workers: int
    good_workers: list[int] | None
    """Worker counts per rank with which no byte is read twice; None where that is so with any."""
    reads_twice: bool
    """Whether `workers` makes readers share shards."""
    buckets: tuple[Bucket, ...]
    """By share of the samples, the greatest first."""

    def __str__(self) -> str:
        lines = [
            f"{number(self.samples, 'sample')} in {number(self.shards, 'shard')}, read along "
            f"{number(self.lanes, 'lane')} ({self.order})",
            f"{self.batch}: {number(self.steps, 'step')} on {self._ranks()}",
            self._batches_line(),
        ]
        if self.sticky:
            whose = ", and ranks their lanes" if self.keeps_lanes else ", but ranks share them"
            lines.append(f"sticky: lanes keep their shards over epochs{whose}")
        if self.fill is not None:
            lines.append(self._budget_line())
        if self.oversize:
            lines.append(f"{number(self.oversize, 'sample')} over the budget by themselves")
        return "\n".join([*lines, self._tail_line(), self._workers_line(), *_table(self.buckets)])

    def _ranks(self) -> str:
        return f"each of {self.ranks:,} ranks" if self.ranks > 1 else "1 rank"

    def _batches_line(self) -> str:
        least, mean, most = self.sizes
        seen = f", as {self.looked_at:,} of them show" if self.looked_at is not None else ""
        short = f", {number(self.short, 'short one')} among them" if self.short else ""
        held = f"{least:,} to {most:,} samples" if least != most else number(most, "sample")
        return f"{number(self.batches, 'batch')} of {held}{seen}, {mean:,.1f} on average{short}"

    def _budget_line(self) -> str:
        parts = [f"{_percent(self.fill)} of the budget is filled"]
        if self.padding:
            parts.append(f"at most about {_percent(self.padding)} of that with padding")
        if self.kept is not None:
            parts.append(f"images keep about {_percent(self.kept)} of their pixels")
        return "; ".join(parts)

    def _tail_line(self) -> str:
        counts = self.tail_counts
        if self.tail == "drop":
            share = _percent(counts.dropped_samples / max(1, self.samples))
            return f'tail "drop": {number(counts.dropped_samples, "sample")} left out each epoch ({share})'
        if self.tail == "pad":
            again = f"{number(counts.repeated_samples, 'sample')} in {number(counts.repeated_batches, 'batch')}"
            return f'tail "pad": {again} given again, flagged'
        return 'tail "uneven": every sample exactly once'

    def _workers_line(self) -> str:
        asked = f"{number(self.workers, 'worker')} on {self._ranks()}"
        if self.good_workers is None:
            return f"{asked}: no byte is read twice, nor with any other number"
        which = ", ".join(map(str, self.good_workers)) or "no number of workers"
        if self.reads_twice:
            return f"{asked}: parts of shards are read twice; numbers per rank with which none is: {which}"
        return f"{asked}: no byte is read twice; numbers per rank with which that is so: {which}"


def report(plan: Plan, workers: int = 1) -> PlanReport:
    """The numbers of a plan whose ranks have `workers` workers each (0: the trainer's own process)."""
    good = plan.good_workers()
    buckets = tuple(_buckets(plan))
    looked_at, sizes, fill = _sizes(plan, buckets)
    padded = sum(b.samples / b.batch * b.fill for b in buckets)
    padding = sum(b.samples / b.batch * b.fill * b.padding for b in buckets) / padded if padded else None
    return PlanReport(
        batch=repr(plan.batch) if plan.batch else "single samples",
        samples=plan.samples,
        shards=len(plan.counts),
        lanes=plan.lanes,
        order=f"{plan.shuffle}, seed {plan.seed}" if plan.shuffle else "in order",
        sticky=plan.sticky,
        keeps_lanes=plan.keeps_lanes,
        ranks=plan.world_size,
        steps=plan.steps(),
        batches=plan.total,
        short=plan.total - plan.full,
        sizes=sizes,
        looked_at=looked_at,
        fill=fill,
        padding=padding if buckets else 0.0 if fill is not None else None,
        kept=_kept(buckets),
        oversize=plan.oversize,
        tail=plan.tail,
        tail_counts=plan.tail_report(),
        workers=workers,
        good_workers=good,
        reads_twice=good is not None and max(1, workers) not in good,
        buckets=tuple(sorted(buckets, key=lambda b: -b.samples)),
    )


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a plan's histogram: their samples [g], bounds [g, 2, d] of their columns, and group [g].

    `name` is the column, or "size" for width and height.  With `longest`, larger images are scaled down to it first.
    """

    samples: NDArray[np.int64]
    bounds: NDArray[np.float64]
    groups: NDArray[np.int64]
    name: str
    longest: int | None

    @property
    def sizes(self) -> bool:
        """Whether the columns are width and height."""
        return self.name == SIZE


def cells(plan: Plan) -> Cells:
    """What a plan that groups similar samples knows of their sizes; raises PlanError for any other."""
    if not isinstance(plan.groups, Groups) or plan.statistics is None:
        raise PlanError(f"{plan.batch!r} makes no groups of similar samples")
    name = plan.groups.scale.name
    table = needed_histogram(plan.statistics, name)
    at = np.searchsorted(table.cells, plan.groups.cells)
    samples = np.asarray(table.counts.sum(axis=0, dtype=np.int64))[at]
    bounds = np.asarray(table.bounds[at], dtype=np.float64)
    longest = plan.batch.longest if isinstance(plan.batch, PixelBudget) and plan.batch.mode == "pad" else None
    if longest is not None:
        height, width = capped(bounds[..., 1], bounds[..., 0], longest)
        bounds = np.stack([width, height], axis=-1).astype(np.float64)
    return Cells(samples, bounds, plan.groups.group_of_cell.astype(np.int64), name, longest)


def limit(plan: Plan) -> float:
    """The budget of a plan, in pixels or in what its column counts."""
    if isinstance(plan.batch, PixelBudget | CostBudget):
        return plan.batch.limit
    raise PlanError(f"{plan.batch!r} is no budget")


def _buckets(plan: Plan) -> list[Bucket]:
    if not isinstance(plan.groups, Groups):
        return []
    groups, most = plan.groups, limit(plan)
    own = _own_costs(plan, len(groups))
    batches = -(-groups.samples // groups.capacity)
    cut = isinstance(plan.batch, PixelBudget) and plan.batch.mode == "bucket"
    found = []
    for g, shape in enumerate(groups.shapes):
        n, capacity, cost = int(groups.samples[g]), int(groups.capacity[g]), float(np.prod(shape))
        full = float(own[g]) / (n * cost) if n and cost else 1.0  # own pixels for each that the bucket has
        if capacity == 1 and not cut:  # what comes alone is not padded, so that its bound may be over the budget
            cost, full = cost * full, 1.0
        found.append(
            Bucket(
                shape, capacity, n, int(batches[g]), n / max(1, plan.samples), int(batches[g]) / max(1, plan.total),
                fill=capacity * cost / most,
                padding=0.0 if cut else max(0.0, 1.0 - full),
                kept=1.0 / full if cut else None,
            )
        )  # fmt: skip
    return found


def _own_costs(plan: Plan, groups: int) -> NDArray[np.float64]:
    """[G]: what the samples of each group cost by themselves, about: the middle of each cell stands for its samples."""
    found = cells(plan)
    costs = np.prod(found.bounds.mean(axis=1), axis=1) * found.samples
    if found.sizes and found.longest is None and plan.statistics is not None:
        exact = float(plan.statistics.sums("pixels").sum())  # the manifest has the sum over all cells
        costs *= exact / max(1.0, float(costs.sum())) if exact else 1.0
    return np.bincount(found.groups, costs, minlength=groups).astype(np.float64)


def _kept(buckets: Sequence[Bucket]) -> float | None:
    cut = [(b.samples * float(np.prod(b.shape)), b.kept) for b in buckets if b.kept]
    return sum(area for area, _ in cut) / sum(area / kept for area, kept in cut) if cut else None


def _sizes(plan: Plan, buckets: Sequence[Bucket]) -> tuple[int | None, tuple[int, float, int], float | None]:
    """(batches looked at or None, (least, mean, greatest) of their samples, share of the budget that is filled)."""
    mean = plan.samples / max(1, plan.total)
    if isinstance(plan.groups, Groups):
        sizes = [b.batch for b in buckets]
        full = sum(b.samples / b.batch for b in buckets)
        fill = sum(b.samples / b.batch * b.fill for b in buckets) / max(full, 1e-9)
        return None, (min(sizes, default=0), mean, max(sizes, default=0)), fill
    if plan.groups is None:
        size = plan.batch.samples if isinstance(plan.batch, FixedBatch) else 1
        return None, (size, mean, size), None
    samples, costs = _packed(plan)
    least, most = (int(samples.min()), int(samples.max())) if len(samples) else (0, 0)
    return len(samples), (least, mean, most), float(costs.mean()) if len(costs) else 0.0


def _packed(plan: Plan) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Samples, and share of the budget, of the batches of one block."""
    epoch = plan.epoch(0)
    samples: list[int] = []
    costs: list[float] = []
    if not isinstance(epoch, PackedEpoch) or not plan.total:
        return np.array(samples, np.int64), np.array(costs)
    cursor, most, first = epoch.cursor(), epoch.packing.costs.most, epoch.locate(0)[:2]
    known: dict[int, NDArray[Any]] = {}
    for position in range(0, min(plan.total, _LOOKED_AT * plan.lanes), plan.lanes):  # lanes take turns
        if epoch.locate(position)[:2] != first:
            break
        refs = cursor.samples(np.array([position]))
        for shard in set(refs.shards.tolist()) - known.keys():
            known[shard] = epoch.costs_of(shard)
        samples.append(len(refs))
        costs.append(sum(int(known[s][i]) for s, i in zip(refs.shards.tolist(), refs.indices.tolist(), strict=True)))
    return np.array(samples), np.array(costs) / most


def _table(buckets: Sequence[Bucket]) -> list[str]:
    if not buckets:
        return []
    what = "height x width" if len(buckets[0].shape) == 2 else "cost"
    last = "kept" if buckets[0].kept is not None else "padding"
    lines = [
        f"{number(len(buckets), 'bucket')}:",
        f"{what:>16} {'samples a batch':>16} {'of samples':>11} {'of batches':>11} {'of budget':>10} {last:>8}",
    ]
    for b in buckets[:_SHOWN]:
        share = b.padding if b.kept is None else b.kept
        shares = f"{_percent(b.sample_share):>11} {_percent(b.batch_share):>11} {_percent(b.fill):>10}"
        lines.append(f"{shape_text(b.shape):>16} {b.batch:>16,} {shares} {_percent(share):>8}")
    rest = buckets[_SHOWN:]
    if rest:
        of_rest = _percent(sum(b.sample_share for b in rest))
        lines.append(f"and {len(rest):,} more with {of_rest} of the samples (--json has all)")
    return lines


def shape_text(shape: Sequence[float]) -> str:
    """480 x 640."""
    return " x ".join(f"{side:,.10g}" for side in shape)


def _percent(share: float | None) -> str:
    return f"{100 * (share or 0.0):.2f} %"
