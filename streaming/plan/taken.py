"""Some positions of an epoch: those that a few ranks take.  From them follows what these ranks read.

>>> node = Taken.by_ranks([2, 3], world_size=4, start=0, end=10)
>>> np.flatnonzero(node.has(np.arange(10))).tolist()
[2, 3, 6, 7]
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Taken:
    """Of the positions low ... high - 1 each p with which[p % len(which)]."""

    low: int
    high: int
    which: NDArray[np.bool_]

    @classmethod
    def by_ranks(cls, ranks: Collection[int], world_size: int, start: int, end: int) -> Self:
        """What these ranks take of an epoch that begins at `start`."""
        which = np.zeros(world_size, dtype=bool)
        which[(start + np.fromiter(ranks, np.int64)) % world_size] = True
        return cls(start, end, which)

    @classmethod
    def whole(cls, low: int, high: int) -> Self:
        """All of the positions low ... high - 1."""
        return cls(low, high, np.ones(1, dtype=bool))

    @classmethod
    def listed(cls, first: int, which: NDArray[np.bool_]) -> Self:
        """Of the positions from `first` on those for which that is listed."""
        n = len(which)
        return cls(first, first + n, np.roll(which, first % n) if n else np.zeros(1, dtype=bool))

    def has(self, positions: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of some positions are among them."""
        inside = (positions >= self.low) & (positions < self.high)
        return np.asarray(inside & self.which[positions % len(self.which)])

    def all_of(self, total: int) -> bool:
        """Whether these are all positions of [0, total)."""
        return self.low <= 0 and self.high >= total and bool(self.which.all())

    def between(self, low: int, high: int) -> Taken:
        """Those among them that lie in low ... high - 1."""
        return Taken(max(self.low, low), min(self.high, high), self.which)

    def moved(self, by: int) -> Taken:
        """The same, counted from another position: p is then p + by."""
        return Taken(self.low + by, self.high + by, np.roll(self.which, by % len(self.which)))

    def numbers(self, low: int, high: int, together: int) -> Taken:
        """Of numbers low ... high - 1, which agree with their positions modulo `together` and in nothing else, all
        that may have one of these positions.
        """
        step = math.gcd(together, len(self.which))
        return Taken(low, high, np.asarray(self.which.reshape(-1, step).any(axis=0)))


def blocks_with(
    starts: NDArray[np.int64], lanes: NDArray[Any], low: NDArray[Any], high: NDArray[Any]
) -> NDArray[np.bool_]:
    """[lanes, blocks]: the blocks that hold anything of the places low[i] ... high[i] - 1 of lanes[i].

    starts [lanes, blocks + 1]: the place at which each block begins, and where the last one ends.
    """
    width, span = starts.shape[1], int(starts.max(initial=0)) + 1
    line = (starts + np.arange(len(starts))[:, np.newaxis] * span).reshape(-1)  # all lanes, one behind the other
    first = np.searchsorted(line, low + lanes * span, side="right") - 1 - lanes * width
    last = np.searchsorted(line, high - 1 + lanes * span, side="right") - 1 - lanes * width
    edges = np.zeros(starts.shape, dtype=np.int64)
    np.add.at(edges, (lanes, first), 1)
    np.add.at(edges, (lanes, last + 1), -1)
    return np.asarray(np.cumsum(edges[:, :-1], axis=1) > 0)
