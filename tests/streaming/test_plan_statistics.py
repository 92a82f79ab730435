"""Statistics of columns in memory: what a manifest would say of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import sized

from shardwriter.aggregate import SIZE, aggregate, combine
from streaming.plan import ColumnStatistics
from streaming.plan.groups import Scale


def test_an_example() -> None:
    """Counts, sums and histograms of a column over two shards."""
    statistics = ColumnStatistics([{"tokens": np.array([3, 5])}, {"tokens": np.array([4])}])
    assert statistics.counts.tolist() == [2, 1]
    assert statistics.sums("tokens").tolist() == [8.0, 4.0]
    table: Any = statistics.histogram("tokens")
    assert table.counts.tolist() == [[1, 0, 1], [0, 1, 0]]
    assert table.bounds.tolist() == [[[3.0], [3.0]], [[4.0], [4.0]], [[5.0], [5.0]]]
    assert statistics.columns(1)["tokens"].tolist() == [4]


def test_pixels_and_seconds_follow_from_other_columns() -> None:
    """They can be asked for as any other; a rate of 0 gives 0 seconds; a column of the user's own goes before."""
    images = ColumnStatistics([{"width": np.array([30, 4]), "height": np.array([20, 5])}])
    assert images.columns(0)["pixels"].tolist() == [600, 20]
    assert images.sums("pixels").tolist() == [620.0]
    assert images.histogram(SIZE) is not None
    sounds = ColumnStatistics([{"frames": np.array([8000, 5]), "rate": np.array([16_000, 0])}])
    assert sounds.columns(0)["seconds"].tolist() == [0.5, 0.0]
    own = ColumnStatistics([{"width": np.array([30]), "height": np.array([20]), "pixels": np.array([7])}])
    assert own.sums("pixels").tolist() == [7.0]


def test_what_no_shard_has() -> None:
    """A column that is nowhere has no histogram and sums of 0; without a shard, or a sample, nothing fails."""
    statistics = ColumnStatistics([{"tokens": np.array([3, 5])}, {"tokens": np.zeros(0, np.int32)}, {}])
    assert statistics.counts.tolist() == [2, 0, 0]
    assert statistics.histogram("frames") is None
    assert statistics.histogram(SIZE) is None
    assert statistics.sums("frames").tolist() == [0.0, 0.0, 0.0]
    nothing = ColumnStatistics([])
    assert nothing.counts.shape == (0,)
    assert nothing.histogram("tokens") is None
    assert nothing.sums("tokens").shape == (0,)


@given(st.sampled_from(["pixels", "tokens", "seconds"]), st.data())
@settings(max_examples=40)
def test_histograms_count_every_sample(column: str, data: st.DataObject) -> None:
    """Each shard's row counts its samples by cell, bounds hold them, and both are what the manifest would hold."""
    statistics = data.draw(sized(column=column))
    for name in [column, SIZE] if column == "pixels" else [column]:
        table = statistics.histogram(name)
        if table is None:
            assert not len(statistics.counts)
            continue
        assert table.counts.sum(axis=1).tolist() == statistics.counts.tolist()
        scale = Scale(name, table.shift)
        for shard in range(len(statistics.counts)):
            columns = statistics.columns(shard)
            at = np.searchsorted(table.cells, scale.cells(columns))
            assert np.bincount(at, minlength=len(table.cells)).tolist() == table.counts[shard].tolist()
            values = np.stack([columns[needed] for needed in scale.needs], axis=1)
            assert (table.bounds[at, 0] <= values).all()
            assert (values <= table.bounds[at, 1]).all()
        rows = [aggregate(statistics.columns(s)).histograms.get(name) for s in range(len(statistics.counts))]
        again = combine(rows, sizes=name == SIZE)
        assert all(np.array_equal(a, b) for a, b in zip(table, again, strict=True))
