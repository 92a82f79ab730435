"""Groups of similar samples, and the scale by which samples find theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardwriter.aggregate import SIZE
from streaming import IndexMismatch, PlanError
from streaming.plan import ColumnStatistics, Groups
from streaming.plan.groups import Scale, group_counts, needed_histogram

TOKENS = Scale("tokens", 0)


def cells(*tokens: int) -> NDArray[Any]:
    return TOKENS.cells({"tokens": np.array(tokens)})


def make(
    counts: list[list[int]], *, capacity: tuple[int, ...] = (4, 2), of_cell: tuple[int, ...] = (0, 1, 1)
) -> Groups:
    return Groups(
        np.array(capacity), ((10.0,), (20.0,)), np.array(counts, dtype=np.int32).reshape(-1, len(capacity)), TOKENS,
        cells(10, 15, 20), np.array(of_cell, dtype=np.int16),
    )  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=4), st.integers(1, 5), st.integers(1, 5))
def test_batches_are_counted_over_all_shards(counts: list[tuple[int, int]], first: int, second: int) -> None:
    """Full batches of each group's whole samples, and one more for each that has a rest."""
    groups = make([list(row) for row in counts], capacity=(first, second))
    samples = [sum(row[g] for row in counts) for g in (0, 1)]
    assert len(groups) == 2
    assert groups.samples.tolist() == samples
    assert groups.full == samples[0] // first + samples[1] // second
    assert groups.total - groups.full == bool(samples[0] % first) + bool(samples[1] % second)


def test_samples_find_their_group_by_their_cell() -> None:
    """Whatever the order of the samples; none is no error."""
    groups = make([[1, 2]])
    assert groups.of({"tokens": np.array([20, 10, 15, 20])}).tolist() == [1, 0, 1, 1]
    assert groups.of({"tokens": np.zeros(0, np.int32)}).tolist() == []


@pytest.mark.parametrize("tokens", [0, 9, 12, 21, 10**9])
def test_a_sample_that_was_not_counted_is_an_error(tokens: int) -> None:
    """A number in no cell, below, between or above those of the manifest, says that the index is no longer true."""
    with pytest.raises(IndexMismatch, match="not among those"):
        make([[1, 1]]).of({"tokens": np.array([10, tokens])})
    nothing = Groups(np.zeros(0), (), np.zeros((1, 0), np.int32), TOKENS, cells(), np.zeros(0, np.int16))
    with pytest.raises(IndexMismatch):
        nothing.of({"tokens": np.array([tokens])})


@given(st.integers(0, 5), st.lists(st.integers(-1, 3), max_size=7), st.randoms(use_true_random=False))
def test_cells_add_up_to_groups(shards: int, of_cell: list[int], random: Any) -> None:
    """Counts of a group are those of its cells; cells of no group count for none."""
    counts = np.array([[random.randint(0, 9) for _ in of_cell] for _ in range(shards)], dtype=np.uint16)
    counts = counts.reshape(shards, len(of_cell))
    found = group_counts(counts, np.array(of_cell, dtype=np.int16), 4)
    plain = [[sum(int(row[c]) for c, g in enumerate(of_cell) if g == group) for group in range(4)] for row in counts]
    assert found.tolist() == plain


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3000)), min_size=1, max_size=20), st.integers(0, 4))
def test_a_scale_finds_the_cells_of_the_histogram(sizes: list[tuple[int, int]], shift: int) -> None:
    """For sizes and for values, at any coarseness: the cells of samples are those that `coarse` joins."""
    from shardwriter.aggregate import coarse, size_cells, value_cells

    width, height = np.array(sizes).T
    columns = {"width": width, "height": height, "pixels": width * height}
    fine = size_cells(width, height)
    assert Scale(SIZE, shift).cells(columns).tolist() == coarse(fine, shift, sizes=True).tolist()
    fine = value_cells(width * height)
    assert Scale("pixels", shift).cells(columns).tolist() == coarse(fine, shift, sizes=False).tolist()
    assert Scale(SIZE, 0).needs == ("width", "height")
    assert Scale("pixels", 0).needs == ("pixels",)


def test_the_digest_covers_what_decides_the_batches() -> None:
    """Capacities and cells change it; how samples lie in shards does not."""
    digest = make([[1, 2]]).digest
    assert make([[0, 1], [3, 1]]).digest == digest
    assert make([[1, 2]], capacity=(4, 3)).digest != digest
    assert make([[1, 2]], of_cell=(0, 0, 1)).digest != digest


def test_a_column_that_is_not_in_the_index_is_an_error() -> None:
    """The error names it; a dataset without any sample needs none."""
    statistics = ColumnStatistics([{"tokens": np.array([3, 4])}])
    assert needed_histogram(statistics, "tokens").counts.sum() == 2
    with pytest.raises(PlanError, match="no column 'frames'"):
        needed_histogram(statistics, "frames")
    for name in (SIZE, "pixels"):
        with pytest.raises(PlanError, match="no sizes of images"):
            needed_histogram(statistics, name)
    empty = ColumnStatistics([{"tokens": np.zeros(0, np.int32)}])
    assert needed_histogram(empty, "frames").counts.shape == (1, 0)
    assert needed_histogram(empty, SIZE).bounds.shape == (0, 2, 2)


def test_shards_that_lack_the_column_are_no_silent_loss() -> None:
    """Where some shards know it and others do not, the error names the first that does not."""
    have, lack = {"tokens": np.array([3, 4])}, {"frames": np.array([3])}
    with pytest.raises(PlanError, match=r"no column 'tokens' for 2 of 3 shards, the first of them shard number 1"):
        needed_histogram(ColumnStatistics([have, lack, lack]), "tokens")
    empty = {"frames": np.zeros(0, np.int32)}
    assert needed_histogram(ColumnStatistics([have, empty]), "tokens").counts.sum() == 2
