"""Several sequences merged by time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streaming.plan.interleave import GroupBatches, Interleave
from streaming.plan.taken import Taken

PHASES = st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 0.5])
SEQUENCES = st.lists(st.tuples(st.sampled_from([0, 1, 2, 40]) | st.integers(0, 25), PHASES), max_size=8)


def make(sequences: list[tuple[int, float]]) -> Interleave:
    return Interleave(np.array([n for n, _ in sequences], dtype=np.int64), np.array([p for _, p in sequences]))


def by_hand(sequences: list[tuple[int, float]]) -> list[tuple[int, int]]:
    """All items, sorted by time, then by sequence."""
    timed = [((i + phase) / n, which, i) for which, (n, phase) in enumerate(sequences) for i in range(n)]
    return [(which, i) for _, which, i in sorted(timed)]


@given(SEQUENCES)
def test_items_come_by_time(sequences: list[tuple[int, float]]) -> None:
    """Every place gives what sorting all items by time gives, equal times by sequence."""
    merged, plain = make(sequences), by_hand(sequences)
    assert merged.total == len(plain)
    assert [merged.locate(place) for place in range(merged.total)] == plain


@given(SEQUENCES)
def test_what_comes_before_a_place(sequences: list[tuple[int, float]]) -> None:
    """The items of each sequence before any place, the ends included, are those that a walk counts."""
    merged, plain = make(sequences), by_hand(sequences)
    for place in range(merged.total + 1):
        counted = np.bincount([which for which, _ in plain[:place]], minlength=len(sequences))
        before = merged.before(place)
        assert before.tolist() == counted[: len(before)].tolist()
        assert not counted[len(before) :].any()


@given(SEQUENCES)
def test_each_sequence_is_spread_evenly(sequences: list[tuple[int, float]]) -> None:
    """Before any place a sequence has given its share of the whole, but for one item of each sequence."""
    merged = make(sequences)
    counts = np.array([n for n, _ in sequences])
    for place in range(merged.total + 1):
        before = merged.before(place)
        assert (np.abs(before - place * counts[: len(before)] / max(1, merged.total)) <= len(sequences)).all()


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=5), st.data())
def test_long_sequences_cost_nothing(counts: list[int], data: st.DataObject) -> None:
    """Among 10**12 items the one at a place is that by which the counts before it and behind it differ."""
    phases = [data.draw(PHASES) for _ in counts]
    merged = make(list(zip(counts, phases, strict=True)))
    place = data.draw(st.integers(0, merged.total - 1))
    which, number = merged.locate(place)
    before, behind = merged.before(place), merged.before(place + 1)
    assert before.sum() == place
    assert before[which] == number
    assert (behind - before).tolist() == [int(i == which) for i in range(len(counts))]


def test_a_single_sequence_keeps_its_order() -> None:
    """Others without any item do not matter."""
    merged = make([(0, 0.5), (7, 0.3), (0, 0.0)])
    assert [merged.locate(place) for place in range(7)] == [(1, i) for i in range(7)]
    assert merged.before(3).tolist() == [0, 3]


def test_nothing_merges_to_nothing() -> None:
    """No sequence, or only empty ones, have no place."""
    for sequences in ([], [(0, 0.5)], [(0, 0.0), (0, 0.9)]):
        merged = make(sequences)
        assert merged.total == 0
        assert not merged.before(0).any()


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 5), PHASES), min_size=1, max_size=5),
    st.integers(1, 6),
    st.lists(st.booleans(), min_size=1, max_size=8),
    st.integers(0, 99),
    st.integers(0, 99),
)
def test_numbers_of_the_batches_at_some_positions(
    groups: list[tuple[int, int, float]], together: int, which: list[bool], low: int, high: int
) -> None:
    """None is missing; of a single group there are no others, and of several no more than the runs make it."""
    samples, capacity, begin = (np.array(values) for values in zip(*groups, strict=True))
    batches, taken = GroupBatches(samples, capacity, together, begin), Taken(low, high, np.array(which))
    numbers = batches.numbers(taken)
    assert len(numbers) == len(groups)
    places = [batches.locate(p) for p in range(batches.total) if low <= p < high and which[p % len(which)]]
    for group, number in places:
        assert any(part.has(np.array(number)) for part in numbers[group])
    every = [(g, i) for g, (n, size) in enumerate(zip(samples, capacity, strict=True)) for i in range(-(-n // size))]
    found = [(g, i) for g, i in every if any(part.has(np.array(i)) for part in numbers[g])]
    if np.count_nonzero(samples // capacity) == 1 and not (samples % capacity).any():
        assert set(found) == set(places)
    if not any(which):
        assert all(i >= samples[g] // capacity[g] // together * together for g, i in found)
