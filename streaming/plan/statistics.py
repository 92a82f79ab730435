"""What a plan may know of a dataset: of all shards at once from the manifest, of one shard from its sidecar.

>>> statistics = ColumnStatistics([{"tokens": np.array([3, 5])}, {"tokens": np.array([4])}])
>>> statistics.counts.tolist(), statistics.sums("tokens").tolist()
([2, 1], [8.0, 4.0])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardwriter.aggregate import SIZE, Aggregates, HistogramTable, aggregate, combine, derived


class Statistics(Protocol):
    """What a plan may know of a dataset: of all shards at once from the manifest, of one shard from its sidecar.

    Everything is about the samples that are chosen, where a predicate chooses some.
    """

    @property
    def counts(self) -> NDArray[np.int64]:
        """[shards]: samples of each shard."""
        ...

    def histogram(self, name: str) -> HistogramTable | None:
        """The histogram `size`, or that of a column; None where no shard has it."""
        ...

    def sums(self, name: str) -> NDArray[np.float64]:
        """[shards]: sum of a column over the samples of each shard."""
        ...

    def columns(self, shard: int) -> Mapping[str, NDArray[Any]]:
        """Columns of one shard, [samples] each, with those that follow from others."""
        ...


class ColumnStatistics:
    """The statistics of columns in memory, one dict of columns [samples] a shard: for planning without any shard."""

    def __init__(self, shards: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        self._shards = [{**columns, **derived(columns)} for columns in shards]
        self.counts = np.array([len(next(iter(c.values()), ())) for c in self._shards], dtype=np.int64)

    @cached_property
    def _aggregates(self) -> list[Aggregates]:
        return [aggregate(columns) for columns in self._shards]

    def histogram(self, name: str) -> HistogramTable | None:
        """The histogram `size`, or that of a column; None where no shard has it."""
        rows = [a.histograms.get(name) for a in self._aggregates]
        return None if all(row is None for row in rows) else combine(rows, sizes=name == SIZE)

    def sums(self, name: str) -> NDArray[np.float64]:
        """[shards]: sum of a column over the samples of each shard."""
        return np.array([a.totals.get(name, (0.0,))[0] for a in self._aggregates], dtype=np.float64)

    def columns(self, shard: int) -> Mapping[str, NDArray[Any]]:
        """Columns of one shard, with those that follow from others."""
        return self._shards[shard]
