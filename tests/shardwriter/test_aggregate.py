"""Totals and histograms of columns."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.aggregate import (
    MAX_CELLS,
    SIZE,
    HistogramTable,
    aggregate,
    coarse,
    combine,
    size_cells,
    size_histogram,
    stack,
    value_cells,
    value_histogram,
)

SIZES = st.lists(st.tuples(st.integers(0, 70_000), st.integers(0, 70_000)), min_size=1, max_size=30)
VALUES = st.lists(st.integers(-(1 << 40), 1 << 40), min_size=1, max_size=30)


def columns(sizes: list[tuple[int, int]]) -> tuple[Any, Any]:
    width, height = np.array(sizes, "<i4").reshape(-1, 2).T
    return width, height


def exact_log(value: Fraction, steps: int) -> int:
    """floor(steps * log2(value)), by whole numbers alone."""
    power = value**steps
    k = power.numerator.bit_length() - power.denominator.bit_length()
    while Fraction(2) ** k > power:
        k -= 1
    while Fraction(2) ** (k + 1) <= power:
        k += 1
    return k


@given(SIZES, st.integers(0, 4))
def test_size_cells_are_as_specified(sizes: list[tuple[int, int]], k: int) -> None:
    """The cell of a size is the formula of FORMAT.md, exactly; sizes that are not known are cell 0."""
    for (w, h), cell in zip(sizes, size_cells(*columns(sizes), k).tolist(), strict=True):
        if not w or not h:
            assert cell == 0
            continue
        aspect = min(max(exact_log(Fraction(w / h), 8), -32), 31) + 32
        assert cell == 1 + (aspect >> k) * 512 + (exact_log(Fraction(w * h), 8) >> k)
        assert 0 < cell < 1 << 32


@given(st.floats(1e-300, 1e300) | st.integers(1, 1 << 53), st.integers(0, 4))
def test_value_cells_are_as_specified(value: float, k: int) -> None:
    """The cell of a value is the formula of FORMAT.md, exactly."""
    assert value_cells(np.array([value]), k).tolist() == [1 + (exact_log(Fraction(value), 16) + 16384 >> k)]


def test_cells_of_known_sizes() -> None:
    """A few cells, pinned."""
    sizes = [(1, 1), (320, 240), (240, 320), (1 << 16, 1), (224, 224)]
    one = 1 + 32 * 512
    wanted = [one, one + 3 * 512 + 129, one - 4 * 512 + 129, one + 31 * 512 + 128, one + 124]
    assert size_cells(*columns(sizes)).tolist() == wanted
    found = value_cells(np.array([0, -3, 1, 2, 100, 0.5])).tolist()
    assert found == [0, 0, 16385, 16385 + 16, 16385 + 106, 16385 - 16]


@given(SIZES)
def test_histograms_count_each_sample_once_under_its_bound(sizes: list[tuple[int, int]]) -> None:
    """Counts add up to the samples, cells ascend, and no size is above the bound of its cell."""
    width, height = columns(sizes)
    histogram = size_histogram(width, height)
    assert histogram.counts.sum() == len(sizes)
    assert (np.diff(histogram.cells.astype("i8")) > 0).all()
    at = np.searchsorted(histogram.cells, size_cells(width, height))
    for row, (least, greatest) in enumerate(histogram.bounds.tolist()):
        assert least == [width[at == row].min(), height[at == row].min()]
        assert greatest == [width[at == row].max(), height[at == row].max()]


@given(VALUES)
def test_values_too(values: list[int]) -> None:
    """The same for the values of one column, also for zeros and negative ones."""
    column = np.array(values, "<i8")
    histogram = value_histogram(column)
    assert histogram.counts.sum() == len(values)
    at = np.searchsorted(histogram.cells, value_cells(column))
    assert (column >= histogram.bounds[at, 0, 0]).all()
    assert (column <= histogram.bounds[at, 1, 0]).all()
    assert np.isfinite(histogram.bounds).all()


@given(VALUES)
def test_totals(values: list[int]) -> None:
    """Sum, least and greatest are those of the column."""
    found = aggregate({"tokens": np.array(values, "<i8")})
    assert found.totals["tokens"] == (float(sum(values)), float(min(values)), float(max(values)))
    assert found.histograms.keys() == {"tokens"}


def test_sizes_share_one_histogram() -> None:
    """Width and height have their totals and one histogram; an empty shard has zeros and no cells."""
    found = aggregate({"width": np.array([3, 4]), "height": np.array([1, 2]), "frames": np.array([5, 6])})
    assert found.totals.keys() == {"width", "height", "pixels", "frames"}
    assert found.histograms.keys() == {SIZE, "pixels", "frames"}
    empty = aggregate({"width": np.zeros(0, "<i4"), "height": np.zeros(0, "<i4")})
    assert empty.totals == {"width": (0, 0, 0), "height": (0, 0, 0), "pixels": (0, 0, 0)}
    assert len(empty.histograms[SIZE].cells) == 0


@given(st.lists(st.one_of(st.none(), st.just([]), VALUES), max_size=6))
def test_combined_histograms(shards: list[list[int] | None]) -> None:
    """The table over shards keeps each shard's counts, and bounds that hold for all of them."""
    histograms = [None if s is None else value_histogram(np.array(s, "<i8")) for s in shards]
    cells, counts, bounds, shift = combine(histograms, sizes=False)
    assert shift == 0
    assert counts.shape == (len(shards), len(cells))
    assert bounds.shape == (len(cells), 2, 1)
    assert counts.sum(axis=1).tolist() == [len(s or []) for s in shards]
    for values in filter(None, shards):
        at = np.searchsorted(cells, value_cells(np.array(values, "<i8")))
        assert (np.array(values) >= bounds[at, 0, 0]).all()
        assert (np.array(values) <= bounds[at, 1, 0]).all()


