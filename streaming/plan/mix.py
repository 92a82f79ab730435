"""Several datasets in one epoch, in given shares.

>>> Mix({"s3://bucket/cc3m": 0.7, "s3://bucket/own": 0.3})
Mix({'s3://bucket/cc3m': 0.7, 's3://bucket/own': 0.3})
>>> quotas([0.7, 0.3], 1001)
[701, 300]

An epoch takes a fixed whole number of samples (or batches) from each source.  A source is read in passes, each in a new
order, and each epoch goes on where the one before it stopped: no sample of a source comes again before all of them have
come, whether an epoch holds a part of a pass or many passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.aggregate import HistogramTable

from ..errors import PlanError
from .statistics import Statistics

By = Literal["sample", "batch"]


@dataclass(frozen=True, repr=False)
class Mix:
    """Read several sources in shares of `weights`: source -> weight, of which only the ratios count.

    >>> Mix({"a": 2, "b": 1}, by="batch", length=3000)
    Mix({'a': 2, 'b': 1}, by='batch', length=3000)

    by       "sample": each batch holds samples of all sources, in their shares; "batch": each batch is of one source,
             and the shares are those of batches
    length   samples (or batches, by="batch") of an epoch; default: as many as all sources have together

    Goes where a source goes: StreamingDataset(Mix(...), ...).
    """

    weights: Mapping[str, float]
    by: By = "sample"
    length: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.weights, Mapping) or not self.weights:
            raise PlanError(f"Mix({self.weights!r})", hint="give a dict from source to weight")
        for source, weight in self.weights.items():
            number = isinstance(weight, int | float) and not isinstance(weight, bool)
            if not number or not math.isfinite(weight) or weight <= 0:
                raise PlanError(f"Mix: the weight of {source!r} is {weight!r}", hint="weights are numbers above 0")
        if self.by not in ("sample", "batch"):
            raise PlanError(f"Mix(by={self.by!r})", hint="it is 'sample' or 'batch'")
        whole = isinstance(self.length, int) and not isinstance(self.length, bool)
        if self.length is not None and (not whole or self.length < 1):
            raise PlanError(f"Mix(length={self.length!r}): a whole number of at least 1 is needed")
        object.__setattr__(self, "weights", dict(self.weights))

    @property
    def order_key(self) -> list[Any]:
        """What of this decides the order; where the sources lie is no part of it."""
        total = math.fsum(self.weights.values())
        return [[w / total for w in self.weights.values()], self.by, self.length]

    def __repr__(self) -> str:
        by = f", by={self.by!r}" if self.by != "sample" else ""
        length = f", length={self.length}" if self.length is not None else ""
        return f"Mix({self.weights!r}{by}{length})"


class Slice:
    """The statistics of some consecutive shards, low ... high - 1, counted from 0."""

    def __init__(self, base: Statistics, low: int, high: int) -> None:
        self._base = base
        self._low = low
        self._high = high
        self.counts: NDArray[np.int64] = base.counts[low:high]

    def histogram(self, name: str) -> HistogramTable | None:
        """The histogram `size`, or that of a column; None where no shard has it."""
        table = self._base.histogram(name)
        return None if table is None else table._replace(counts=table.counts[self._low : self._high])

    def sums(self, name: str) -> NDArray[np.float64]:
        """[shards]: sum of a column over the samples of each shard."""
        return self._base.sums(name)[self._low : self._high]

    def columns(self, shard: int) -> Mapping[str, NDArray[Any]]:
        """Columns of one shard, with those that follow from others."""
        return self._base.columns(self._low + shard)


def quotas(shares: Sequence[float], total: int, least: int = 0) -> list[int]:
    """Whole numbers that add up to `total` in these shares, by largest remainder; at least `least` for each share above
    0, where `total` is enough for that.
    """
    positive = [share > 0 for share in shares]
    least = least if least * sum(positive) <= total else 0
    rest = total - least * sum(positive)
    exact = [rest * share / math.fsum(shares) if some else 0.0 for share, some in zip(shares, positive, strict=True)]
    found = [math.floor(e) for e in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (found[i] - exact[i], i))
    for i in [i for i in by_remainder if positive[i]][: rest - sum(found)]:
        found[i] += 1
    return [n + least * some for n, some in zip(found, positive, strict=True)]


class Stretch(NamedTuple):
    """Items low ... high - 1 of one pass over a source."""

    number: int
    low: int
    high: int


def stretches(epoch: int, quota: int, low: int, high: int, size: int) -> list[Stretch]:
    """Where items low ... high - 1 of an epoch lie, for a source of `size` items of which each epoch takes `quota`.

    >>> stretches(epoch=1, quota=7, low=0, high=7, size=5)
    [Stretch(number=1, low=2, high=5), Stretch(number=2, low=0, high=4)]
    """
    found = []
    at, end = epoch * quota + low, epoch * quota + high
    while at < end:
        number, inside = divmod(at, size)
        stop = min(size, inside + end - at)
        found.append(Stretch(number, inside, stop))
        at += stop - inside
    return found
