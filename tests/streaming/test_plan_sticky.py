"""Lanes that keep their shards over epochs.

All contracts of plans are tested with sticky lanes too: half of the plans that plans.py and mixes.py make have them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixes import mixed_plans
from plans import EPOCHS, budget_plans, plans, straight

from streaming import FixedBatch, Mix, PixelBudget, Plan, Shuffle, StateMismatch
from streaming.plan import ColumnStatistics, make_state, read_state
from streaming.plan.mixed import SampleMixture

EVERY = plans() | st.one_of([budget_plans(kind) for kind in ("bucket", "pad", "pack", "padded", "packed")])


pytestmark = pytest.mark.usefixtures("few_bins_throughout")


def lanes_of(epoch: Any) -> list[set[int]]:
    """The shards of each lane."""
    return [set(lane) - {-1} for lane in epoch.order.lane_shards.tolist()]


@given(EVERY, EPOCHS)
@settings(max_examples=150)
def test_a_lane_has_the_same_shards_in_every_epoch(plan: Plan, number: int) -> None:
    """Those of epoch 0, which are those of the same plan without sticky lanes: as well balanced."""
    sticky, plain = replace(plan, sticky=True), replace(plan, sticky=False)
    assert lanes_of(sticky.epoch(number)) == lanes_of(sticky.epoch(0)) == lanes_of(plain.epoch(0))
    assert sticky.total == plain.total == sticky.epoch(number).total
    assert (sticky.full, sticky.steps(), sticky.good_workers()) == (plain.full, plain.steps(), plain.good_workers())


@pytest.mark.parametrize(
    ("by", "kind"), [("sample", "fixed"), ("sample", "bucket"), ("batch", "fixed"), ("batch", "pack")]
)
@given(st.data())
@settings(max_examples=15)
def test_so_has_a_lane_of_each_source_in_every_pass(by: str, kind: str, data: st.DataObject) -> None:
    """In a mix each source keeps its own lanes."""
    plan, number = replace(data.draw(mixed_plans(by, kind)), sticky=True), data.draw(EPOCHS)
    plan = Plan.make(
        plan.statistics or plan.counts, batch=plan.batch, shuffle=plan.shuffle or False, seed=plan.seed,
        together=plan.together, mix=plan.mix, sources=[b - a for a, b in plan.sources], sticky=True,
    )  # fmt: skip
    found = plan.mixture
    for source in range(len(plan.sources)):
        if isinstance(found, SampleMixture):
            passes = [found.one_pass(source, n, found.pieces(source)) for n in (0, number)]
        else:
            passes = [plan.plans[source].one_pass(n) for n in (0, number)]  # type: ignore[misc]
        assert lanes_of(passes[0]) == lanes_of(passes[1])


@given(st.integers(), st.integers(0, 2**31 - 4))
@settings(max_examples=25)
def test_the_order_in_a_lane_is_another_in_each_epoch(seed: int, number: int) -> None:
    """Of 30 shards in two lanes no order comes again, nor do both lanes have one order."""
    plan = Plan.make(np.full(60, 3), shuffle=True, seed=seed, lanes=2, sticky=True)
    orders = []
    for n in range(number, number + 3):
        for lane in plan.epoch(n).order.lane_shards:  # type: ignore[union-attr]
            orders.append(tuple(np.argsort(np.argsort(lane)).tolist()))
    assert len(set(orders)) == 6


def test_without_shuffle_it_changes_nothing() -> None:
    """The order is the dataset's own, in every epoch, so that states go both ways."""
    plain, sticky = (Plan.make(np.full(9, 5), lanes=3, batch=FixedBatch(2), sticky=on) for on in (False, True))
    assert plain == sticky
    assert plain.fingerprint() == sticky.fingerprint()
    assert straight(plain.epoch(2)) == straight(sticky.epoch(2))
    assert "without shuffle lanes have the same shards in every epoch anyway" in str(sticky)


@pytest.mark.parametrize("mix", [None, Mix({"a": 1, "b": 1}), Mix({"a": 1, "b": 1}, by="batch")])
def test_states_belong_to_sticky_lanes_or_to_others(mix: Mix | None) -> None:
    """The error names `sticky`; a state that was saved without it is read as before."""
    both: dict[str, Any] = {"batch": FixedBatch(2), "shuffle": True, "mix": mix, "sources": [4, 5] if mix else ()}
    plain, sticky = (Plan.make(np.full(9, 5), **both, sticky=on) for on in (False, True))
    assert "sticky" not in plain.fingerprint()
    assert {**plain.fingerprint(), "sticky": True} == sticky.fingerprint()
    for saved, now, text in ((sticky, plain, "sticky: saved True, now None"), (plain, sticky, "now True")):
        state = json.loads(json.dumps(make_state(saved.fingerprint(), epoch=1, position=2)))
        assert read_state(state, saved.fingerprint()) == (1, 2)
        with pytest.raises(StateMismatch, match=text):
            read_state(state, now.fingerprint())


def test_a_node_reads_the_same_shards_again() -> None:
    """Two nodes of four ranks: each reads its half in every epoch, where without sticky lanes all would come by."""
    for sticky in (True, False):
        plan = Plan.make(
            np.full(64, 96), batch=FixedBatch(8), shuffle=Shuffle(2, 50), lanes=16, world_size=8, sticky=sticky
        )
        epochs = [set(plan.shards_of_ranks(number, range(4)).tolist()) for number in range(5)]
        assert all(len(shards) == 32 for shards in epochs)
        assert (len(set.union(*epochs)) == 32) == sticky
        assert plan.keeps_lanes


def images() -> ColumnStatistics:
    """16 shards of images of two sizes."""
    side = np.array([32, 48] * 10)
    return ColumnStatistics([{"height": side, "width": side}] * 16)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"world_size": 4}, "sticky: lanes keep their shards over epochs, and ranks their lanes"),
        ({"world_size": 3}, "sticky: lanes keep their shards over epochs, but ranks share them: choose lanes that 3"),
        (
            {"world_size": 4, "together": 6, "batch": PixelBudget(10_000)},
            "but ranks share them: choose lanes and together that 4 ranks divide",
        ),
        ({"world_size": 4, "batch": PixelBudget(10_000)}, "over epochs, and ranks their lanes"),
        ({"mix": Mix({"a": 1, "b": 1}), "sources": [8, 8]}, "passes over a source begin anywhere in an epoch"),
    ],
)
def test_a_plan_says_what_it_comes_to(arguments: dict[str, Any], text: str) -> None:
    """Whether ranks have lanes of their own, and else what to change."""
    plan = Plan.make(images(), **{"shuffle": True, "lanes": 8, "batch": FixedBatch(4), **arguments}, sticky=True)
    assert text in str(plan)
    assert plan.keeps_lanes == ("ranks their lanes" in text)
    assert "sticky" not in str(replace(plan, sticky=False))
