"""The contracts that a plan can show by itself: same order, equal steps, exactly once, resume, same augmentation."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import (
    EPOCHS,
    RANKS,
    SEEDS,
    WORKERS,
    all_samples,
    batch_samples,
    by_hand,
    check_rest,
    expected,
    on_ranks,
    plans,
    read,
)

from streaming import FixedBatch, Plan, Shuffle, StateMismatch
from streaming.plan import SampleGenerators, make_state, read_state

RUNS = st.integers(1, 70)


@given(plans(), EPOCHS, WORKERS, RUNS)
@settings(max_examples=150)
def test_the_order_is_the_same_on_any_layout(plan: Plan, number: int, workers: int, run: int) -> None:
    """C1: laid out by position, any ranks and workers give the one sequence of the epoch."""
    straight = by_hand(plan.epoch(number))
    stop = plan.total if plan.tail == "uneven" else plan.end
    assert read(plan, plan.epoch(number), workers=workers, run=run) == expected(plan, straight, range(stop))


@given(plans(), st.lists(RANKS, min_size=1, max_size=4), EPOCHS)
def test_ranks_and_tail_are_no_part_of_the_order(plan: Plan, ranks: list[int], number: int) -> None:
    """C1: plans for other numbers of ranks, or with another tail, have the same fingerprint and sequence."""
    straight = by_hand(plan.epoch(number))
    for world_size in ranks:
        for tail in ("drop", "pad", "uneven"):
            other = replace(plan, world_size=world_size, tail=tail)
            assert other.fingerprint() == plan.fingerprint()
            assert by_hand(other.epoch(number)) == straight


@given(plans(), WORKERS, st.integers(0, 80))
def test_every_rank_has_the_same_number_of_steps(plan: Plan, workers: int, start: int) -> None:
    """C2: from any position on, and known before anything is planned; "uneven" ranks differ by at most one step."""
    steps = [plan.steps(start=start, rank=rank) for rank in range(plan.world_size)]
    assert len(plan) == plan.steps()
    if plan.tail == "uneven":
        assert max(steps) - min(steps) <= 1
        assert steps == sorted(steps, reverse=True)
        assert sum(steps) == max(0, plan.total - start)
    else:
        assert set(steps) == {plan.steps(start=start)}
    given = read(plan, plan.epoch(0), workers=workers, start=start) if plan.total else {}
    assert Counter((p - start) % plan.world_size for p in given) == {r: n for r, n in enumerate(steps) if n}


@given(plans(), EPOCHS, WORKERS, RUNS)
@settings(max_examples=150)
def test_each_sample_comes_exactly_once_but_for_the_tail(plan: Plan, number: int, workers: int, run: int) -> None:
    """C3: the union over ranks is the dataset, and what is missing or more is what the report says."""
    positions = read(plan, plan.epoch(number), workers=workers, run=run).values()
    first = Counter(s for samples, again in positions if not again for s in samples)
    repeats = [samples for samples, again in positions if again]
    assert set(first.values()) <= {1}
    missing = set(all_samples(plan.counts)) - first.keys()
    assert first.keys() <= set(all_samples(plan.counts))
    report = plan.tail_report()
    assert report.dropped_samples == len(missing)
    assert report.repeated_samples == sum(map(len, repeats))
    assert report.repeated_batches == len(repeats)
    if plan.tail == "drop":
        assert not repeats
        assert len(missing) < plan.world_size * batch_samples(plan)
    else:
        assert not missing
        assert len(repeats) < plan.world_size
        assert not (repeats and plan.tail == "uneven")


@given(plans(counts=st.lists(st.integers(0, 8), max_size=6)), RANKS, RANKS, WORKERS, RUNS, st.data())
@settings(max_examples=60, deadline=None)
def test_a_run_resumes_from_every_position(
    plan: Plan, second: int, third: int, workers: int, run: int, data: st.DataObject
) -> None:
    """C5: a state taken after any step goes on on other ranks and workers with exactly the rest, and so does its own
    state; what a drop leaves out stays below a step of the ranks, what a pad repeats is flagged.
    """
    number = data.draw(EPOCHS)
    straight = by_hand(plan.epoch(number))
    for position in range(0, plan.total + plan.world_size, plan.world_size):
        state = json.loads(json.dumps(make_state(plan.fingerprint(), epoch=number, position=position)))
        again = on_ranks(plan, second)
        assert read_state(state, again.fingerprint()) == (number, position)
        check_rest(again, straight, number, position, workers, run)
        steps = again.steps(start=position)
        if steps:
            then = position + second * data.draw(st.integers(0, steps))
            state = make_state(again.fingerprint(), epoch=number, position=then)
            assert read_state(state, on_ranks(plan, third).fingerprint()) == (number, then)
            check_rest(on_ranks(plan, third), straight, number, then, 5 - workers, run)


@given(plans(), st.integers(0, 20), st.integers(1, 5), st.data())
def test_a_state_of_a_worker_counts_its_own_turns(plan: Plan, start: int, workers: int, data: st.DataObject) -> None:
    """C5: a share that skips n turns is the same share without its first n."""
    from streaming.plan import Share

    rank, worker = data.draw(st.integers(0, plan.world_size - 1)), data.draw(st.integers(0, workers - 1))
    steps = plan.steps(start=start, rank=rank)
    whole = Share(rank, plan.world_size, worker, workers, start)
    skip = data.draw(st.integers(0, whole.turns(steps)))
    rest = replace(whole, skip=skip)
    assert rest.turns(steps) == whole.turns(steps) - skip
    turns = np.arange(rest.turns(steps))
    assert rest.positions(turns).tolist() == whole.positions(np.arange(whole.turns(steps)))[skip:].tolist()


BASE: dict[str, Any] = {
    "counts": np.array([3, 4, 5]), "batch": FixedBatch(2), "shuffle": Shuffle(2, 5), "seed": 1, "lanes": 2,
    "dataset": "ab12",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"counts": np.array([3, 4, 6])}, {"samples: saved 12, now 13"}),
        ({"counts": np.array([3, 4, 5, 0])}, {"shards: saved 3, now 4"}),
        ({"batch": FixedBatch(3)}, {"batch: saved 'FixedBatch(2)', now 'FixedBatch(3)'"}),
        ({"batch": None}, {"batch: saved 'FixedBatch(2)', now None"}),
        ({"shuffle": Shuffle(2, 6)}, {"'Shuffle(shards=2, buffer=5)'", "'Shuffle(shards=2, buffer=6)'"}),
        ({"shuffle": False}, {"shuffle: saved 'Shuffle(shards=2, buffer=5)', now None"}),
        ({"seed": -(2**80)}, {f"seed: saved 1, now {-(2**80)}"}),
        ({"lanes": 3}, {"lanes: saved 2, now 3"}),
        ({"sticky": True}, {"sticky: saved None, now True"}),
        ({"dataset": "cd34"}, {"dataset: saved 'ab12', now 'cd34'"}),
        ({"dataset": "cd34", "seed": 2}, {"dataset: saved 'ab12', now 'cd34'", "seed: saved 1, now 2"}),
    ],
)
def test_a_state_of_something_else_is_refused(change: dict[str, Any], names: set[str]) -> None:
    """C5: a state of another dataset, order or batching is refused, and each difference is named with both values."""
    saved = json.loads(json.dumps(make_state(Plan.make(**BASE).fingerprint(), epoch=1, position=2)))
    with pytest.raises(StateMismatch) as caught:
        read_state(saved, Plan.make(**BASE | change).fingerprint())
    assert all(name in str(caught.value) for name in names)
    assert read_state(saved, Plan.make(**BASE).fingerprint()) == (1, 2)


@given(SEEDS, EPOCHS, st.integers(0, 2**31), st.integers(0, 2**40), st.lists(st.integers(0, 9), max_size=5))
def test_augmentation_depends_on_the_sample_alone(
    seed: int, epoch: int, shard: int, index: int, others: list[int]
) -> None:
    """C11: the generator of a sample is the same whoever asks, and whatever was drawn for other samples before."""
    wanted = SampleGenerators(seed, epoch).of(shard, index).random(5).tolist()
    busy = SampleGenerators(seed, epoch)
    for other in others:
        busy.of(other, shard % 7).random(other)
    assert busy.of(shard, index).random(5).tolist() == wanted
    changed = [(seed + 1, epoch, shard, index), (seed, epoch + 1, shard, index), (seed, epoch, shard + 1, index)]
    for a, b, c, d in [*changed, (seed, epoch, shard, index + 1)]:
        assert SampleGenerators(a, b).of(c, d).random(5).tolist() != wanted


def test_no_two_samples_share_random_numbers() -> None:
    """C11: 3 seeds x 3 epochs x 400 samples, 8 numbers each, draw 28,800 different numbers."""
    drawn = {
        number
        for seed in (-1, 0, 1)
        for epoch in range(3)
        for shard in range(20)
        for index in range(20)
        for number in SampleGenerators(seed, epoch).of(shard, index).bit_generator.random_raw(8).tolist()
    }
    assert len(drawn) == 3 * 3 * 400 * 8


@given(plans(), st.integers(0, 5))
def test_epochs_follow_from_their_number(plan: Plan, number: int) -> None:
    """An epoch is the same whether epochs before it were planned or not, and whatever was read of it before."""
    later = [plan.epoch(n) for n in range(number + 1)][-1]
    assert by_hand(later) == by_hand(plan.epoch(number))
    if plan.total:
        cursor = later.cursor()
        backwards = [cursor.samples(np.array([p])) for p in reversed(range(plan.total))]
        samples = [list(zip(r.shards.tolist(), r.indices.tolist(), strict=True)) for r in reversed(backwards)]
        assert samples == by_hand(plan.epoch(number))


@given(SEEDS)
@settings(max_examples=20)
def test_epochs_differ_with_shuffle_and_only_then(seed: int) -> None:
    """Each epoch and each seed has an order of its own; without shuffle all are the dataset's own order."""
    counts = np.full(6, 20)
    mixed = Plan.make(counts, shuffle=Shuffle(2, 10), seed=seed)
    orders = [str(by_hand(mixed.epoch(n))) for n in range(4)]
    orders.append(str(by_hand(replace(mixed, seed=seed + 1).epoch(0))))
    assert len(set(orders)) == 5
    plain = Plan.make(counts, seed=seed)
    for n in range(2):
        assert by_hand(plain.epoch(n)) == [[s] for s in all_samples(counts)]
