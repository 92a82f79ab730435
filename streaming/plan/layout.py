"""Positions: the one sequence of micro-batches of an epoch, and which of them a rank and its workers take.

>>> turns = Turns(np.array([2, 3]))              # lane 0 has two batches, lane 1 has three
>>> [x.tolist() for x in turns.locate(np.arange(5))]   # lanes take turns; the longer one ends alone
[[0, 1, 0, 1, 1], [0, 0, 1, 1, 2]]
>>> steps_of(total=10, full=9, world_size=4, tail="drop"), steps_of(total=10, full=9, world_size=4, tail="pad")
(2, 3)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from .taken import Taken

Tail = Literal["drop", "pad", "uneven"]
TAILS: Final = get_args(Tail)
_ENTRIES: Final = 1 << 18
"""Lanes times levels that are worked on at once."""


class Turns:
    """Position -> (lane, number within the lane), for lanes that take turns until each has given all it has.

    `counts` [lanes]: how many batches each lane has.  Memory and time are of the order of the lanes, not of the
    batches.
    """

    def __init__(self, counts: NDArray[Any]) -> None:
        self._by_count = np.argsort(counts, kind="stable")
        self._levels = counts[self._by_count].astype(np.int64)
        lanes = len(counts)
        # After round j = levels[i], lanes 0 ... i (in order of count) are exhausted and the others have given j each.
        self._ends = np.cumsum(self._levels) + self._levels * (lanes - 1 - np.arange(lanes))
        self.total = int(self._levels.sum())

    def locate(self, positions: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(lane, number within the lane) of each position in [0, total)."""
        lanes = np.empty(len(positions), dtype=np.int64)
        numbers = np.empty(len(positions), dtype=np.int64)
        level = np.searchsorted(self._ends, positions, side="right")
        for i in np.unique(level).tolist():
            here = level == i
            active = np.sort(self._by_count[i:])
            first, base = (int(self._levels[i - 1]), int(self._ends[i - 1])) if i else (0, 0)
            rounds, turn = np.divmod(positions[here] - base, len(active))
            lanes[here], numbers[here] = active[turn], first + rounds
        return lanes, numbers

    def stretches(self, taken: Taken) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(lane, first, end) [n]: stretches of the lanes' batches in which all those at some positions are.

        Each stretch begins with one of them.  Between two levels a lane's batches come at equal distances, so that it
        repeats which of them are taken: no more than one period is looked at, and where there are several, all batches
        up to the next level are given.
        """
        used = (np.diff(self._levels, prepend=0) > 0) & (self._ends > taken.low)
        used[1:] &= self._ends[:-1] < taken.high
        levels = np.flatnonzero(used)
        step = max(1, _ENTRIES // max(1, len(self._levels)))
        found = [np.zeros((3, 0), np.int64)]
        for i in range(0, len(levels), step):
            found += self._in_levels(levels[i : i + step], taken)
        lanes, first, end = np.concatenate(found, axis=1)
        return lanes, first, end

    def _in_levels(self, levels: NDArray[np.int64], taken: Taken) -> Iterator[NDArray[np.int64]]:
        """The stretches between some levels and those before them: [3, n] each."""
        place, period = np.empty(len(self._levels), dtype=np.int64), len(taken.which)
        place[self._by_count] = np.arange(len(place))
        active = place >= levels[:, np.newaxis]
        before, base = (np.concatenate([[0], a])[levels, np.newaxis] for a in (self._levels, self._ends))
        each = (len(place) - levels)[:, np.newaxis]
        turn = base + np.cumsum(active, axis=1) - 1  # the position of each lane's first batch
        rounds = self._levels[levels, np.newaxis] - before
        low, high = (np.clip(-((turn - p) // each), 0, rounds) for p in (taken.low, taken.high))
        repeats = period // np.gcd(each, period)
        for i in range(int(np.minimum(rounds, repeats).max(initial=0))):
            rows = np.flatnonzero(np.minimum(rounds, repeats) > i)
            at = low[rows] + i
            hit = active[rows] & (at < high[rows]) & taken.which[(turn[rows] + at * each[rows]) % period]
            row, lanes = np.nonzero(hit)
            first, last = at[row, lanes], high[rows][row, lanes]
            end = np.where(last - low[rows][row, lanes] > repeats[rows][row, 0], last, first + 1)
            active[rows] &= ~(hit & (high[rows] - low[rows] > repeats[rows]))  # the rest of these is given
            yield np.stack([lanes, before[rows][row, 0] + first, before[rows][row, 0] + end])


def check_place(rank: int, world_size: int) -> None:
    """Raise PlanError unless 0 <= rank < world_size."""
    if world_size < 1 or not 0 <= rank < world_size:
        raise PlanError(f"rank {rank} of world size {world_size}", hint="ranks count from 0 to world_size - 1")


def steps_of(*, total: int, full: int, world_size: int, tail: Tail, start: int = 0, rank: int = 0) -> int:
    """How many micro-batches a rank yields from position `start` to the end of the epoch.

    `total` positions hold samples, of which the first `full` are complete batches.  With tail "drop" and "pad" the
    answer is the same for every rank; with "uneven" ranks differ by at most one.
    """
    check_place(rank, world_size)
    if tail == "drop":
        return max(0, full - start) // world_size
    if tail == "pad":
        return -(-max(0, total - start) // world_size)
    return max(0, -(-(total - start - rank) // world_size))


@dataclass(frozen=True, slots=True)
class Share:
    """The positions of one reader: worker `worker` of `workers` of rank `rank` of `world_size`, from `start` on.

    >>> Share(rank=1, world_size=2, worker=0, workers=2, start=10).positions(np.arange(3)).tolist()
    [11, 15, 19]

    Rank r takes start + r, start + r + world_size, ...: its steps.  Worker w takes every workers-th step from `first`.
    """

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    workers: int = 1
    start: int = 0
    skip: int = 0
    """Steps of this worker that are already done (a state that was taken inside a worker process)."""

    def steps(self, turns: NDArray[Any]) -> NDArray[np.int64]:
        """Number of the step, within the rank, of this reader's turn 0, 1, 2, ..."""
        return np.asarray(self.worker + self.workers * (self.skip + turns), dtype=np.int64)

    def positions(self, turns: NDArray[Any]) -> NDArray[np.int64]:
        """Position of this reader's turn 0, 1, 2, ..."""
        return np.asarray(self.start + self.rank + self.world_size * self.steps(turns), dtype=np.int64)

    def turns(self, steps: int) -> int:
        """How many of a rank's `steps` steps fall to this reader."""
        return max(0, -(-(steps - self.worker) // self.workers) - self.skip)


def good_workers(lanes: int, world_size: int, most: int = 64) -> list[int]:
    """Worker counts per rank, up to `most`, with which every reader has lanes of its own."""
    return [n for n in range(1, most + 1) if lanes % (world_size * n) == 0]
