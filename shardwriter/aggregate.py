"""What a shard's columns add up to: sums, bounds and histograms, so that a plan can count without opening any sidecar.

>>> h = size_histogram(np.array([320, 320, 100]), np.array([240, 240, 400]))
>>> h.counts.tolist(), h.bounds.tolist()
([1, 2], [[[100.0, 400.0], [100.0, 400.0]], [[320.0, 240.0], [320.0, 240.0]]])

Cells lie on a logarithmic scale whose edges are exact: which cell a number falls into is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

SIZE_STEPS: Final = 8
"""Cells of the size histogram per doubling, of the aspect ratio and of the area."""
VALUE_STEPS: Final = 16
"""Cells of any other histogram per doubling of the value."""
ASPECT_OCTAVES: Final = 4
"""Aspect ratios beyond 1:16 and 16:1 fall into the outermost cells."""
SIZE: Final = "size"
"""Name of the histogram over the columns `width` and `height`."""
MAX_CELLS: Final = 1024
MAX_COUNTS: Final = 1 << 25
"""Cells of one histogram of a dataset, and counts over its shards, above which cells are joined."""
MAX_SHIFT: Final = 4

_ROW: Final = 64 * SIZE_STEPS
_ONE: Final = 1024 * VALUE_STEPS


def _edges(steps: int) -> NDArray[np.float64]:
    """The least doubles that are not below 2 ** (k / steps), for 0 < k < steps, by integer arithmetic."""
    edges = []
    for k in range(1, steps):
        low, high = 1 << 52, 1 << 53
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if middle**steps >= 1 << (k + 52 * steps) else (middle + 1, high)
        edges.append(low / (1 << 52))
    return np.array(edges)


_EDGES: Final = {steps: _edges(steps) for steps in (SIZE_STEPS, VALUE_STEPS)}


def edge(k: NDArray[Any], steps: int) -> NDArray[np.float64]:
    """The lower edge of cell k of a scale: 2 ** (k / steps), rounded up to a double; the same on every machine."""
    within = np.concatenate([[1.0], _EDGES[steps]])[k % steps]
    return np.asarray(np.ldexp(within, k // steps), dtype=np.float64)


def _floor_log(values: NDArray[Any], steps: int) -> NDArray[np.int64]:
    """floor(steps * log2(value)) of positive numbers, exactly."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    within = np.searchsorted(_EDGES[steps], 2 * mantissa, side="right")
    return steps * (exponent.astype(np.int64) - 1) + within


def size_cells(width: NDArray[Any], height: NDArray[Any], shift: int = 0) -> NDArray[np.int64]:
    """Cell id of each (width, height): row by log aspect ratio, column by log area.  Sizes of 0 are cell 0.

    Each `shift` halves the steps per doubling.
    """
    known = (width > 0) & (height > 0)
    w, h = np.where(known, width, 1).astype(np.float64), np.where(known, height, 1).astype(np.float64)
    span = ASPECT_OCTAVES * SIZE_STEPS
    aspect = np.clip(_floor_log(w / h, SIZE_STEPS), -span, span - 1) + span
    area = _floor_log(w * h, SIZE_STEPS)
    return np.where(known, 1 + (aspect >> shift) * _ROW + (area >> shift), 0)


def value_cells(values: NDArray[Any], shift: int = 0) -> NDArray[np.int64]:
    """Cell id of each value on a logarithmic scale; values of 0 and below are cell 0."""
    positive = values > 0
    logs = _floor_log(np.where(positive, values, 1), VALUE_STEPS) + _ONE
    return np.where(positive, 1 + (logs >> shift), 0)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cells that hold samples: ids [g] ascending, counts [g], and the least and the greatest value of each of d columns
    there, bounds [g, 2, d].
    """

    cells: NDArray[Any]
    counts: NDArray[Any]
    bounds: NDArray[Any]


def size_histogram(width: NDArray[Any], height: NDArray[Any]) -> Histogram:
    """The histogram of images by shape and area, with the bounds of width and height in each cell."""
    return _histogram(size_cells(width, height), np.stack([width, height], axis=1))


def value_histogram(values: NDArray[Any]) -> Histogram:
    """The histogram of one column, with the bounds of the values in each cell."""
    return _histogram(value_cells(values), np.asarray(values)[:, None])


def _histogram(ids: NDArray[Any], values: NDArray[Any]) -> Histogram:
    cells, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    bounds = _no_bounds(len(cells), values.shape[1])
    np.minimum.at(bounds[:, 0], inverse.reshape(-1), values)
    np.maximum.at(bounds[:, 1], inverse.reshape(-1), values)
    return Histogram(cells.astype("<u4"), counts.astype("<u4"), bounds.astype("<f8"))


def _no_bounds(cells: int, columns: int) -> NDArray[np.float64]:
    bounds = np.empty((cells, 2, columns))
    bounds[:, 0], bounds[:, 1] = np.inf, -np.inf
    return bounds


@dataclass(frozen=True, slots=True)
class Aggregates:
    """One shard's columns in short: (sum, least, greatest) by column, and histograms by name."""

    totals: Mapping[str, tuple[float, float, float]]
    histograms: Mapping[str, Histogram]


