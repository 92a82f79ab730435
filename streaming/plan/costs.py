"""What samples cost: in whole numbers, so that sums are exact and the same on every machine.

>>> costs = Costs.of(CostBudget("tokens", 4096, pad=False))
>>> costs.of_samples({"tokens": np.array([17, 0, 5000])}).tolist(), costs.most
([17, 1, 5000], 4096)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.aggregate import ASPECT_OCTAVES, SIZE, SIZE_STEPS, HistogramTable, edge

from .budgets import MOST_SAMPLES, CostBudget, PixelBudget

_FINE: Final = 40
"""Costs that are not whole numbers are counted in steps of about the budget / 2**40."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Costs:
    """A sample costs `scale` steps for each 1 of its column, rounded up; `most` steps are the budget, which is `limit`
    in terms of the column.  With `longest`, images are scaled down to it before they are counted.
    """

    column: str
    limit: float
    most: int
    scale: float = 1.0
    longest: int | None = None

    @classmethod
    def of(cls, budget: PixelBudget | CostBudget) -> Costs:
        """The costs that a budget counts."""
        if isinstance(budget, PixelBudget):
            name = SIZE if budget.longest else "pixels"
            return cls(name, budget.max_pixels, budget.max_pixels, 1.0, budget.longest)
        if isinstance(budget.max_cost, int):
            return cls(budget.column, budget.max_cost, budget.max_cost)
        scale = math.ldexp(1.0, _FINE - math.frexp(budget.max_cost)[1])
        return cls(budget.column, budget.max_cost, math.floor(budget.max_cost * scale), scale)

    @property
    def floor(self) -> int:
        """The least that a sample counts for."""
        return -(-self.most // MOST_SAMPLES)

    def steps(self, values: NDArray[Any]) -> Ints:
        """Costs of values, [n]; above `most` exactly where a value is above `limit`."""
        found = np.ceil(np.minimum(values * self.scale, float(1 << 60))).astype(np.int64)
        found = np.where(values > self.limit, np.maximum(found, self.most + 1), np.minimum(found, self.most))
        return np.asarray(np.maximum(found, self.floor), dtype=np.int64)

    def of_samples(self, columns: Mapping[str, NDArray[Any]]) -> Ints:
        """Costs of the samples of a shard, [n]."""
        if self.longest is None:
            return self.steps(columns[self.column])
        height, width = capped(columns["height"], columns["width"], self.longest)
        return np.asarray(np.maximum(height * width, self.floor), dtype=np.int64)

    def bounds(self, table: HistogramTable) -> Ints:
        """No less than the cost of any sample of each cell, [g]."""
        if self.longest is None:
            return self.steps(table.bounds[:, 1, 0])
        areas = np.prod(capped_bounds(table, self.longest), axis=1).astype(np.int64)
        return np.asarray(np.maximum(areas, self.floor), dtype=np.int64)


def capped_bounds(table: HistogramTable, longest: int | None) -> Floats:
    """(height, width) that no image of a cell exceeds, [g, 2], once those above `longest` are scaled down to it."""
    if longest is None:
        return np.asarray(table.bounds[:, 1, ::-1], dtype=np.float64)
    sides: Floats = np.maximum(table.bounds[:, :, ::-1], 1.0)  # unknown sizes are 0, which has no ratio
    least, greatest = sides[:, 0], sides[:, 1]
    row = (table.cells.astype(np.int64) - 1) // (64 * SIZE_STEPS) << table.shift
    span = ASPECT_OCTAVES * SIZE_STEPS
    narrow, wide = edge(row - span, SIZE_STEPS), edge(row - span + (1 << table.shift), SIZE_STEPS)
    # The outermost rows have no outer edge; the bounds of width and height also bound their ratio.
    inner = (row > 0) & (row + (1 << table.shift) < 2 * span)
    ratio_low = np.maximum(least[:, 1] / greatest[:, 0], np.where(inner, narrow, 0))
    ratio_high = np.minimum(greatest[:, 1] / least[:, 0], np.where(inner, wide, np.inf))
    shrink = np.minimum(1.0, longest / least.max(axis=1))
    height = np.minimum(greatest[:, 0] * shrink, longest * np.minimum(1.0, 1 / ratio_low))
    width = np.minimum(greatest[:, 1] * shrink, longest * np.minimum(1.0, ratio_high))
    uncapped = greatest.max(axis=1) <= longest
    # A side is rounded to the nearest pixel when it is scaled (capped), and edges to the nearest double.
    rounded = np.minimum(np.floor(np.stack([height, width], axis=1) + 0.500001), np.minimum(greatest, longest))
    return np.where(uncapped[:, None], greatest, np.maximum(1.0, rounded))


def capped(height: NDArray[Any], width: NDArray[Any], longest: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sizes of images once those above `longest` are scaled down to it; whole numbers, rounded to the nearest."""
    h, w = np.asarray(height, dtype=np.int64), np.asarray(width, dtype=np.int64)
    side = np.maximum(np.maximum(h, w), 1)
    small = side <= longest
    new_h = np.maximum(1, (2 * h * longest + side) // (2 * side))
    new_w = np.maximum(1, (2 * w * longest + side) // (2 * side))
    return np.where(small, h, new_h), np.where(small, w, new_w)
