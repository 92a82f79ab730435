"""The contracts of plans with a budget: same order, equal steps, exactly once, hard budget, resume."""

from __future__ import annotations

import json
import math
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
    WORKERS,
    Sample,
    all_samples,
    budget_plans,
    by_hand_groups,
    check_in_any_order,
    check_resumes,
    expected,
    on_ranks,
    read,
    straight,
)

from streaming import CostBudget, PixelBudget, Plan
from streaming.plan import Groups
from streaming.plan.chosen import originals
from streaming.plan.costs import capped

MODES = ["bucket", "pad", "pack", "padded", "packed"]
FEW = st.lists(st.integers(0, 6), max_size=5)


pytestmark = pytest.mark.usefixtures("few_bins_throughout")


def sides(plan: Plan, samples: list[Sample]) -> tuple[Any, Any]:
    """Heights and widths in a batch, those above `longest` scaled down."""
    assert plan.statistics is not None
    assert isinstance(plan.batch, PixelBudget)
    columns = [plan.statistics.columns(shard) for shard, _ in samples]
    height, width = (
        np.array([c[n][i] for c, (_, i) in zip(columns, samples, strict=True)]) for n in ("height", "width")
    )
    return capped(height, width, plan.batch.longest) if plan.batch.longest else (height, width)


def padded_cost(plan: Plan, samples: list[Sample], bucket: int) -> float:
    """What the batch takes of its budget, padding included."""
    if isinstance(plan.batch, PixelBudget):
        if plan.batch.mode == "bucket":
            assert isinstance(plan.groups, Groups)
            return len(samples) * math.prod(plan.groups.shapes[bucket])
        height, width = sides(plan, samples)
        return float(len(samples) * height.max() * width.max() if plan.batch.mode == "pad" else (height * width).sum())
    assert isinstance(plan.batch, CostBudget)
    assert plan.statistics is not None
    costs = [plan.statistics.columns(shard)[plan.batch.column][i].item() for shard, i in samples]
    return len(samples) * max(costs) if plan.batch.pad else math.fsum(costs)


def budget_of(plan: Plan) -> float:
    return plan.batch.max_pixels if isinstance(plan.batch, PixelBudget) else plan.batch.max_cost  # type: ignore[union-attr]


def is_bucket(plan: Plan) -> bool:
    return isinstance(plan.batch, PixelBudget) and plan.batch.mode == "bucket"


@pytest.mark.parametrize("mode", MODES)
@given(st.data())
@settings(max_examples=12)
def test_the_order_is_the_same_on_any_layout(mode: str, data: st.DataObject) -> None:
    """C1: any ranks and workers give the one sequence of the epoch, with any tail."""
    plan, number = data.draw(budget_plans(mode)), data.draw(EPOCHS)
    sequence = straight(plan.epoch(number))
    for world_size in (plan.world_size, data.draw(RANKS)):
        other = on_ranks(plan, world_size)
        assert other.fingerprint() == plan.fingerprint()
        stop = other.total if other.tail == "uneven" else other.end
        given = read(other, other.epoch(number), workers=data.draw(WORKERS))
        assert given == expected(other, sequence, range(stop))


