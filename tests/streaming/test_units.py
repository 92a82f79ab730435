"""Units of work: which samples they hold, what becomes of their images, and what is made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mixes import mixed_plans
from plans import budget_plans, plans, straight

from streaming import BatchError, CostBudget, FixedBatch, Mix, PixelBudget, Plan
from streaming.choice import FieldChoice
from streaming.image import Framing
from streaming.plan import Chosen, ColumnStatistics, Share
from streaming.plan.chosen import originals
from streaming.units import framings, ragged_for, units


def shares(plan: Plan, start: int = 0, workers: int = 2) -> list[Share]:
    return [
        Share(rank, plan.world_size, worker, workers, start)
        for rank in range(plan.world_size)
        for worker in range(workers)
    ]


def any_plan(data: st.DataObject) -> Plan:
    kind = data.draw(st.sampled_from(["plain", "bucket", "pack", "padded", "mixed"]))
    if kind == "plain":
        return data.draw(plans())
    if kind == "mixed":
        return data.draw(mixed_plans(data.draw(st.sampled_from(["sample", "batch"])), "pad"))
    return data.draw(budget_plans(kind))


@given(st.data())
@settings(max_examples=60)
def test_units_are_the_share_of_a_reader(data: st.DataObject) -> None:
    """The units of all readers together hold the samples of each position once, numbered by their steps, with those
    flagged that come again; a unit of a batched plan is one step, one of single samples has at most so many.
    """
    plan, most = any_plan(data), data.draw(st.integers(1, 20))
    number, start = data.draw(st.integers(0, 3)), data.draw(st.integers(0, plan.total))
    sequence = straight(plan.epoch(number))
    seen = []
    for share in shares(plan, start):
        turns = share.turns(plan.steps(start=start, rank=share.rank))
        given = list(units(plan, number, share, turns, most))
        steps = [step for unit in given for step in unit.steps]
        assert steps == share.steps(np.arange(turns)).tolist()
        for unit in given:
            assert len(unit.steps) == len(unit.repeats) <= (1 if plan.batch else most)
            assert unit.padded == any(p >= plan.total for p in range(start, end(plan, start)))
            positions = [start + share.rank + share.world_size * step for step in unit.steps]
            assert unit.repeats == [p >= plan.total for p in positions]
            shards, indices = np.array([s for p in positions for s in sequence[p % plan.total]]).T
            assert unit.refs.shards.tolist() == shards.tolist()
            assert unit.refs.indices.tolist() == originals(plan.statistics, shards, indices).tolist()
            if plan.batch:
                assert unit.group == plan.epoch(number).cursor().bucket(positions[0] % plan.total)
                assert 0 <= unit.group < len(framings(plan))
            seen += positions
    assert sorted(seen) == list(range(start, end(plan, start)))


def end(plan: Plan, start: int) -> int:
    return plan.total if plan.tail == "uneven" else start + plan.steps(start=start) * plan.world_size


def test_units_of_single_samples_grow() -> None:
    """The first samples come in small units, so that they are there soon; later units are as large as is allowed."""
    plan = Plan.make(np.array([100]))
    assert [len(u.steps) for u in units(plan, 0, Share(), 100, 50)] == [8, 16, 32, 44]
    assert [len(u.steps) for u in units(plan, 0, Share(), 11, 5)] == [5, 5, 1]
    assert [len(u.steps) for u in units(plan, 0, Share(), 0, 5)] == []


def test_units_name_samples_by_their_place_in_the_whole_shard() -> None:
    """Where a predicate chooses some samples, a unit holds their numbers among all samples of the shard."""
    chosen = Chosen(ColumnStatistics([{"tokens": np.arange(10)}]), lambda columns: columns["tokens"] % 3 == 1)
    plan = Plan.make(chosen, batch=FixedBatch(2))
    assert [u.refs.indices.tolist() for u in units(plan, 0, Share(), 2, 8)] == [[1, 4], [7]]


PHOTOS = ColumnStatistics([{"width": np.array([64, 40, 100] * 20), "height": np.array([64, 80, 30] * 20)}] * 2)
BATCHES: list[tuple[Any, list[Framing | None] | None]] = [
    (None, [None]),
    (FixedBatch(4), [None]),
    (FixedBatch(4, size=(32, 16)), [Framing((32, 16))]),
    (PixelBudget(50_000, mode="pack"), [None]),
    (PixelBudget(50_000, mode="pack", longest=50), [Framing(longest=50)]),
    (PixelBudget(50_000, buckets=[(64, 64), (80, 40)], upscale=True), [Framing((64, 64)), Framing((80, 40))]),
    (PixelBudget(50_000, mode="pad"), None),
    (PixelBudget(50_000, mode="pad", longest=50), None),
]
each_batch = pytest.mark.parametrize(("batch", "wanted"), BATCHES, ids=[str(batch) for batch, _ in BATCHES])


@each_batch
def test_each_group_has_its_framing(batch: Any, wanted: list[Framing | None] | None) -> None:
    """Images get the size of their bucket or of the batch, or the longest side of the budget, or stay as they are."""
    plan = Plan.make(PHOTOS, batch=batch)
    if wanted is None:
        wanted = [Framing(longest=batch.longest) if batch.longest else None] * plan.kinds
    assert framings(plan) == wanted


@each_batch
def test_the_groups_of_mixed_sources_have_theirs(batch: Any, wanted: list[Framing | None] | None) -> None:
    """By batch the framings are those of the first source, then those of the second, as groups are counted; by sample
    the sources share them.
    """
    mix = Mix({"a": 1, "b": 1}, by="batch")
    plan = Plan.make(PHOTOS, batch=batch, mix=mix, sources=[1, 1])
    alone = [framings(part) for part in plan.plans]
    assert framings(plan) == alone[0] + alone[1]
    cursor = plan.epoch(0).cursor()
    assert {cursor.bucket(p) for p in range(plan.total)} <= set(range(len(framings(plan))))
    if not (isinstance(batch, PixelBudget) and batch.mode == "pack"):
        shared = Plan.make(PHOTOS, batch=batch, mix=replace(mix, by="sample"), sources=[1, 1])
        assert framings(shared) == framings(Plan.make(PHOTOS, batch=batch))


def samples_of(*values: Any, field: str = "x") -> list[dict[str, Any]]:
    return [{"__key__": str(i), field: value} for i, value in enumerate(values)]


def test_how_samples_become_a_batch() -> None:
    """Batches are padded or packed as the budget says; where values have one size there is nothing to say."""
    sounds = ColumnStatistics([{"frames": np.array([5, 9])}])
    photos = samples_of(torch.ones(3, 4, 2), torch.ones(3, 2, 4))

    def made(batch: Any, samples: Any, known: Any = PHOTOS, fields: Any = None) -> Any:
        join = ragged_for(Plan.make(known, batch=batch), FieldChoice(fields))
        assert join is not None
        return join(samples)

    for dense in (FixedBatch(2), PixelBudget(50_000), None):
        assert ragged_for(Plan.make(PHOTOS, batch=dense), FieldChoice(None)) is None
    assert made(PixelBudget(50_000, mode="pad"), photos)["x"].shape == (2, 3, 4, 4)
    assert made(PixelBudget(50_000, mode="pack"), photos)["x"].shape == (48,)
    with pytest.raises(BatchError, match="32 pixels together, 31 are allowed"):
        made(PixelBudget(31, mode="pad"), photos)
    features = samples_of(np.ones((5, 3)), np.ones((9, 3)))
    assert made(CostBudget("frames", 20), features, sounds)["x"].shape == (2, 9, 3)
    assert made(CostBudget("frames", 20, pad=False), features, sounds)["x"].shape == (14, 3)
    for field, fields in (("wav", None), ("left.flac", None), ("sound", {"sound": "left.wav;mp3"})):
        waves = samples_of(np.ones((2, 5)), np.ones((2, 9)), field=field)
        assert made(CostBudget("frames", 20), waves, sounds, fields)[field].shape == (2, 2, 9)
