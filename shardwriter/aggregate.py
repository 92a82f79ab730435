"""What a shard's columns add up to: sums, bounds and histograms, so that a plan can count without opening any sidecar.

>>> h = size_histogram(np.array([320, 320, 100]), np.array([240, 240, 400]))
>>> h.counts.tolist(), h.bounds.tolist()
([1, 2], [[100.0, 400.0], [320.0, 240.0]])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

PER_OCTAVE: Final = 4
"""Cells of a histogram per doubling: of the aspect ratio and of the area for sizes, of the value for other columns."""
ASPECT_OCTAVES: Final = 4
"""Aspect ratios beyond 1:16 and 16:1 fall into the outermost cells."""
SIZE: Final = "size"
"""Name of the histogram over the columns `width` and `height`."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cells that hold samples: ids [g] ascending, counts [g], and the largest value of each column there [g, d]."""

    cells: NDArray[Any]
    counts: NDArray[Any]
    bounds: NDArray[Any]


def size_cells(width: NDArray[Any], height: NDArray[Any]) -> NDArray[Any]:
    """Cell id of each (width, height): row by log aspect ratio, column by log area.  Sizes of 0 are cell 0."""
    known = (width > 0) & (height > 0)
    w, h = np.where(known, width, 1).astype("f8"), np.where(known, height, 1).astype("f8")
    span = ASPECT_OCTAVES * PER_OCTAVE
    aspect = np.clip(np.rint(np.log2(w / h) * PER_OCTAVE), -span, span).astype("i8") + span
    area = np.floor(np.log2(w * h) * PER_OCTAVE).astype("i8")
    return np.where(known, 1 + aspect * (64 * PER_OCTAVE) + area, 0)


def value_cells(values: NDArray[Any]) -> NDArray[Any]:
    """Cell id of each value on a logarithmic scale; values of 0 and below are cell 0."""
    positive = values > 0
    logs = np.log2(np.where(positive, values, 1).astype("f8"))
    return np.where(positive, 1 + np.floor(logs * PER_OCTAVE).astype("i8") + 1024 * PER_OCTAVE, 0)


def size_histogram(width: NDArray[Any], height: NDArray[Any]) -> Histogram:
    """The histogram of images by shape and area, with the largest width and height in each cell."""
    return _histogram(size_cells(width, height), np.stack([width, height], axis=1))


def value_histogram(values: NDArray[Any]) -> Histogram:
    """The histogram of one column, with the largest value in each cell."""
    return _histogram(value_cells(values), np.asarray(values)[:, None])


def _histogram(ids: NDArray[Any], values: NDArray[Any]) -> Histogram:
    cells, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    bounds = np.full((len(cells), values.shape[1]), -np.inf)
    np.maximum.at(bounds, inverse.reshape(-1), values)
    return Histogram(cells.astype("<u4"), counts.astype("<u4"), bounds.astype("<f8"))


@dataclass(frozen=True, slots=True)
class Aggregates:
    """One shard's columns in short: (sum, least, greatest) by column, and histograms by name."""

    totals: Mapping[str, tuple[float, float, float]]
    histograms: Mapping[str, Histogram]


def aggregate(columns: Mapping[str, NDArray[Any]]) -> Aggregates:
    """Aggregates of the columns of one shard; an empty shard has zeros and empty histograms."""
    totals = {
        name: (float(c.sum(dtype="f8")), float(c.min()), float(c.max())) if len(c) else (0.0, 0.0, 0.0)
        for name, c in columns.items()
    }
    histograms = {name: value_histogram(c) for name, c in columns.items() if name not in ("width", "height")}
    if "width" in columns and "height" in columns:
        histograms[SIZE] = size_histogram(columns["width"], columns["height"])
    return Aggregates(totals, histograms)


def combine(histograms: Sequence[Histogram | None]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Histograms of many shards as one table: cells [g], counts [shards, g], bounds [g, d] over all shards."""
    present = [h for h in histograms if h is not None and len(h.cells)]
    if not present:
        return np.zeros(0, "<u4"), np.zeros((len(histograms), 0), "<u4"), np.zeros((0, 1), "<f8")
    cells = np.unique(np.concatenate([h.cells for h in present]))
    counts = np.zeros((len(histograms), len(cells)), "<u4")
    bounds = np.full((len(cells), present[0].bounds.shape[1]), -np.inf)
    for row, h in enumerate(histograms):
        if h is not None and len(h.cells):
            at = np.searchsorted(cells, h.cells)
            counts[row, at] = h.counts
            bounds[at] = np.maximum(bounds[at], h.bounds)
    return cells, counts, bounds.astype("<f8")
