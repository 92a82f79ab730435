"""Joins cells of similar samples into groups, as few as a good fill needs.

>>> def price(n, bound):                       # batches for samples as large as the largest, and half of one left over
...     return n[:, 0] * bound[:, 0] / 1000 + 0.5
>>> join(np.array([[90], [90], [2]]), np.array([[10.0], [20.0], [21.0]]), price, np.maximum, most=8).tolist()
[0, 1, 1]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Price = Callable[[Floats, Floats], Floats]
Meet = Callable[[Floats, Floats], Any]


class _Groups:
    """Groups of cells with, for each, the partner that it is cheapest to join with."""

    def __init__(self, counts: NDArray[Any], bounds: Floats, price: Price, meet: Meet) -> None:
        self.counts = counts.astype(np.float64)
        self.bounds = bounds.astype(np.float64)
        self._price = price
        self._meet = meet
        self.alive = np.ones(len(counts), dtype=bool)
        self.prices = price(self.counts, self.bounds)
        self.labels = np.arange(len(counts))
        self.change = np.full(len(counts), np.inf)
        self.partner = np.full(len(counts), -1)
        self._sure = np.ones(len(counts), dtype=bool)
        for i in range(len(counts)):
            self._seek(i)

    def _seek(self, i: int) -> Floats:
        """What joining i with each group changes in price; infinite for itself and for what is gone."""
        together = self._price(self.counts[i] + self.counts, self._meet(self.bounds[i], self.bounds))
        others = self.alive & (np.arange(len(self.alive)) != i)
        changes = np.where(others, together - self.prices - self.prices[i], np.inf)
        self.partner[i] = int(np.argmin(changes))
        self.change[i] = changes[self.partner[i]]
        self._sure[i] = True
        return changes

    def join(self, i: int, j: int) -> None:
        """Make one group of two, under the number of the first."""
        self.bounds[i] = self._meet(self.bounds[i], self.bounds[j])
        self.counts[i] += self.counts[j]
        self.prices[i] = self._price(self.counts[i : i + 1], self.bounds[i : i + 1])[0]
        self.alive[j], self.change[j] = False, np.inf
        self.labels[self.labels == j] = i
        self._sure &= (self.partner != i) & (self.partner != j)
        changes = self._seek(i)
        better = self.alive & (changes < self.change)
        better[i] = False
        self.change[better], self.partner[better], self._sure[better] = changes[better], i, True

    def best(self) -> int:
        """The group whose joining with its partner changes the price least."""
        while True:
            i = int(np.argmin(self.change))
            if self._sure[i]:
                return i
            self._seek(i)  # its partner was joined with another: what it costs now can only be more


def join(counts: NDArray[Any], bounds: Floats, price: Price, meet: Meet, *, most: int) -> NDArray[np.int64]:
    """Label of each cell, [k]: the same for cells of one group; labels ascend from 0 in order of first cells.

    counts [k, c]: what adds up when cells are joined, such as samples; bounds [k, d]: what a batch must be made for if
    it holds a cell, `meet` gives that of two together.  `price(counts, bounds)` is what groups cost, [k].  Two groups
    are joined, the pair that saves most first, while that saves anything or there are more than `most` groups.
    """
    if not len(counts):
        return np.zeros(0, dtype=np.int64)
    groups = _Groups(counts, bounds, price, meet)
    while groups.alive.sum() > 1:
        i = groups.best()
        if groups.change[i] >= 0 and groups.alive.sum() <= most:
            break
        groups.join(i, int(groups.partner[i]))
    _, first, which = np.unique(groups.labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[which.reshape(-1)].astype(np.int64)