@pytest.mark.parametrize("mode", ["bucket", "pad", "padded"])
@given(st.data())
@settings(max_examples=12)
def test_groups_take_turns_as_a_loop_over_lanes_has_it(mode: str, data: st.DataObject) -> None:
    """C1: the batches of each group, their runs and where those come, are as worked out the slow and plain way."""
    plan = data.draw(budget_plans(mode))
    epoch = plan.epoch(data.draw(EPOCHS))
    assert straight(epoch) == by_hand_groups(epoch)
    kinds = [epoch.bucket(p) for p in range(epoch.total)]
    held = Counter(kinds[: plan.full])
    runs = sum(n // plan.together for n in held.values()) * plan.together
    for first in range(0, runs, plan.together):
        assert len(set(kinds[first : first + plan.together])) == 1


@pytest.mark.parametrize("mode", MODES)
@given(st.data())
@settings(max_examples=12)
def test_every_rank_has_the_same_number_of_steps(mode: str, data: st.DataObject) -> None:
    """C2: known from the manifest alone, the same in every epoch, and what the ranks then give."""
    plan, start = data.draw(budget_plans(mode)), data.draw(st.integers(0, 40))
    for number in (0, 1, data.draw(EPOCHS)):
        assert plan.epoch(number).total == plan.total
    steps = [plan.steps(start=start, rank=rank) for rank in range(plan.world_size)]
    assert len(plan) == plan.steps()
    assert max(steps) - min(steps) <= (1 if plan.tail == "uneven" else 0)
    found = read(plan, plan.epoch(0), workers=data.draw(WORKERS), start=start) if plan.total else {}
    assert Counter((p - start) % plan.world_size for p in found) == {r: n for r, n in enumerate(steps) if n}


@pytest.mark.parametrize("mode", MODES)
@given(st.data())
@settings(max_examples=12)
def test_each_sample_comes_exactly_once_but_for_the_tail(mode: str, data: st.DataObject) -> None:
    """C3: what is missing or more is what the report of that epoch says; samples that are skipped are counted."""
    plan, number = data.draw(budget_plans(mode)), data.draw(EPOCHS)
    positions = read(plan, plan.epoch(number), workers=data.draw(WORKERS)).values()
    first = Counter(s for samples, again in positions if not again for s in samples)
    repeats = [samples for samples, again in positions if again]
    missing = set(all_samples(plan.counts)) - first.keys()
    assert first.keys() <= set(all_samples(plan.counts))
    assert set(first.values()) <= {1}
    report = plan.tail_report(number)
    assert report.dropped_samples == len(missing)
    assert report.repeated_samples == sum(map(len, repeats))
    assert report.repeated_batches == len(repeats)
    if plan.tail == "drop":
        assert not repeats
    else:
        assert not missing


@pytest.mark.parametrize("mode", ["pad", "pack", "padded", "packed"])
@given(st.data())
@settings(max_examples=12)
def test_samples_over_the_budget_are_counted_and_settled(mode: str, data: st.DataObject) -> None:
    """C3, C4: "skip" leaves out exactly these, "alone" gives each a batch of its own, "error" counts them."""
    plan = data.draw(budget_plans(mode, tails=["uneven"]))
    alone = replace(plan.batch, oversize="alone")  # type: ignore[type-var]
    base: Any = getattr(plan.statistics, "base", plan.statistics)
    whole = Plan.make(base, batch=alone, shuffle=plan.shuffle or False, seed=plan.seed, tail="uneven")
    every = all_samples(base.counts)
    over = {s for s in every if padded_cost(whole, [s], 0) > budget_of(whole)}
    assert plan.oversize == whole.oversize == len(over)
    given = [s for batch in straight(plan.epoch(0)) for s in batch]
    if plan.batch.oversize == "skip":  # type: ignore[union-attr]
        shards, indices = np.array(given, dtype=np.int64).reshape(-1, 2).T
        found = originals(plan.statistics, shards, indices)
        assert sorted(zip(shards.tolist(), found.tolist(), strict=True)) == sorted(set(every) - over)
    else:
        assert sorted(given) == every
    for batch in straight(whole.epoch(0)):
        assert len(batch) == 1 or not over & set(batch)
    if over:
        with pytest.raises(ValueError, match=f"{len(over)} sample"):
            Plan.make(base, batch=replace(alone, oversize="error"))  # type: ignore[type-var]


@pytest.mark.parametrize("mode", MODES)
@given(st.data())
@settings(max_examples=12)
def test_no_batch_is_over_its_budget(mode: str, data: st.DataObject) -> None:
    """C4: padding included; only a single sample that is too large by itself may be, and only where it comes alone."""
    plan = data.draw(budget_plans(mode))
    epoch = plan.epoch(data.draw(EPOCHS))
    cursor = epoch.cursor()
    for position, samples in enumerate(straight(epoch)):
        cost = padded_cost(plan, samples, cursor.bucket(position))
        alone = len(samples) == 1 and not is_bucket(plan) and plan.batch.oversize == "alone"  # type: ignore[union-attr]
        assert cost <= budget_of(plan) or alone


@pytest.mark.parametrize("mode", MODES)
@given(st.data())
@settings(max_examples=12)
def test_batches_are_full_but_one_of_each_group(mode: str, data: st.DataObject) -> None:
    """Full batches come first, then at most one short one for each group; no bin is empty."""
    plan = data.draw(budget_plans(mode))
    epoch = plan.epoch(data.draw(EPOCHS))
    cursor = epoch.cursor()
    sizes = [len(samples) for samples in straight(epoch)]
    assert sizes == [cursor.size(p) for p in range(plan.total)]
    assert all(sizes)
    if isinstance(plan.groups, Groups):
        kinds = [cursor.bucket(p) for p in range(plan.total)]
        capacity = plan.groups.capacity.tolist()
        assert all(n == capacity[kind] for n, kind in zip(sizes[: plan.full], kinds[: plan.full], strict=True))
        assert all(n < capacity[kind] for n, kind in zip(sizes[plan.full :], kinds[plan.full :], strict=True))
        assert len(set(kinds[plan.full :])) == len(kinds[plan.full :])
        assert Counter(k for k, n in zip(kinds, sizes, strict=True) for _ in range(n)) == Counter(
            {g: n for g, n in enumerate(plan.groups.samples.tolist()) if n}
        )
    else:
        assert plan.full == plan.total


@pytest.mark.parametrize("mode", MODES)
@given(st.data())
@settings(max_examples=12)
def test_a_run_resumes_from_every_position(mode: str, data: st.DataObject) -> None:
    """C5: a state taken after any step goes on, on other ranks and workers, with exactly the rest."""
    plan, second, number = data.draw(budget_plans(mode, counts=FEW)), data.draw(RANKS), data.draw(EPOCHS)
    check_resumes(plan, straight(plan.epoch(number)), number, second, data.draw(WORKERS))


@pytest.mark.parametrize("mode", MODES)
@given(st.data())
@settings(max_examples=12)
def test_plans_follow_from_their_arguments(mode: str, data: st.DataObject) -> None:
    """C1: the same dataset and arguments make an equal plan, which prints; positions may be asked for in any order."""
    plan = data.draw(budget_plans(mode))
    base: Any = getattr(plan.statistics, "base", plan.statistics)
    again = Plan.make(
        base, batch=plan.batch, shuffle=plan.shuffle or False, seed=plan.seed, lanes=plan.lanes, tail=plan.tail,
        world_size=plan.world_size, together=plan.together, sticky=plan.sticky,
    )  # fmt: skip
    assert again == plan
    assert json.loads(json.dumps(plan.fingerprint())) == plan.fingerprint()
    assert str(plan.samples) in str(plan).replace(",", "")
    check_in_any_order(plan, 1, data.draw(st.permutations(range(plan.total)))[:20])


CHECKS = [
    test_the_order_is_the_same_on_any_layout,
    test_every_rank_has_the_same_number_of_steps,
    test_each_sample_comes_exactly_once_but_for_the_tail,
    test_no_batch_is_over_its_budget,
    test_batches_are_full_but_one_of_each_group,
    test_a_run_resumes_from_every_position,
]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("test_"))
def test_many_more_plans(check: Any, mode: str) -> None:
    """All of this holds for many more plans of each kind."""

    @given(st.data())
    @settings(max_examples=35)
    def many(data: st.DataObject) -> None:
        check.hypothesis.inner_test(mode, data)

    many()
