"""Cells of similar samples, joined into groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streaming.plan.joining import join

Cell = tuple[int, int, int]
CELLS = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 60), st.integers(1, 60)), max_size=12)
"""(samples, height, width) of each."""
LEFT = st.sampled_from([0.0, 0.5, 3.0])
"""What each group costs beside its samples: the more, the more are joined."""


def price(counts: NDArray[Any], bounds: NDArray[Any], left: float = 0.5) -> NDArray[Any]:
    return np.asarray(counts[:, 0] * np.prod(bounds, axis=1) / 1024 + left)


def joined(cells: list[Cell], left: float = 0.5, most: int = 100) -> NDArray[Any]:
    table = np.array(cells, dtype=np.int64).reshape(-1, 3)
    bounds = table[:, 1:].astype(np.float64)
    return join(table[:, :1], bounds, lambda n, b: price(n, b, left), np.maximum, most=most)


def changes(cells: list[Cell], labels: NDArray[Any], left: float) -> NDArray[Any]:
    """What joining each two groups would change in price, [g, g]; infinite on the diagonal."""
    table = np.array(cells, dtype=np.int64).reshape(-1, 3)
    g = int(labels.max(initial=-1)) + 1
    counts = np.array([table[labels == i, :1].sum(axis=0) for i in range(g)]).reshape(g, 1)
    bounds = np.array([table[labels == i, 1:].max(axis=0) for i in range(g)]).reshape(g, 2)
    apart = price(counts, bounds, left)
    rows = [price(counts[i] + counts, np.maximum(bounds[i], bounds), left) - apart - apart[i] for i in range(g)]
    return np.where(np.eye(g, dtype=bool), np.inf, np.array(rows).reshape(g, g))


@given(CELLS, LEFT, st.integers(1, 16))
@settings(max_examples=50)
def test_labels_number_the_groups(cells: list[Cell], left: float, most: int) -> None:
    """Each cell has a label; labels ascend from 0 in order of first cells, and there are at most as many as allowed."""
    labels = joined(cells, left, most)
    assert labels.shape == (len(cells),)
    assert labels.dtype == np.int64
    found = np.unique(labels)
    assert found.tolist() == list(range(len(found)))
    assert len(found) <= most


@given(CELLS, LEFT)
@settings(max_examples=50)
def test_no_two_groups_are_left_that_are_worth_joining(cells: list[Cell], left: float) -> None:
    """Where any number of groups is allowed, joining any two of those that came out would save nothing."""
    assert (changes(cells, joined(cells, left), left) >= -1e-9).all()


@given(CELLS)
@settings(max_examples=50)
def test_nothing_is_joined_that_need_not_be(cells: list[Cell]) -> None:
    """Where a group costs nothing by itself, only cells of equal bounds can save nothing and stay apart too."""
    assert joined(cells, left=0.0).tolist() == list(range(len(cells)))


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 60), st.integers(1, 60)), min_size=2, max_size=12))
@settings(max_examples=50)
def test_the_pair_that_saves_most_is_joined_first(cells: list[Cell]) -> None:
    """With one join to make, it is one of the cheapest."""
    labels = joined(cells, left=0.0, most=len(cells) - 1)
    pairs = [(i, j) for i in range(len(cells)) for j in range(i) if labels[i] == labels[j]]
    apart = changes(cells, np.arange(len(cells)), 0.0)
    assert len(pairs) == 1
    assert apart[pairs[0]] == pytest.approx(apart.min())


def test_few_samples_go_to_their_neighbours() -> None:
    """Two that are alike become one group, one that is far away stays by itself, unless it may not."""
    cells = [(90, 10, 1), (90, 20, 1), (2, 21, 1), (900, 50, 20)]
    assert joined(cells).tolist() == [0, 1, 1, 2]
    assert joined(cells, most=2).tolist() == [0, 0, 0, 1]
    assert joined(cells, most=1).tolist() == [0, 0, 0, 0]


def test_what_is_given_stays_as_it_is() -> None:
    """Counts and bounds of the caller are not written to."""
    counts, bounds = np.array([[3], [5]]), np.array([[1.0, 2.0], [2.0, 1.0]])
    join(counts, bounds, price, np.maximum, most=1)
    assert counts.tolist() == [[3], [5]]
    assert bounds.tolist() == [[1.0, 2.0], [2.0, 1.0]]


@pytest.mark.parametrize("most", [1, 5])
def test_no_cell_and_one_cell(most: int) -> None:
    """Nothing to join is no error."""
    assert joined([], most=most).tolist() == []
    assert joined([(3, 5, 5)], most=most).tolist() == [0]
