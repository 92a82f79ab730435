"""Samples that are over a budget by themselves."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import Asked, budget_plans, sized

from streaming import CostBudget, PixelBudget, Plan, PlanError
from streaming.plan import Chosen, ColumnStatistics
from streaming.plan.costs import Costs
from streaming.plan.oversize import Within, settle

TOKENS = [[3, 50, 4], [], [5, 5], [51, 9, 70, 50]]


def tokens(rows: list[list[int]] = TOKENS) -> ColumnStatistics:
    return ColumnStatistics([{"tokens": np.array(row, dtype=np.int64)} for row in rows])


@pytest.mark.parametrize("pad", [True, False])
def test_alone_keeps_and_counts_them(pad: bool) -> None:
    """How many there are, and in which shards; a sample of exactly the budget is none of them."""
    statistics = tokens()
    settled = settle(CostBudget("tokens", 50, pad=pad), statistics)
    assert settled.samples == 2
    assert settled.alone.tolist() == [0, 0, 0, 2]
    assert settled.statistics is statistics


@pytest.mark.parametrize("pad", [True, False])
def test_skip_leaves_them_out(pad: bool) -> None:
    """They are gone from counts, sums and histogram; only shards that have some are looked at again."""
    settled = settle(CostBudget("tokens", 50, pad=pad, oversize="skip"), tokens())
    assert settled.samples == 2
    assert settled.alone.tolist() == [0, 0, 0, 0]
    part = settled.statistics
    assert isinstance(part, Chosen)
    assert part.counts.tolist() == [3, 0, 2, 2]
    assert part.sums("tokens").tolist() == [57, 0, 10, 59]
    assert part.indices(0) is None
    assert part.indices(3).tolist() == [1, 3]  # type: ignore[union-attr]


@pytest.mark.parametrize("pad", [True, False])
def test_error_names_number_and_place(pad: bool) -> None:
    """Before the first batch; without such samples it is no error."""
    with pytest.raises(PlanError, match=r"2 samples are over the budget .* the first in shard number 3"):
        Plan.make(tokens(), batch=CostBudget("tokens", 50, pad=pad, oversize="error"))
    assert Plan.make(tokens(), batch=CostBudget("tokens", 70, pad=pad, oversize="error")).samples == 9


@pytest.mark.parametrize("oversize", ["alone", "skip"])
def test_the_plan_reports_them(oversize: Any) -> None:
    """In its text and in numbers."""
    plan = Plan.make(tokens(), batch=CostBudget("tokens", 50, oversize=oversize))
    assert plan.oversize == 2
    assert "2 samples" in str(plan)
    assert {"alone": "of its own", "skip": "left out"}[oversize] in str(plan)
    assert "left out" not in str(Plan.make(tokens(), batch=CostBudget("tokens", 70, oversize=oversize)))


@pytest.mark.parametrize("pad", [True, False])
def test_a_dataset_of_nothing_else(pad: bool) -> None:
    """All alone, or nothing left: an epoch without a batch, not an endless one."""
    every = tokens([[60, 61], [99]])
    alone = Plan.make(every, batch=CostBudget("tokens", 50, pad=pad), tail="uneven")
    assert (alone.total, alone.samples, alone.oversize) == (3, 3, 3)
    nothing = Plan.make(every, batch=CostBudget("tokens", 50, pad=pad, oversize="skip"))
    assert (nothing.total, nothing.samples, nothing.oversize, len(nothing)) == (0, 0, 3, 0)


def test_buckets_know_none() -> None:
    """Images are scaled down to their bucket, so nothing is over the budget, and no sidecar is read."""
    statistics = ColumnStatistics([{"width": np.array([9000, 30]), "height": np.array([9000, 40])}])
    settled = settle(PixelBudget(5000), statistics)
    assert settled.samples == 0
    assert settled.statistics is statistics


def test_images_count_as_they_are_scaled() -> None:
    """With `longest` only those are over the budget that are so after scaling."""
    sizes = {"width": np.array([900, 300, 30]), "height": np.array([900, 100, 40])}
    for longest, over in [(None, 2), (100, 1), (50, 0)]:
        for mode in ("pad", "pack"):
            budget: Any = PixelBudget(5000, mode=mode, longest=longest)
            assert settle(budget, ColumnStatistics([sizes])).samples == over


def test_only_shards_that_may_hold_some_are_read() -> None:
    """The histogram says which; where it says none, nothing is read."""
    for most, wanted in [(50, {0, 3}), (49, {0, 3}), (70, set()), (4, {0, 2, 3})]:
        statistics = Asked([{"tokens": np.array(row, dtype=np.int64)} for row in TOKENS])
        settle(CostBudget("tokens", most), statistics)
        assert set(statistics.asked) <= wanted


@given(st.sampled_from(["tokens", "seconds"]), st.booleans(), st.data())
@settings(max_examples=50)
def test_they_are_exactly_those_above_the_budget(column: str, pad: bool, data: st.DataObject) -> None:
    """For whole numbers and fractions, as comparing each value says."""
    statistics = data.draw(sized(column=column))
    values = [statistics.columns(s)[column] for s in range(len(statistics.counts))]
    every = [float(v) for row in values for v in row if v > 0] or [1.0]
    most = data.draw(st.sampled_from(every) | st.floats(0.1, 500))
    settled = settle(CostBudget(column, most, pad=pad), statistics)
    assert settled.alone.tolist() == [int((row > most).sum()) for row in values]


@given(st.sampled_from(["pad", "padded", "pack", "packed"]), st.data())
@settings(max_examples=40)
def test_what_is_left_is_within_the_budget(mode: str, data: st.DataObject) -> None:
    """Settling the samples that a plan has left finds no further ones."""
    plan = data.draw(budget_plans(mode))
    assert plan.statistics is not None
    if plan.batch.oversize == "skip":  # type: ignore[union-attr]
        assert settle(plan.batch, plan.statistics).samples == 0  # type: ignore[arg-type]


def test_the_predicate_travels() -> None:
    """A dataset that leaves samples out is pickled to its workers, which leave out the same."""
    within = pickle.loads(pickle.dumps(Within(Costs.of(CostBudget("tokens", 50)))))
    assert within({"tokens": np.array([50, 51, 0])}).tolist() == [True, False, True]
