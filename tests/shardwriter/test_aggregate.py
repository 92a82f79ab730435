"""Totals and histograms of columns."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.aggregate import SIZE, aggregate, combine, size_cells, size_histogram, value_cells, value_histogram

SIZES = st.lists(st.tuples(st.integers(0, 70_000), st.integers(0, 70_000)), min_size=1, max_size=30)
VALUES = st.lists(st.integers(-(1 << 40), 1 << 40), min_size=1, max_size=30)


def columns(sizes: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    width, height = np.array(sizes, "<i4").T
    return width, height


@given(SIZES)
def test_size_cells_are_as_specified(sizes: list[tuple[int, int]]) -> None:
    """The cell of a size is the formula of FORMAT.md; sizes that are not known are cell 0."""
    for (w, h), cell in zip(sizes, size_cells(*columns(sizes)).tolist(), strict=True):
        if not w or not h:
            assert cell == 0
            continue
        aspect = min(max(round(4 * math.log2(w / h)), -16), 16)
        assert abs(cell - (1 + (aspect + 16) * 256 + math.floor(4 * math.log2(w * h)))) in (0, 1, 256, 257)
        assert 0 < cell < 1 << 32


def test_cells_of_known_sizes() -> None:
    """A few cells, pinned."""
    sizes = [(1, 1), (320, 240), (240, 320), (1 << 16, 1), (224, 224)]
    assert size_cells(*columns(sizes)).tolist() == [4097, 4097 + 2 * 256 + 64, 4097 - 2 * 256 + 64, 8257, 4097 + 62]
    assert value_cells(np.array([0, -3, 1, 2, 100, 0.5])).tolist() == [0, 0, 4097, 4101, 4097 + 26, 4093]


@given(SIZES)
def test_histograms_count_each_sample_once_under_its_bound(sizes: list[tuple[int, int]]) -> None:
    """Counts add up to the samples, cells ascend, and no size is above the bound of its cell."""
    width, height = columns(sizes)
    histogram = size_histogram(width, height)
    assert histogram.counts.sum() == len(sizes)
    assert (np.diff(histogram.cells.astype("i8")) > 0).all()
    at = np.searchsorted(histogram.cells, size_cells(width, height))
    assert (np.stack([width, height], 1) <= histogram.bounds[at]).all()
    for row, bound in enumerate(histogram.bounds.tolist()):
        assert bound[0] in width[at == row]
        assert bound[1] in height[at == row]


@given(VALUES)
def test_values_too(values: list[int]) -> None:
    """The same for the values of one column, also for zeros and negative ones."""
    column = np.array(values, "<i8")
    histogram = value_histogram(column)
    assert histogram.counts.sum() == len(values)
    at = np.searchsorted(histogram.cells, value_cells(column))
    assert (column <= histogram.bounds[at, 0]).all()
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
    assert found.totals.keys() == {"width", "height", "frames"}
    assert found.histograms.keys() == {SIZE, "frames"}
    empty = aggregate({"width": np.zeros(0, "<i4"), "height": np.zeros(0, "<i4")})
    assert empty.totals == {"width": (0, 0, 0), "height": (0, 0, 0)}
    assert len(empty.histograms[SIZE].cells) == 0


@given(st.lists(st.one_of(st.none(), st.just([]), VALUES), max_size=6))
def test_combined_histograms(shards: list[list[int] | None]) -> None:
    """The table over shards keeps each shard's counts, and bounds that hold for all of them."""
    histograms = [None if s is None else value_histogram(np.array(s, "<i8")) for s in shards]
    cells, counts, bounds = combine(histograms)
    assert counts.shape == (len(shards), len(cells))
    assert bounds.shape == (len(cells), 1)
    assert counts.sum(axis=1).tolist() == [len(s or []) for s in shards]
    for values in filter(None, shards):
        at = np.searchsorted(cells, value_cells(np.array(values, "<i8")))
        assert (np.array(values) <= bounds[at, 0]).all()