def test_columns_that_follow_from_others() -> None:
    """Pixels and seconds have totals and histograms, unless a column of the user's has the name."""
    found = aggregate({"width": np.array([3, 4]), "height": np.array([2, 5]), "frames": np.array([8, 8]),
                       "rate": np.array([16, 0])})  # fmt: skip
    assert found.totals["pixels"] == (26, 6, 20)
    assert found.totals["seconds"] == (0.5, 0, 0.5)
    own = aggregate({"width": np.array([3]), "height": np.array([2]), "pixels": np.array([7])})
    assert own.totals["pixels"] == (7, 7, 7)


def test_many_cells_are_joined() -> None:
    """Sizes all over the scale share at most MAX_CELLS cells, those of the finest scale that does, and none is lost."""
    rng = np.random.default_rng(0)
    width, height = np.exp2(rng.uniform(3, 13, (2, 20_000))).astype("<i4")
    histogram = size_histogram(width, height)
    assert len(histogram.cells) > MAX_CELLS
    cells, counts, bounds, shift = combine([histogram, None, histogram], sizes=True)
    assert len(cells) <= MAX_CELLS < len(np.unique(size_cells(width, height, shift - 1)))
    assert counts.sum(axis=1).tolist() == [20_000, 0, 20_000]
    ids = size_cells(width, height, shift)
    assert coarse(size_cells(width, height), shift, sizes=True).tolist() == ids.tolist()
    at = np.searchsorted(cells, ids)
    assert cells[at].tolist() == ids.tolist()
    assert (np.stack([width, height], 1) <= bounds[at, 1]).all()
    assert (np.stack([width, height], 1) >= bounds[at, 0]).all()


ROWS = st.lists(st.none() | st.just([]) | st.lists(st.tuples(*[st.integers(0, 5000)] * 2), max_size=8), max_size=5)
"""Sizes in each shard of a dataset; None for a shard without any histogram."""


@given(st.lists(st.none() | ROWS, max_size=4), st.data())
def test_stacked_tables(datasets: list[list[list[tuple[int, int]] | None] | None], data: st.DataObject) -> None:
    """The table over some shards of several datasets, in any order, has the counts of each of these shards and bounds
    that hold for their samples; a dataset without a histogram has rows of zeros.
    """
    tables, shards = [], []
    for dataset in datasets:
        histograms = [None if s is None else size_histogram(*columns(s)) for s in dataset or []]
        rows = data.draw(st.permutations(range(len(histograms))))[: data.draw(st.integers(0, 5))]
        tables.append((None if dataset is None else combine(histograms, sizes=True), np.array(rows, np.int64)))
        shards += [(dataset or [])[row] or [] for row in rows]
    cells, counts, bounds, shift = stack(tables, sizes=True)
    assert shift == 0
    assert counts.shape == (len(shards), len(cells))
    assert bounds.shape == (len(cells), 2, 2)
    assert (np.diff(cells.astype("i8")) > 0).all()
    for row, sizes in zip(counts, shards, strict=True):
        wanted = np.zeros(len(cells), int)
        for size in sizes:
            at = int(np.searchsorted(cells, size_cells(*columns([size])))[0])
            wanted[at] += 1
            assert (bounds[at, 0] <= size).all()
            assert (bounds[at, 1] >= size).all()
        assert row.tolist() == wanted.tolist()


@pytest.mark.parametrize("sizes", [True, False])
def test_tables_of_several_scales_are_stacked_on_the_coarsest(sizes: bool) -> None:
    """Where one of the tables has its cells joined, those of the others are joined likewise, and none is lost."""
    rng = np.random.default_rng(0)

    def table(low: float, high: float, count: int) -> tuple[HistogramTable, Any]:
        values = np.exp2(rng.uniform(low, high, (2, count)))
        found = size_histogram(*values.astype("<i4")) if sizes else value_histogram(values[0])
        return combine([found], sizes=sizes), values

    fine, few = table(5, 6, 20)
    rough, many = table(3, 13, 20_000) if sizes else table(-150, 150, 20_000)
    assert fine.shift == 0 < rough.shift
    found = stack([(fine, np.array([0])), (None, np.array([0, 1])), (rough, np.array([0, 0]))], sizes=sizes)
    assert found.shift == rough.shift
    assert found.counts.sum(axis=1).tolist() == [20, 0, 0, 20_000, 20_000]
    for row, values in ((0, few), (3, many), (4, many)):
        pair = values.astype("<i4") if sizes else values[:1]
        ids = size_cells(pair[0], pair[1], found.shift) if sizes else value_cells(pair[0], found.shift)
        at = np.searchsorted(found.cells, ids)
        assert found.cells[at].tolist() == ids.tolist()
        assert found.counts[row].tolist() == np.bincount(at, minlength=len(found.cells)).tolist()
        assert (found.bounds[at, 0] <= pair.T).all()
        assert (found.bounds[at, 1] >= pair.T).all()


def test_nothing_to_stack() -> None:
    """No table at all, and tables without a cell, give a table without a cell, of as many rows as were asked for."""
    for sizes, dimensions in ((True, 2), (False, 1)):
        empty = combine([None, None], sizes=sizes)
        for tables, rows in (([], 0), ([(None, np.arange(3))], 3), ([(empty, np.array([1])), (None, np.arange(1))], 2)):
            found = stack(tables, sizes=sizes)
            assert found.counts.shape == (rows, 0)
            assert found.bounds.shape == (0, 2, dimensions)
            assert found.cells.dtype == np.uint32
