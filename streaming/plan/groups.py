"""Groups of similar samples: which there are, how many samples a batch of each holds, and which group a sample is in.

>>> groups = Groups(np.array([4, 2]), ((224, 224), (320, 320)), np.array([[90, 10]]), scale, np.array([7, 9]), ...)
>>> groups.full, groups.total          # batches of an epoch, without and with the short ones
(27, 28)

All counts come from the histograms of the manifest; the group of a single sample from its own columns, by way of the
same cells.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwriter.aggregate import SIZE, HistogramTable, size_cells, value_cells
from shardwriter.mapped import let_go

from ..errors import IndexMismatch, PlanError
from .interleave import all_batches, full_batches
from .statistics import Statistics


@dataclass(frozen=True)
class Scale:
    """A histogram's scale: from a sample's columns to the cell that it was counted in."""

    name: str
    shift: int

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns that it is a scale of."""
        return ("width", "height") if self.name == SIZE else (self.name,)

    def cells(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
        """Cell of each sample, [n]."""
        values = [columns[name] for name in self.needs]
        if self.name == SIZE:
            return size_cells(values[0], values[1], self.shift)
        return value_cells(values[0], self.shift)


@dataclass(frozen=True, eq=False)
class Groups:
    """G groups: capacity [G], samples of a full batch; shapes, what its images or arrays are cut or padded to at most;
    counts [shards, G]; and the cells [g] with the group of each [g], -1 for cells whose samples are not in the plan.
    """

    capacity: NDArray[np.int64]
    shapes: tuple[tuple[float, ...], ...]
    counts: NDArray[np.int32]
    scale: Scale
    cells: NDArray[Any]
    group_of_cell: NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.capacity)

    @cached_property
    def samples(self) -> NDArray[np.int64]:
        """[G]: samples of each group."""
        return np.asarray(self.counts.sum(axis=0, dtype=np.int64))

    @cached_property
    def full(self) -> int:
        """Full batches of an epoch."""
        return full_batches(self.samples, self.capacity)

    @cached_property
    def total(self) -> int:
        """Batches of an epoch, the short ones included."""
        return all_batches(self.samples, self.capacity)

    def of(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.int16]:
        """Group of each sample of a shard, [n], from its columns; raises IndexMismatch for one in no cell."""
        found = self.scale.cells(columns)
        at = np.searchsorted(self.cells, found)
        at[at == len(self.cells)] = 0
        if len(found) and (not len(self.cells) or (self.cells[at] != found).any()):
            raise IndexMismatch(
                "a sample's numbers are not among those that the manifest counted",
                hint="make the index again (shardstream index)",
            )
        return np.asarray(self.group_of_cell[at], dtype=np.int16)

    @cached_property
    def digest(self) -> str:
        """A short name for what decides the batches."""
        state = hashlib.sha256(self.capacity.astype("<i8").tobytes())
        state.update(repr(self.shapes).encode())
        state.update(np.asarray(self.cells).astype("<u4").tobytes() + self.group_of_cell.astype("<i2").tobytes())
        return state.hexdigest()[:16]


def pieces(counts: NDArray[Any], entries: int = 1 << 20) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Some rows of counts [shards, g] at a time, so that those of a mapped index need not all be in memory."""
    step = max(1, entries // max(1, counts.shape[1]))
    for low in range(0, len(counts), step):
        rows = counts[low : low + step]
        yield slice(low, low + len(rows)), rows
        let_go(rows)


def cell_samples(counts: NDArray[Any]) -> NDArray[np.int64]:
    """[g]: samples of each cell, over all shards."""
    total = np.zeros(counts.shape[1], dtype=np.int64)
    for _, rows in pieces(counts):
        total += rows.sum(axis=0, dtype=np.int64)
    return total


def group_counts(counts: NDArray[Any], group_of_cell: NDArray[Any], groups: int) -> NDArray[np.int32]:
    """[shards, groups] from the counts of cells [shards, g], a part of the shards at a time."""
    out = np.zeros((len(counts), groups), dtype=np.int32)
    used = np.flatnonzero(group_of_cell >= 0)
    order = used[np.argsort(group_of_cell[used], kind="stable")]
    if not len(order):
        return out
    sorted_groups = group_of_cell[order]
    edges = np.flatnonzero(np.diff(sorted_groups, prepend=-1))
    for where, rows in pieces(counts):
        out[where, sorted_groups[edges]] = np.add.reduceat(rows[:, order], edges, axis=1, dtype=np.int32)
    return out


def needed_histogram(statistics: Statistics, name: str) -> HistogramTable:
    """The histogram of a column; raises PlanError, naming what is missing, where the index has none."""
    found = statistics.histogram(name)
    what = "sizes of images" if name in (SIZE, "pixels") else f"column {name!r}"
    if found is None and statistics.counts.sum():
        raise PlanError(
            f"the index has no {what}",
            hint="budgets count what the index knows: write the shards with that column, or index them again",
        )
    if found is None:
        empty = np.zeros((len(statistics.counts), 0), np.uint16)
        return HistogramTable(np.zeros(0, np.uint32), empty, np.zeros((0, 2, 2 if name == SIZE else 1)))
    counted = [rows.sum(axis=1, dtype=np.int64) for _, rows in pieces(found.counts)]
    uncounted = np.flatnonzero(np.concatenate([*counted, np.zeros(0, np.int64)]) != statistics.counts)
    if len(uncounted):
        raise PlanError(
            f"the index has no {what} for {len(uncounted):,} of {len(statistics.counts):,} shards, the first of them "
            f"shard number {uncounted[0]}",
            hint="budgets count every sample: index these shards again, or leave them out",
        )
    return found
