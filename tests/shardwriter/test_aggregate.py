"""Totals and histograms of columns."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.aggregate import (
    MAX_CELLS,
    SIZE,
    aggregate,
    coarse,
    combine,
    size_cells,
    size_histogram,
    value_cells,
    value_histogram,
)

SIZES = st.lists(st.tuples(st.integers(0, 70_000), st.integers(0, 70_000)), min_size=1, max_size=30)
VALUES = st.lists(st.integers(-(1 << 40), 1 << 40), min_size=1, max_size=30)


def columns(sizes: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    width, height = np.array(sizes, "<i4").T
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
