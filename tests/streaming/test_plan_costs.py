"""Costs in whole numbers, and sizes of images that are scaled down."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import assume, example, given
from hypothesis import strategies as st

from shardwriter.aggregate import SIZE
from streaming import CostBudget, PixelBudget
from streaming.plan import ColumnStatistics
from streaming.plan.budgets import MOST_SAMPLES
from streaming.plan.costs import Costs, capped, capped_bounds
from streaming.plan.groups import Scale

SIDES = st.integers(1, 40) | st.integers(1, 5000)
ALIKE = st.tuples(st.integers(600, 640), st.integers(400, 430))
SIZES = st.lists(ALIKE, min_size=1, max_size=20) | st.lists(st.tuples(SIDES, SIDES) | ALIKE, min_size=1, max_size=20)
"""Of any shape, and such that fall into the same cell."""
LONGEST = st.sampled_from([None, 300, 610]) | SIDES
VALUES = st.floats(0, 1e6) | st.sampled_from([0.0, 1e-9, 0.1, 1.0, 7.5])
BUDGETS = st.floats(1e-3, 1e6) | st.sampled_from([0.1, 1.0, 7.5, 1e6])


@given(st.integers(1, 10**7), st.lists(st.integers(0, 10**7), min_size=1))
def test_whole_costs_count_as_they_are(most: int, values: list[int]) -> None:
    """Each value costs itself, at least the floor that bounds the samples of a batch, over the budget where it is."""
    costs = Costs.of(CostBudget("tokens", most, pad=False))
    found = costs.of_samples({"tokens": np.array(values)})
    assert costs.most == most
    assert found.tolist() == [max(v, costs.floor) for v in values]
    assert costs.floor >= 1
    assert most // costs.floor <= MOST_SAMPLES


@given(BUDGETS, st.lists(VALUES, min_size=1, max_size=20))
@example(0.1, [0.1, np.nextafter(0.1, 1), np.nextafter(0.1, 0)])
def test_fractions_are_rounded_up(limit: float, values: list[float]) -> None:
    """A batch within the budget in steps is within it in numbers, and over it is exactly what exceeds it alone."""
    costs = Costs.of(CostBudget("seconds", limit, pad=False))
    found = costs.of_samples({"seconds": np.array(values)}).tolist()
    for value, steps in zip(values, found, strict=True):
        assert (steps > costs.most) == (value > limit)
        assert steps >= costs.floor
    assert costs.most <= Fraction(limit) * Fraction(costs.scale)
    taken, total = 0, Fraction(0)
    for value, steps in zip(values, found, strict=True):
        if taken + steps <= costs.most:
            taken, total = taken + steps, total + Fraction(value)
    assert total <= Fraction(limit) or taken == costs.most  # a value of exactly the budget fills it


@given(SIZES, SIDES)
def test_capped_images_keep_their_shape(sizes: list[tuple[int, int]], longest: int) -> None:
    """The longer side becomes `longest`, the other the nearest whole number of at least 1; smaller ones stay."""
    height, width = np.array(sizes).T
    new = list(zip(*(side.tolist() for side in capped(height, width, longest)), strict=True))
    for (h, w), (a, b) in zip(sizes, new, strict=True):
        if max(h, w) <= longest:
            assert (a, b) == (h, w)
            continue
        assert max(a, b) == longest
        for side, found in ((h, a), (w, b)):
            exact = Fraction(side * longest, max(h, w))
            assert found == 1 or abs(found - exact) <= Fraction(1, 2)
            assert 1 <= found <= side


def images(sizes: list[tuple[int, int]]) -> ColumnStatistics:
    height, width = np.array(sizes).T
    return ColumnStatistics([{"height": height, "width": width}])


@given(SIZES, LONGEST)
def test_no_image_exceeds_the_bound_of_its_cell(sizes: list[tuple[int, int]], longest: int | None) -> None:
    """The bound of a cell holds for height and width after scaling, and is no larger than the cap."""
    statistics = images(sizes)
    table: Any = statistics.histogram(SIZE)
    bounds = capped_bounds(table, longest)
    columns = statistics.columns(0)
    at = np.searchsorted(table.cells, Scale(SIZE, table.shift).cells(columns))
    found = np.stack([columns["height"], columns["width"]], axis=1)
    if longest is not None:
        found = np.stack(capped(columns["height"], columns["width"], longest), axis=1)
        assert bounds.max() <= longest or bounds.max() <= found.max()
    assert (found <= bounds[at]).all()
    assert (bounds >= 1).all()


@given(SIZES, st.integers(1, 10**7), LONGEST)
def test_no_image_costs_more_than_its_cell(sizes: list[tuple[int, int]], most: int, longest: int | None) -> None:
    """Costs of samples are pixels after scaling, and bounded by those of the cells they were counted in."""
    costs = Costs.of(PixelBudget(most, mode="pack", longest=longest))
    statistics = images(sizes)
    columns = statistics.columns(0)
    table: Any = statistics.histogram(costs.column)
    found = costs.of_samples(columns)
    height, width = np.array(sizes).T
    if longest is not None:
        height, width = capped(height, width, longest)
    assert found.tolist() == np.maximum(height * width, costs.floor).tolist()
    at = np.searchsorted(table.cells, Scale(costs.column, table.shift).cells(columns))
    bounds = costs.bounds(table)[at]
    assert ((found <= bounds) | (found > costs.most) & (bounds > costs.most)).all()


@given(st.lists(VALUES, min_size=1, max_size=20), BUDGETS)
def test_no_value_costs_more_than_its_cell(values: list[float], limit: float) -> None:
    """The same for any other column; a cell that holds something over the budget says so."""
    assume(max(values) > 0)
    costs = Costs.of(CostBudget("seconds", limit))
    statistics = ColumnStatistics([{"seconds": np.array(values)}])
    table: Any = statistics.histogram("seconds")
    at = np.searchsorted(table.cells, Scale("seconds", table.shift).cells(statistics.columns(0)))
    assert (costs.of_samples(statistics.columns(0)) <= costs.bounds(table)[at]).all()


def test_the_smallest_samples_count_too() -> None:
    """A column of zeros costs at least 1, so no batch is endless."""
    costs = Costs.of(CostBudget("tokens", 1 << 40, pad=False))
    assert costs.of_samples({"tokens": np.zeros(3, np.int32)}).tolist() == [1 << 24] * 3
