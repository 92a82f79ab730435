"""Samples that are over a budget by themselves: how many there are, and what happens to them.

>>> settled = settle(CostBudget("tokens", 4096, oversize="skip"), statistics)
>>> settled.samples, settled.statistics.counts.sum()
(2, 9998)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from .budgets import CostBudget, PixelBudget
from .chosen import Chosen
from .costs import Costs
from .groups import needed_histogram, pieces
from .statistics import Statistics


@dataclass(frozen=True)
class Within:
    """Whether each sample is within the budget."""

    costs: Costs

    def __call__(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
        """A truth value for each sample of a shard."""
        return self.costs.of_samples(columns) <= self.costs.most


@dataclass(frozen=True, eq=False)
class Settled:
    """The samples to plan with, how many are over the budget, and how many of each shard come alone, [shards]."""

    statistics: Statistics
    samples: int
    alone: NDArray[np.int64]


def settle(budget: PixelBudget | CostBudget, statistics: Statistics) -> Settled:
    """Count the samples over the budget, and leave them out or refuse them where the budget says so.

    The sidecars of shards that may hold such samples are read; the histogram says which those are.
    """
    none = np.zeros(len(statistics.counts), dtype=np.int64)
    if isinstance(budget, PixelBudget) and budget.mode == "bucket":
        return Settled(statistics, 0, none)  # images are scaled down to their buckets
    costs = Costs.of(budget)
    table = needed_histogram(statistics, costs.column)
    suspect = costs.bounds(table) > costs.most
    if not suspect.any():
        return Settled(statistics, 0, none)
    suspects = [where.start + np.flatnonzero(rows[:, suspect].any(axis=1)) for where, rows in pieces(table.counts)]
    shards = np.concatenate(suspects).tolist()
    within = Within(costs)
    alone = none.copy()
    for shard in shards:
        alone[shard] = int((~within(statistics.columns(shard))).sum())
    over = int(alone.sum())
    if over and budget.oversize == "error":
        raise PlanError(
            f"{over:,} samples are over the budget of {budget!r} by themselves, the first in shard number "
            f"{int(np.flatnonzero(alone)[0])}",
            hint='raise the budget, or say oversize="alone" or "skip"',
        )
    if over and budget.oversize == "skip":
        return Settled(Chosen(statistics, within, only=np.flatnonzero(alone).tolist()), over, none)
    return Settled(statistics, over, alone)
