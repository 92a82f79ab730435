"""Several sequences merged into one by time, so that each is spread evenly over the whole.

>>> merged = Interleave(np.array([4, 2]), np.array([0.5, 0.5]))
>>> [merged.locate(t) for t in range(6)]
[(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (0, 3)]

Item i of a sequence of n items with phase p, 0 <= p < 1, has the time (i + p) / n; items come by time, those of equal
time by sequence.  Any place is found without walking to it: at time x about x * n items of each sequence have come.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .taken import Taken


class Interleave:
    """The merged order of sequences with `counts` [g] items and `phases` [g]."""

    def __init__(self, counts: NDArray[Any], phases: NDArray[Any]) -> None:
        self._which = np.flatnonzero(counts)
        self._counts = np.asarray(counts, dtype=np.int64)[self._which]
        self._phases = np.asarray(phases, dtype=np.float64)[self._which]
        self.total = int(self._counts.sum())

    def locate(self, place: int) -> tuple[int, int]:
        """(sequence, number in it) of the item at a place, 0 <= place < total."""
        if len(self._counts) == 1:
            return int(self._which[0]), place
        first, sequence, number = self._near(place)
        at = place - int(first.sum())
        return int(self._which[sequence[at]]), int(number[at])

    def before(self, place: int) -> NDArray[np.int64]:
        """How many items of each sequence come before a place, 0 <= place <= total; as long as the longest index."""
        found = np.zeros(int(self._which.max(initial=-1)) + 1, dtype=np.int64)
        if place >= self.total:
            found[self._which] = self._counts
        elif place > 0:
            first, sequence, _ = self._near(place)
            come = sequence[: place - int(first.sum())]
            found[self._which] = first + np.bincount(come, minlength=len(first))
        return found

    def sequences(self) -> NDArray[np.int64]:
        """The sequence of the item at every place."""
        return self._which[self._sorted(np.zeros_like(self._counts), self._counts)[0]]

    def _near(self, place: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The items around a place in merged order, as (sequence, number), and how many of each come before them."""
        # Before time x a sequence has given between x * n - 1 and x * n + 1 items: that bounds where a place can be.
        slack = len(self._counts) + 1
        first = self._before((place - slack) / self.total)
        return first, *self._sorted(first, self._before((place + slack + 1) / self.total))

    def _sorted(self, first: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Items first ... end - 1 of each sequence in merged order, as (sequence, number)."""
        sizes = end - first
        sequence = np.repeat(np.arange(len(sizes)), sizes)
        number = np.arange(len(sequence)) - np.repeat(np.cumsum(sizes) - sizes - first, sizes)
        order = np.lexsort((sequence, (number + self._phases[sequence]) / self._counts[sequence]))
        return sequence[order], number[order]

    def _before(self, time: float) -> NDArray[np.int64]:
        """Items of each sequence whose time is below `time`, by the same arithmetic as the times themselves."""
        guess = np.clip(np.ceil(time * self._counts - self._phases), 0, self._counts).astype(np.int64)
        guess -= (guess > 0) & ((guess - 1 + self._phases) / self._counts >= time)
        guess += (guess < self._counts) & ((guess + self._phases) / self._counts < time)
        return guess


class Runs:
    """Sequences of `counts` [g] items, merged so that items of one sequence come `together` at a time.

    >>> runs = Runs(np.array([5, 2]), 2, np.array([0.5, 0.5]))
    >>> [runs.locate(t) for t in range(7)]
    [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (0, 4)]

    Behind the whole runs come the items that fill none, one at a time.
    """

    def __init__(self, counts: NDArray[Any], together: int, phases: NDArray[Any]) -> None:
        self._counts = counts = np.asarray(counts, dtype=np.int64)
        self._together = together
        self._whole = Interleave(counts // together, phases)
        self._rest = Interleave(counts % together, phases)
        self._in_runs = counts // together * together
        self.total = int(counts.sum())

    def locate(self, place: int) -> tuple[int, int]:
        """(sequence, number in it) of the item at a place, 0 <= place < total."""
        run, inside = divmod(place, self._together)
        if run < self._whole.total:
            sequence, number = self._whole.locate(run)
            return sequence, number * self._together + inside
        sequence, number = self._rest.locate(place - self._whole.total * self._together)
        return sequence, int(self._in_runs[sequence]) + number

    def numbers(self, taken: Taken) -> list[list[Taken]]:
        """For each sequence the numbers of its items at some places; where several come in turns, of all that may be
        there.
        """
        sizes, each = self._counts, self._together
        if np.count_nonzero(sizes) == 1:
            return [[taken.between(0, n)] if n else [] for n in sizes.tolist()]
        low, high = (self._runs_before(run) * each for run in (taken.low // each, -(-taken.high // each)))
        sequences = self._rest.sequences()
        at = taken.has(self._whole.total * each + np.arange(len(sequences)))
        return [
            [taken.numbers(a, b, each), Taken.listed(n, at[sequences == i])]
            for i, (a, b, n) in enumerate(zip(low.tolist(), high.tolist(), self._in_runs.tolist(), strict=True))
        ]

    def _runs_before(self, run: int) -> NDArray[np.int64]:
        """[g]: whole runs of each sequence before one of them."""
        found = self._whole.before(run)
        return np.pad(found, (0, len(self._counts) - len(found)))


class GroupBatches:
    """The batches of groups with `samples` [g], `capacity` [g] of them in a full one: full ones first, in runs of
    `together`; then a short one for each group that has a rest.

    >>> batches = GroupBatches(np.array([5, 4]), np.array([2, 4]), 1, np.array([0.5, 0.5]))
    >>> [batches.locate(p) for p in range(batches.total)]
    [(0, 0), (1, 0), (0, 1), (0, 2)]
    """

    def __init__(self, samples: NDArray[Any], capacity: NDArray[Any], together: int, phases: NDArray[Any]) -> None:
        self._full = samples // capacity
        self._merged = Runs(self._full, together, phases)
        self._short = np.flatnonzero(samples % capacity)
        self.full = self._merged.total
        self.total = self.full + len(self._short)

    def locate(self, position: int) -> tuple[int, int]:
        """(group, number among the batches of the group) of a position."""
        if position < self.full:
            return self._merged.locate(position)
        group = int(self._short[position - self.full])
        return group, int(self._full[group])

    def numbers(self, taken: Taken) -> list[list[Taken]]:
        """For each group the numbers of all its batches that may be at some positions."""
        found = self._merged.numbers(taken.between(0, self.full))
        short = self._short[taken.has(np.arange(self.full, self.total))]
        for group, number in zip(short.tolist(), self._full[short].tolist(), strict=True):
            found[group].append(Taken.whole(number, number + 1))
        return found


def full_batches(samples: NDArray[Any], capacity: NDArray[Any]) -> int:
    """Full batches of all groups; it does not depend on lanes, since what is left in them is pooled."""
    return int((samples // capacity).sum())


def all_batches(samples: NDArray[Any], capacity: NDArray[Any]) -> int:
    """Batches of all groups, the short ones included: one for each group at most."""
    return int((-(-samples // capacity)).sum())
