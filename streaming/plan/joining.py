"""Joins cells of similar samples into groups, as few as a good fill needs.

>>> join(np.array([90, 90, 2]), np.array([[10.0], [20.0], [21.0]]), lambda n, bound: n * bound[:, 0] / 1000, np.maximum,
...      room=lambda bound: 1000 // bound[:, 0], least=0.5, most=8).tolist()
[0, 1, 1]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class _Groups:
    """Groups of cells with, for each, the partner that it is cheapest to join with."""

    def __init__(self, counts: NDArray[Any], bounds: Floats, price: Callable[..., Floats], meet: Any) -> None:
        self.counts = counts.astype(np.float64)
        self.bounds = bounds.astype(np.float64).copy()
        self._price = price
        self._meet = meet
        self.alive = np.ones(len(counts), dtype=bool)
        self.prices = price(self.counts, self.bounds)
        self.labels = np.arange(len(counts))
        self.change = np.full(len(counts), np.inf)
        self.partner = np.full(len(counts), -1)
        for i in range(len(counts)):
            self._seek(i)

    def _changes(self, i: int) -> Floats:
        """What joining i with each group changes in price; infinite for itself and for what is gone."""
        together = self._price(self.counts[i] + self.counts, self._meet(self.bounds[i], self.bounds))
        return np.where(self.alive & (np.arange(len(self.alive)) != i), together - self.prices - self.prices[i], np.inf)

    def _seek(self, i: int) -> Floats:
        changes = self._changes(i)
        self.partner[i] = int(np.argmin(changes))
        self.change[i] = changes[self.partner[i]]
        return changes

    def join(self, i: int, j: int) -> None:
        """Make one group of two, under the number of the first."""
        self.bounds[i] = self._meet(self.bounds[i], self.bounds[j])
        self.counts[i] += self.counts[j]
        self.prices[i] = self._price(self.counts[i : i + 1], self.bounds[i : i + 1])[0]
        self.alive[j], self.change[j] = False, np.inf
        self.labels[self.labels == j] = i
        stale = np.flatnonzero(self.alive & ((self.partner == i) | (self.partner == j)))
        changes = self._seek(i)
        better = self.alive & (changes < self.change)
        better[i] = False
        self.change[better], self.partner[better] = changes[better], i
        for k in stale.tolist():
            if k != i:
                self._seek(k)


def join(
    counts: NDArray[Any],
    bounds: Floats,
    price: Callable[[Floats, Floats], Floats],
    meet: Any,
    *,
    room: Callable[[Floats], Floats],
    least: float,
    most: int,
    dear: float = 1.0,
) -> NDArray[np.int64]:
    """Label of each cell, [k]: the same for cells of one group; labels ascend from 0 in order of first cells.

    counts [k]: samples of each cell; bounds [k, d]: what a batch must be made for if it holds a cell; `meet` gives the
    bound of two together.  `price(counts, bounds)` is what groups cost, in batches.  Two groups are joined, the
    cheapest first, while that costs less than `least` batches or there are more than `most` groups.  Then those with
    fewer samples than a batch has `room` for are joined too, where that costs less than `dear` batches.
    """
    if not len(counts):
        return np.zeros(0, dtype=np.int64)
    groups = _Groups(counts, bounds, price, meet)
    while groups.alive.sum() > 1:
        i = int(np.argmin(groups.change))
        if groups.change[i] >= least and groups.alive.sum() <= most:
            break
        groups.join(i, int(groups.partner[i]))
    _feed(groups, room, dear)
    return np.asarray(np.unique(groups.labels, return_inverse=True)[1].reshape(-1), dtype=np.int64)


def _feed(groups: _Groups, room: Callable[[Floats], Floats], dear: float) -> None:
    """Join what is too small for a batch of its own, as long as that costs less than `dear` batches each time."""
    while groups.alive.sum() > 1:
        small = groups.alive & (groups.counts < room(groups.bounds)) & (groups.change < dear)
        if not small.any():
            return
        i = int(np.argmin(np.where(small, groups.counts, np.inf)))
        groups.join(i, int(groups.partner[i]))