def derived(columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Columns that follow from others: `pixels`, width x height, and `seconds`, frames / rate (0 without a rate).

    A column of the user's that has the name already goes before.
    """
    found: dict[str, NDArray[Any]] = {}
    if "width" in columns and "height" in columns and "pixels" not in columns:
        found["pixels"] = columns["width"].astype(np.int64) * columns["height"].astype(np.int64)
    if "frames" in columns and "rate" in columns and "seconds" not in columns:
        rate = columns["rate"]
        found["seconds"] = np.where(rate > 0, columns["frames"] / np.where(rate > 0, rate, 1), 0.0)
    return found


def aggregate(columns: Mapping[str, NDArray[Any]]) -> Aggregates:
    """Aggregates of the columns of one shard, and of those that follow from them; an empty shard has zeros and empty
    histograms.
    """
    every = {**columns, **derived(columns)}
    totals = {
        name: (float(c.sum(dtype="f8")), float(c.min()), float(c.max())) if len(c) else (0.0, 0.0, 0.0)
        for name, c in every.items()
    }
    histograms = {name: value_histogram(c) for name, c in every.items() if name not in ("width", "height")}
    if "width" in columns and "height" in columns:
        histograms[SIZE] = size_histogram(columns["width"], columns["height"])
    return Aggregates(totals, histograms)


class HistogramTable(NamedTuple):
    """One histogram over all shards of a dataset: cells [g], counts [shards, g], bounds [g, 2, d] over all shards, and
    how often the steps of the scale are halved.
    """

    cells: NDArray[Any]
    counts: NDArray[Any]
    bounds: NDArray[Any]
    shift: int = 0


def combine(histograms: Sequence[Histogram | None], *, sizes: bool) -> HistogramTable:
    """Histograms of many shards as one table, over sizes or over the values of a column.

    Cells are joined, by halving the steps of the scale, until there are at most MAX_CELLS and MAX_COUNTS.
    """
    present = [h for h in histograms if h is not None and len(h.cells)]
    if not present:
        columns = 2 if sizes else 1
        return HistogramTable(np.zeros(0, "<u4"), np.zeros((len(histograms), 0), "<u2"), np.zeros((0, 2, columns)))
    every = np.unique(np.concatenate([h.cells for h in present]))
    most = min(MAX_CELLS, MAX_COUNTS // len(histograms))
    shift = 0
    while shift < MAX_SHIFT and len(np.unique(coarse(every, shift, sizes=sizes))) > most:
        shift += 1
    cells = np.unique(coarse(every, shift, sizes=sizes))
    counts = np.zeros((len(histograms), len(cells)), "<u4")
    bounds = _no_bounds(len(cells), present[0].bounds.shape[2])
    for row, h in enumerate(histograms):
        if h is not None and len(h.cells):
            at = np.searchsorted(cells, coarse(h.cells, shift, sizes=sizes))
            np.add.at(counts[row], at, h.counts)
            np.minimum.at(bounds[:, 0], at, h.bounds[:, 0])
            np.maximum.at(bounds[:, 1], at, h.bounds[:, 1])
    narrow = counts.astype("<u2") if counts.max() < 1 << 16 else counts
    return HistogramTable(cells.astype("<u4"), narrow, bounds.astype("<f8"), shift)


def stack(tables: Sequence[tuple[HistogramTable | None, NDArray[Any]]], *, sizes: bool) -> HistogramTable:
    """One table of the given rows of several, one below the other, on the coarsest of their scales."""
    shift = max((table.shift for table, _ in tables if table is not None), default=0)
    none = np.zeros(0, np.int64)
    moved = [none if t is None else coarse(t.cells, shift - t.shift, sizes=sizes) for t, _ in tables]
    cells = np.unique(np.concatenate([none, *moved]))
    counts = np.zeros((sum(len(rows) for _, rows in tables), len(cells)), "<u4")
    bounds = _no_bounds(len(cells), 2 if sizes else 1)
    first = 0
    for (table, rows), ids in zip(tables, moved, strict=True):
        if table is not None and len(table.cells):
            at = np.searchsorted(cells, ids)
            for i, cell in enumerate(at.tolist()):
                counts[first : first + len(rows), cell] += np.asarray(table.counts[rows, i], dtype="<u4")
            np.minimum.at(bounds[:, 0], at, table.bounds[:, 0])
            np.maximum.at(bounds[:, 1], at, table.bounds[:, 1])
        first += len(rows)
    return HistogramTable(cells.astype("<u4"), counts, bounds.astype("<f8"), shift)


def coarse(cells: NDArray[Any], shift: int, *, sizes: bool) -> NDArray[np.int64]:
    """Ids of cells on a scale whose steps are halved `shift` times."""
    ids = cells.astype(np.int64) - 1
    joined = (ids // _ROW >> shift) * _ROW + (ids % _ROW >> shift) if sizes else ids >> shift
    return np.where(cells > 0, joined + 1, 0)
