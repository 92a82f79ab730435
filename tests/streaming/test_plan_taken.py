"""Some positions of an epoch, and the blocks that places of lanes are in."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streaming.plan.taken import Taken, blocks_with

WHICH = st.lists(st.booleans(), min_size=1, max_size=12)
ENDS = st.integers(0, 40)


def places(taken: Taken, until: int = 60) -> list[int]:
    """All of them, below a number."""
    return [int(p) for p in np.flatnonzero(taken.has(np.arange(until)))]


@given(WHICH, ENDS, ENDS, ENDS, ENDS)
def test_positions_by_their_rest(which: list[bool], low: int, high: int, first: int, end: int) -> None:
    """Those of each rank between two ends, and fewer between others."""
    taken = Taken(low, high, np.array(which))
    assert places(taken) == [p for p in range(low, high) if which[p % len(which)]]
    assert places(taken.between(first, end)) == [p for p in places(taken) if first <= p < end]
    assert taken.all_of(high) == (low == 0 and all(which))
    assert places(Taken.whole(low, high)) == list(range(low, high))
    assert places(Taken.listed(low, np.array(which))) == [low + i for i, there in enumerate(which) if there]
    assert places(Taken.listed(low, np.zeros(0, dtype=bool))) == []


@given(st.integers(1, 9), st.sets(st.integers(0, 8)), ENDS, ENDS)
def test_positions_of_ranks(world_size: int, ranks: set[int], start: int, end: int) -> None:
    """Rank r of an epoch that begins at `start` takes start + r and each world_size-th after it."""
    ranks = {r for r in ranks if r < world_size}
    wanted = sorted(p for r in ranks for p in range(start + r, end, world_size))
    assert places(Taken.by_ranks(ranks, world_size, start, end)) == wanted


@given(WHICH, ENDS, ENDS, st.integers(-60, 60))
def test_positions_counted_from_elsewhere(which: list[bool], low: int, high: int, by: int) -> None:
    """Each has moved by so many."""
    taken = Taken(low, high, np.array(which)).moved(by)
    assert places(taken) == [p for p in range(60) if low <= p - by < high and which[(p - by) % len(which)]]


@given(WHICH, ENDS, st.integers(1, 12))
def test_numbers_that_agree_with_positions_in_part(which: list[bool], end: int, together: int) -> None:
    """A number is among them if any position is that has the same rest by `together`."""
    numbers = Taken(0, 10**9, np.array(which)).numbers(0, end, together)
    every = range(together * len(which))  # rests repeat from there on
    rests = {p % together for p in every if which[p % len(which)]}
    assert places(numbers) == [n for n in range(end) if n % together in rests]


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 11), st.integers(1, 12)), max_size=6),
)
def test_blocks_that_hold_places(sizes: list[list[int]], wanted: list[tuple[int, int, int]]) -> None:
    """All that hold one of the places, and none with samples that does not."""
    starts = np.concatenate([np.zeros((len(sizes), 1), np.int64), np.cumsum(sizes, axis=1)], axis=1)
    stretches = [(k, a, min(a + n, sum(sizes[k]))) for k, a, n in wanted if k < len(sizes) and a < sum(sizes[k])]
    lanes, low, high = np.array(stretches, dtype=np.int64).reshape(-1, 3).T
    found = blocks_with(starts, lanes, low, high)
    assert found.shape == (len(sizes), 3)
    for lane, blocks in enumerate(sizes):
        for block, n in enumerate(blocks):
            held = set(range(starts[lane, block], starts[lane, block] + n))
            inside = any(held & set(range(a, b)) for k, a, b in stretches if k == lane)
            assert found[lane, block] == inside or not n
