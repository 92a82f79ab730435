"""Positions, steps and shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming import PlanError
from streaming.plan import Share, Tail
from streaming.plan.layout import TAILS, Turns, check_place, good_workers, steps_of
from streaming.plan.taken import Taken

TAIL = st.sampled_from(TAILS)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=10), st.randoms())
def test_lanes_take_turns_until_each_is_done(counts: list[int], random: object) -> None:
    """Position by position, in any order of asking, as a loop over rounds and lanes gives them."""
    turns = Turns(np.array(counts, dtype=np.int64))
    by_hand = [(lane, j) for j in range(max(counts)) for lane, n in enumerate(counts) if j < n]
    assert turns.total == len(by_hand)
    positions = list(range(turns.total))
    random.shuffle(positions)  # type: ignore[attr-defined]
    lanes, numbers = turns.locate(np.array(positions, dtype=np.int64))
    assert list(zip(lanes.tolist(), numbers.tolist(), strict=True)) == [by_hand[p] for p in positions]


@pytest.mark.parametrize("counts", [[0], [0, 0, 0], [0, 3, 0], [10**15, 10**15 + 2, 0]])
def test_turns_with_lanes_that_have_nothing(counts: list[int]) -> None:
    """Lanes without a batch are passed over; counts beyond any memory are no burden."""
    turns = Turns(np.array(counts, dtype=np.int64))
    assert turns.total == sum(counts)
    if turns.total:
        lanes, numbers = turns.locate(np.array([0, turns.total - 1]))
        last = max(range(len(counts)), key=lambda lane: (counts[lane], lane))
        assert lanes.tolist() == [next(lane for lane, n in enumerate(counts) if n), last]
        assert numbers.tolist() == [0, counts[last] - 1]


@given(
    st.lists(st.integers(0, 12) | st.integers(30, 33), min_size=1, max_size=10),
    st.lists(st.booleans(), min_size=1, max_size=9),
    st.integers(0, 100),
    st.integers(0, 100),
    st.sampled_from([1, 20, 1 << 18]),
)
def test_stretches_hold_what_is_taken(counts: list[int], which: list[bool], low: int, high: int, entries: int) -> None:
    """All batches at the positions, and each stretch one of them at least, however many levels are looked at at once;
    with as many readers as divide the lanes, no others.
    """
    turns, taken = Turns(np.array(counts, dtype=np.int64)), Taken(low, high, np.array(which))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streaming.plan.layout._ENTRIES", entries)
        found = [a.tolist() for a in turns.stretches(taken.between(0, turns.total))]
    stretches = {(lane, j) for lane, first, end in zip(*found, strict=True) for j in range(first, end)}
    positions = [p for p in range(turns.total) if low <= p < high and which[p % len(which)]]
    lanes, numbers = turns.locate(np.array(positions, dtype=np.int64))
    wanted = set(zip(lanes.tolist(), numbers.tolist(), strict=True))
    assert wanted <= stretches
    assert all(any((lane, j) in wanted for j in range(*ends)) for lane, *ends in zip(*found, strict=True))
    if len(set(counts)) == 1 and len(counts) % len(which) == 0:
        assert wanted == stretches


@given(st.integers(0, 90), st.booleans(), st.integers(1, 16), TAIL, st.integers(0, 120))
def test_steps_by_counting(full: int, short: bool, world_size: int, tail: Tail, start: int) -> None:
    """Steps are the whole rounds of the ranks for drop, the begun ones for pad, and a rank's own positions else."""
    total = full + short
    steps = [
        steps_of(total=total, full=full, world_size=world_size, tail=tail, start=start, rank=rank)
        for rank in range(world_size)
    ]
    if tail == "drop":
        own = [len([p for p in range(start, full, world_size) if p + world_size <= full])] * world_size
    elif tail == "pad":
        own = [len(range(start, total, world_size))] * world_size
    else:
        own = [len(range(start + rank, total, world_size)) for rank in range(world_size)]
    assert steps == own


@given(st.integers(1, 16), st.integers(1, 5), st.integers(0, 30), st.integers(0, 12))
def test_shares_part_the_positions(world_size: int, workers: int, start: int, steps: int) -> None:
    """Together the readers have each position once; a worker has every workers-th step of its rank."""
    taken = []
    for rank in range(world_size):
        by_worker = []
        for worker in range(workers):
            share = Share(rank, world_size, worker, workers, start)
            turns = np.arange(share.turns(steps))
            assert share.steps(turns).tolist() == list(range(worker, steps, workers))
            by_worker.append(share.positions(turns).tolist())
        mine = [by_worker[step % workers][step // workers] for step in range(steps)]  # as a DataLoader takes turns
        assert mine == [start + rank + step * world_size for step in range(steps)]
        taken += mine
    assert sorted(taken) == list(range(start, start + steps * world_size))


@pytest.mark.parametrize(("rank", "world_size"), [(0, 0), (-1, 4), (4, 4), (0, -1)])
def test_ranks_count_from_zero(rank: int, world_size: int) -> None:
    """A rank outside its world is refused, and both are named."""
    with pytest.raises(PlanError, match=f"rank {rank} of world size {world_size}: ranks count from 0"):
        check_place(rank, world_size)
    with pytest.raises(PlanError, match="world size"):
        steps_of(total=9, full=9, world_size=world_size, tail="pad", rank=rank)


@given(st.integers(1, 24), st.integers(1, 8), st.integers(1, 12), st.integers(0, 50))
def test_good_workers_have_lanes_of_their_own(lanes: int, world_size: int, workers: int, start: int) -> None:
    """While all lanes last, two readers share a lane if and only if their number is not a good one."""
    turns = Turns(np.full(lanes, start + 4 * world_size * workers))
    owners: dict[int, set[tuple[int, int]]] = {}
    for rank in range(world_size):
        for worker in range(workers):
            share = Share(rank, world_size, worker, workers, start)
            own = share.positions(np.arange(share.turns((turns.total - start) // world_size)))
            for lane in np.unique(turns.locate(own)[0]).tolist():
                owners.setdefault(lane, set()).add((rank, worker))
    alone = all(len(readers) == 1 for readers in owners.values())
    assert alone == (workers in good_workers(lanes, world_size, most=12))


def test_good_workers_of_known_layouts() -> None:
    """A few, pinned; none where ranks alone are too many."""
    assert good_workers(64, 8) == [1, 2, 4, 8]
    assert good_workers(192, 2) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]
    assert good_workers(192, 1, most=4) == [1, 2, 3, 4]
    assert good_workers(4, 8) == []
