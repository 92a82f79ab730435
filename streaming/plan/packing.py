"""Packing: bins of samples of any size, each within the budget and all nearly equal.

>>> bins = pack(np.array([5, 3, 3, 2, 2, 1]), 2)
>>> [np.flatnonzero(bins == b).tolist() for b in (0, 1)]      # 5 + 2 + 1 and 3 + 3 + 2
[[0, 3, 5], [1, 2, 4]]

How many bins a run of shards needs is known without its samples.  Largest first, each sample goes into the emptiest
bin (Graham, "Bounds on multiprocessing timing anomalies", 1969).  When a sample of cost v comes, the samples before it
cost at least as much, so with S(v) the sum of all that cost v or more, the emptiest of k bins holds at most S(v) / k.
No bin exceeds the budget P if

- k >= S(v) / (P - v) for every v up to P / 2, and
- k >= the number of samples above P / 2, since the first k samples all find an empty bin.

Both are taken from the histogram, whose cells bound their samples from above.  Where they hold for each of several runs
with bins of its own, they suffice for all of these packed together into all their bins.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.aggregate import HistogramTable
from shardwriter.mapped import let_go

from .buckets import check_values
from .budgets import CostBudget, PixelBudget
from .costs import Costs
from .groups import cell_samples, needed_histogram, pieces
from .statistics import Statistics

UNIT_BINS: Final = 64
"""Bins that a run of shards should have: it is rounded up to a whole number of them."""
BLOCK_BINS: Final = 128
"""Bins that a block of shards should have, so that all bins are filled alike."""
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Packing:
    """How many bins each unit, a run of `unit` shards, is packed into: bins [units].

    alone [units]: samples over the budget, each with a further bin of its own.
    """

    costs: Costs
    unit: int
    bins: Ints
    alone: Ints

    @cached_property
    def total(self) -> int:
        """Batches of an epoch."""
        return int(self.bins.sum() + self.alone.sum())

    @property
    def full(self) -> int:
        """All of them: none is short."""
        return self.total

    @cached_property
    def digest(self) -> str:
        """A short name for what decides the batches."""
        state = hashlib.sha256(self.bins.astype("<i8").tobytes() + self.alone.astype("<i8").tobytes())
        return state.hexdigest()[:16]


def make_packing(budget: PixelBudget | CostBudget, statistics: Statistics, over: Ints) -> Packing:
    """How many bins each run of shards is packed into; over [shards]: samples that are over the budget.

    Raises PlanError for unknown and negative costs.
    """
    costs = Costs.of(budget)
    table = needed_histogram(statistics, costs.column)
    samples = cell_samples(table.counts)
    used = samples > 0
    check_values(table.cells[used], table.bounds[used], samples[used], costs.column)
    greatest = np.zeros(len(used), dtype=np.int64)  # cells that no sample is in bound nothing
    greatest[used] = np.minimum(costs.bounds(_part(table, used)), costs.most)
    if costs.longest is None:
        sums = _sums(statistics, costs, table) - over * costs.most
        rows = np.flatnonzero(over)  # what a sample costs beyond the budget is nothing to share out
        sums[rows] = np.minimum(sums[rows], _weighted(table.counts[rows], greatest) - over[rows] * costs.most)
    else:
        sums = _weighted(table.counts, greatest) - over * costs.most
    return _divided(costs, table.counts, greatest, sums, statistics.counts, over)


def _part(table: HistogramTable, cells: NDArray[np.bool_]) -> HistogramTable:
    """Some cells of a histogram, without their counts."""
    return table._replace(cells=table.cells[cells], bounds=table.bounds[cells], counts=table.counts[:0])


def _sums(statistics: Statistics, costs: Costs, table: HistogramTable) -> Ints:
    """[shards]: no less than the sum of the costs of each shard, and close to it."""
    exact = statistics.sums(costs.column) * costs.scale
    if costs.scale != 1.0 or (exact != np.floor(exact)).any():  # each cost is rounded up; sums of fractions are, too
        exact = np.ceil(exact * (1 + 1e-9)) + statistics.counts
    raised = costs.steps(table.bounds[:, 0, 0]) <= costs.floor
    return exact.astype(np.int64) + _weighted(table.counts, raised * costs.floor)


def _weighted(counts: NDArray[Any], weights: NDArray[Any]) -> Ints:
    """Counts [shards, g] times weights [g], a part of the shards at a time."""
    out = np.zeros(len(counts), dtype=np.int64)
    for where, rows in pieces(counts):
        out[where] = (rows * weights.astype(np.int64)).sum(axis=1)
    return out


def _divided(
    costs: Costs, counts: NDArray[Any], greatest: Ints, sums: Ints, samples: NDArray[np.int64], over: Ints
) -> Packing:
    """Units and their bins, by the two lines of the module's text."""
    shards = len(counts)
    least = max(1, -(-int(sums.sum()) // costs.most))
    unit = max(1, min(shards, math.ceil(UNIT_BINS * shards / least)))
    edges = np.arange(0, shards, unit)

    def of_units(values: Ints) -> Ints:
        return np.asarray(np.add.reduceat(values, edges), dtype=np.int64) if shards else values

    rest, alone, exact = of_units(samples - over), of_units(over), of_units(sums)
    bins = np.zeros(len(edges), dtype=np.int64)
    order = np.argsort(-greatest, kind="stable")
    step = max(1, (1 << 20) // max(1, unit * len(greatest)))
    for low in range(0, len(edges), step):
        part = slice(low, low + step)
        rows = np.add.reduceat(
            counts[low * unit : (low + step) * unit], edges[part] - low * unit, axis=0, dtype=np.int64
        )
        let_go(counts[low * unit : (low + step) * unit])
        bins[part] = _least_bins(rows[:, order], greatest[order], exact[part], alone[part], costs.most)
    return Packing(costs, unit, np.clip(bins, np.minimum(rest, 1), rest), alone)


def _least_bins(counts: Ints, greatest: Ints, exact: Ints, alone: Ints, most: int) -> Ints:
    """Bins of each unit, [units]: counts [units, g] of samples that cost at most greatest [g], which descends."""
    if not len(greatest):
        return np.zeros(len(counts), dtype=np.int64)
    large = greatest > most // 2
    # What comes alone is in the first cells, at the full budget each; it takes part in no sum.
    sums = np.cumsum(counts * greatest, axis=1) - alone[:, None] * most
    sums = np.minimum(sums, exact[:, None])
    needed = np.where(large, 0, -(-sums // np.maximum(1, most - greatest)))
    needed[:, ~large] *= counts[:, ~large] > 0
    return np.asarray(np.maximum(needed.max(axis=1), counts[:, large].sum(axis=1) - alone), dtype=np.int64)


def pack(costs: NDArray[Any], bins: int) -> Ints:
    """Bin of each sample: largest first, into the emptiest; of equal ones the first."""
    out = np.empty(len(costs), dtype=np.int64)
    order = np.argsort(-costs, kind="stable")
    heap = [(0, b) for b in range(bins)]
    placed = []
    for cost in costs[order].tolist():
        load, b = heap[0]
        placed.append(b)
        heapq.heapreplace(heap, (load + cost, b))
    out[order] = placed
    return out
