"""A dataset's samples without those that are not wanted: by a predicate, or because they are over a budget.

>>> large = Chosen(statistics, lambda columns: columns["width"] >= 256)
>>> large.counts.sum(), large.indices(0)[:3]
(81213, array([0, 2, 3]))
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.aggregate import SIZE, Aggregates, HistogramTable, aggregate, combine

from .groups import Scale
from .statistics import Statistics

Looked = tuple[int, Aggregates]
Keep = Callable[[Mapping[str, NDArray[Any]]], NDArray[np.bool_]]
_KEPT: Final = 256
"""Shards whose list of chosen samples stays in memory."""


class Chosen:
    """The samples of `base` for which `keep(columns)`, a truth value for each, holds.

    The shards of `only` are looked at (all of them, where it is None); of others all samples stay.  `run` does that for
    each, like `map`: one after the other, or in a pool of threads where their columns come from afar.
    """

    def __init__(
        self,
        base: Statistics,
        keep: Keep,
        *,
        only: Iterable[int] | None = None,
        run: Callable[[Callable[[int], Looked], Iterable[int]], Iterable[Looked]] = map,
    ) -> None:
        self.base = base
        self._keep = keep
        self._all = only is None
        self.counts: NDArray[np.int64] = base.counts.copy()
        self._aggregates: dict[int, Aggregates] = {}
        self._known: OrderedDict[int, NDArray[np.int64]] = OrderedDict()
        looked_at = range(len(self.counts)) if only is None else sorted(only)
        self._looked_at = frozenset(looked_at)
        for shard, (count, aggregates) in zip(looked_at, run(self._look_at, looked_at), strict=True):
            self.counts[shard], self._aggregates[shard] = count, aggregates

    def _look_at(self, shard: int) -> Looked:
        columns = self.base.columns(shard)
        mask = self._keep(columns)
        return int(mask.sum()), aggregate({name: values[mask] for name, values in columns.items()})

    def __getstate__(self) -> dict[str, Any]:
        # Sums and histograms are for planning, which worker processes do not do.
        return self.__dict__ | {"_aggregates": {}, "_known": OrderedDict()}

    def histogram(self, name: str) -> HistogramTable | None:
        """The histogram `size`, or that of a column, over the samples that are chosen."""
        if self._all:
            rows = [self._aggregates[shard].histograms.get(name) for shard in range(len(self.counts))]
            return None if all(row is None for row in rows) else combine(rows, sizes=name == SIZE)
        table = self.base.histogram(name)
        if table is None:
            return None
        counts = np.array(table.counts)
        for shard in sorted(self._looked_at):
            counts[shard] = self._row(shard, name, table)
        return table._replace(counts=counts)

    def _row(self, shard: int, name: str, table: HistogramTable) -> NDArray[np.int64]:
        ids = Scale(name, table.shift).cells(self.columns(shard))
        return np.bincount(np.searchsorted(table.cells, ids), minlength=len(table.cells))

    def sums(self, name: str) -> NDArray[np.float64]:
        """[shards]: sum of a column over the samples that are chosen."""
        sums = np.zeros(len(self.counts)) if self._all else self.base.sums(name).copy()
        for shard, found in self._aggregates.items():
            sums[shard] = found.totals.get(name, (0.0,))[0]
        return sums

    def columns(self, shard: int) -> dict[str, NDArray[Any]]:
        """Columns of the chosen samples of one shard."""
        columns = self.base.columns(shard)
        if shard not in self._looked_at:
            return dict(columns)
        mask = self._keep(columns)
        return {name: values[mask] for name, values in columns.items()}

    def indices(self, shard: int) -> NDArray[np.int64] | None:
        """Numbers, within `base`, of the chosen samples of a shard; None where all are chosen."""
        if shard not in self._looked_at:
            return None
        found = self._known.get(shard)
        if found is None:
            found = self._known[shard] = np.flatnonzero(self._keep(self.base.columns(shard)))
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return found


def originals(statistics: Statistics | None, shards: NDArray[Any], indices: NDArray[Any]) -> NDArray[np.int64]:
    """Numbers in their whole shards of samples that are counted among the chosen ones: [n]."""
    while isinstance(statistics, Chosen):
        found = indices.copy()
        for shard in np.unique(shards).tolist():
            chosen = statistics.indices(shard)
            if chosen is not None:
                here = shards == shard
                found[here] = chosen[indices[here]]
        indices, statistics = found, statistics.base
    return indices
