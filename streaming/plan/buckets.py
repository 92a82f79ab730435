"""From a budget and the sizes of a dataset to its groups: aspect-ratio buckets, or bounds to pad to.

Cells of the histogram of sizes are joined (joining) into as few groups as a good fill allows.  What is wanted differs:

- Buckets cut every image of a group to one shape, at most as large as its smallest image (unless images may be scaled
  up): joining loses pixels.  Shapes are chosen so that a whole number of images comes close to the budget, since what
  is left free makes the batches, and so the ranks, uneven.
- Padding enlarges every image of a group to the largest of its batch: joining adds pixels.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.aggregate import SIZE, HistogramTable

from ..errors import PlanError
from .budgets import MOST_SAMPLES, CostBudget, PixelBudget
from .costs import capped_bounds
from .groups import Groups, Scale, cell_samples, group_counts, needed_histogram
from .joining import join
from .statistics import Statistics

MOST_GROUPS: Final = 256
MOST_COUNTS: Final = 1 << 23
"""Groups, and counts of groups over all shards, that a plan makes by itself."""
_MOST_SIDES: Final = 1024
"""Sides of buckets that are tried each way; with more steps than that they are multiples of a multiple."""
_NEXT_TO_NOTHING: Final = 3
"""Thousandths of a dataset that short batches may hold, and ranks be kept even by them."""
_UNEVEN: Final = 4.0
"""What stays free of a budget counts as so many times what images lose: it makes ranks wait."""

Floats = NDArray[np.float64]


def make_groups(budget: PixelBudget | CostBudget, statistics: Statistics, lanes: int) -> Groups:
    """The groups for a budget whose batches are padded or cut to one shape.  Raises PlanError."""
    name = SIZE if isinstance(budget, PixelBudget) else budget.column
    table = needed_histogram(statistics, name)
    samples = cell_samples(table.counts)
    used = samples > 0
    counts = table.counts
    table = table._replace(cells=table.cells[used], bounds=table.bounds[used])
    check_values(table.cells, table.bounds, samples[used], name)
    if isinstance(budget, CostBudget):
        labels, capacity, shapes = _padded(table.bounds[:, 1], samples[used], budget.max_cost, len(counts), lanes)
    elif budget.mode == "pad":
        bounds = capped_bounds(table, budget.longest)
        labels, capacity, shapes = _padded(bounds, samples[used], budget.max_pixels, len(counts), lanes)
    elif budget.buckets is not None:
        labels, capacity, shapes = _given(budget, table, samples[used])
    else:
        labels, capacity, shapes = _made(budget, table, samples[used], len(counts), lanes)
    of_cell = labels.astype(np.int16)
    of_every = np.full(len(used), -1, dtype=np.int16)
    of_every[used] = of_cell
    grouped = group_counts(counts, of_every, len(capacity))
    capacity = even(capacity, grouped.sum(axis=0, dtype=np.int64))
    return Groups(capacity, shapes, grouped, Scale(name, table.shift), table.cells, of_cell)


def check_values(cells: NDArray[Any], bounds: Floats, samples: NDArray[Any], name: str) -> None:
    """Raise PlanError for images of unknown size, and for costs below 0: no budget can hold them."""
    if not len(cells) or cells[0] != 0:
        return
    if name in (SIZE, "pixels"):
        raise PlanError(
            f"{int(samples[0]):,} samples have no image, or one whose size the index does not know",
            hint="leave them out with where='pixels > 0', or repair them",
        )
    if bounds[0, 0, 0] < 0:
        raise PlanError(
            f"column {name!r} has values below 0, such as {bounds[0, 0, 0]:g}: they are no costs",
            hint=f"leave them out with where='{name} >= 0'",
        )


def _most_groups(shards: int) -> int:
    return min(MOST_GROUPS, max(16, MOST_COUNTS // max(1, shards)))


def _left(lanes: int) -> float:
    """What one more group costs, in batches: half of one is not filled, and more is pooled at the ends of the lanes."""
    return 0.5 + lanes / 16


def room(bounds: Floats, most: float) -> Floats:
    """Samples that a batch holds if each takes what a bound takes, at least 1: never more than the budget allows."""
    cost = np.maximum(np.prod(bounds, axis=1), most / MOST_SAMPLES)
    n = np.maximum(1, np.floor(most / cost))
    return np.asarray(np.maximum(1, n - (n * cost > most)), dtype=np.float64)


def even(capacity: NDArray[np.int64], samples: NDArray[np.int64]) -> NDArray[np.int64]:
    """Capacities at which as many batches hold nearly all samples of a group, rather than all but one being full.

    >>> even(np.array([100, 100, 4]), np.array([290, 7, 101])).tolist()
    [96, 7, 4]

    Of a large dataset, whose short batches hold next to nothing of it, only such groups are changed as stay full.
    """
    batches = np.maximum(1, -(-samples // capacity))
    fewer = np.maximum(1, samples // batches)
    few = int((samples % capacity).sum()) * 1000 <= _NEXT_TO_NOTHING * int(samples.sum())
    possible = (samples // fewer == batches) & (np.logical_not(few) | (200 * fewer >= 199 * capacity))
    return np.where(possible, fewer, capacity)


def _padded(
    bounds: Floats, samples: NDArray[Any], most: float, shards: int, lanes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[tuple[float, ...], ...]]:
    """Groups for batches padded to their largest: joining two makes both as large as the larger one each way."""
    bounds = np.maximum(bounds, 0.0)

    def price(n: Floats, sizes: Floats) -> Floats:
        return np.asarray(n[:, 0] / room(sizes, most) + _left(lanes), dtype=np.float64)

    labels = join(samples[:, None], bounds, price, np.maximum, most=_most_groups(shards))
    joined = np.array([bounds[labels == g].max(axis=0) for g in range(labels.max(initial=-1) + 1)])
    joined = joined.reshape(-1, bounds.shape[1])
    return labels, room(joined, most).astype(np.int64), tuple(map(tuple, joined.tolist()))


def _wanted(budget: PixelBudget, table: HistogramTable) -> Floats:
    """(height, width) that the images of each cell would have at best, [g, 2]: the smallest ones' where images may not
    be scaled up, else those of a middle one.
    """
    sizes = table.bounds[:, 0] if not budget.upscale else table.bounds.mean(axis=1)
    sizes = sizes[:, ::-1].astype(np.float64)
    factor = np.ones(len(sizes))
    if budget.longest is not None:
        factor = np.minimum(factor, budget.longest / sizes.max(axis=1))
    if budget.area is not None:
        fitting = np.sqrt(budget.area / np.prod(sizes, axis=1))
        most = budget.longest / sizes.max(axis=1) if budget.longest is not None else np.inf
        factor = np.minimum(fitting, most if budget.upscale else factor)
    return np.asarray(sizes * factor[:, None], dtype=np.float64)


def _made(
    budget: PixelBudget, table: HistogramTable, samples: NDArray[Any], shards: int, lanes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[tuple[float, ...], ...]]:
    """Buckets from the sizes: of each group the best shape within its smallest image."""
    step, most = budget.multiple, budget.max_pixels
    wanted = _wanted(budget, table)
    inside = _Shapes(step, most, int(wanted.max(initial=1)))
    pixels = math.fsum((samples * np.prod(wanted, axis=1)).tolist())
    # What a group leaves over, in samples; of a small dataset, which has few batches, not more than a few samples.
    usual = most * float(samples.sum()) / pixels if len(samples) else 0.0
    another = min(_left(lanes) * usual, float(samples.sum()) / 32)

    def price(n: Floats, bounds: Floats) -> Floats:
        shape = inside.best(bounds)
        area, held = np.prod(shape, axis=1), room(shape, most)
        lost = n[:, 0] - n[:, 1] * area
        free = n[:, 0] * (1 - held * area / most)
        return np.asarray(lost + _UNEVEN * free + another, dtype=np.float64)

    # In terms of samples: half of an image's pixels lost is half a sample lost, and so is half of what is left over.
    counts = np.stack([samples, samples / np.prod(wanted, axis=1)], axis=1)
    labels = join(counts, wanted, price, np.minimum, most=_most_groups(shards) // 4)
    smallest = np.array([wanted[labels == g].min(axis=0) for g in range(labels.max(initial=-1) + 1)]).reshape(-1, 2)
    return _by_shape(labels, inside.best(smallest), most)


def _by_shape(
    labels: NDArray[Any], shapes: Floats, most: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[tuple[float, ...], ...]]:
    """Groups that came to the same shape are one bucket."""
    distinct, which = np.unique(shapes.astype(np.int64), axis=0, return_inverse=True)
    capacity = room(distinct.astype(np.float64), most).astype(np.int64)
    return which.reshape(-1)[labels], capacity, tuple(map(tuple, distinct.tolist()))


class _Shapes:
    """The best bucket within any size: as large as can be, and with little of the budget left free."""

    def __init__(self, step: int, most: int, longest: int) -> None:
        step *= 1 + min(longest, most // step) // (step * _MOST_SIDES)
        self._step = step
        n = max(1, min(longest, most // step) // step)
        sides = np.arange(1, n + 1) * float(step)
        area = sides[:, None] * sides[None, :]
        count = np.floor(most / area)
        value = np.where(count > 0, area - _UNEVEN * (most / np.maximum(count, 1) - area), -np.inf)
        self._at = np.zeros((n, n), dtype=np.int64)
        best = np.full((n, n), -np.inf)
        for i in range(n):  # best[i, j]: over all shapes up to (i, j)
            row, at = value[i].copy(), i * n + np.arange(n)
            if i:
                higher = best[i - 1] > row
                row[higher], at[higher] = best[i - 1][higher], self._at[i - 1][higher]
            top = np.maximum.accumulate(row)
            first = np.maximum.accumulate(np.where(np.r_[True, row[1:] > top[:-1]], np.arange(n), 0))
            best[i], self._at[i] = top, at[first]
        self._n = n

    def best(self, sizes: Floats) -> Floats:
        """(height, width) of the best bucket within each (height, width); no side is below one step."""
        index = np.clip(sizes // self._step, 1, self._n).astype(np.int64) - 1
        at = self._at[index[:, 0], index[:, 1]]
        shape = np.stack([at // self._n + 1, at % self._n + 1], axis=1)
        return np.asarray(shape * float(self._step), dtype=np.float64)


def _given(
    budget: PixelBudget, table: HistogramTable, samples: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[tuple[float, ...], ...]]:
    """The bucket of each cell, of those that the user gave: the one that cuts least away, then the nearest in size."""
    shapes = np.array(budget.buckets, dtype=np.float64)
    sizes = table.bounds.mean(axis=1)[:, ::-1]
    scale = (shapes[None] / sizes[:, None]).max(axis=2)
    kept = np.prod(shapes, axis=1)[None] / (np.prod(sizes, axis=1)[:, None] * scale**2)
    score = kept * np.sqrt(np.sqrt(np.minimum(scale, 1 / scale)))
    if not budget.upscale:
        fits = np.asarray((shapes[None] <= table.bounds[:, 0, ::-1][:, None]).all(axis=2))
        alone = np.asarray(~np.any(fits, axis=1))
        if alone.any():
            least = table.bounds[alone][:, 0, ::-1].min(axis=0)
            raise PlanError(
                f"{int(samples[alone].sum()):,} images may be smaller than every bucket, the smallest about "
                f"{least[0]:.0f} x {least[1]:.0f}",
                hint="give a smaller bucket, allow upscale=True, or leave them out with where=",
            )
        score = np.where(fits, score, -1.0)
    which = np.argmax(score, axis=1)
    used, labels = np.unique(which, return_inverse=True)
    capacity = room(shapes[used], budget.max_pixels).astype(np.int64)
    return labels.reshape(-1), capacity, tuple((int(h), int(w)) for h, w in shapes[used].tolist())


def fill(groups: Groups, most: float) -> Floats:
    """Share of the budget that a full batch of each group takes at most, [G]."""
    taken = groups.capacity * np.array([math.prod(shape) for shape in groups.shapes])
    return np.asarray(taken / most, dtype=np.float64)
