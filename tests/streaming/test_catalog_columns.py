"""What a catalog knows of the columns of its shards, alone and joined with others."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from reading import write_numbered

from shardwriter import ShardWriter
from shardwriter.aggregate import size_cells, value_cells
from shardwriter.open import load_table
from shardwriter.table import ShardTable
from streaming import DatasetNotFound
from streaming.catalog import Catalog, open_catalog, open_mix
from streaming.plan import Chosen
from streaming.plan.where import Where
from streaming.source import Source


def _measured(folder: Path, sizes: list[list[tuple[int, int]]], *, tokens: bool = False) -> Path:
    """A dataset of at most two images of (width, height) a shard; with a column `tokens`: 0, 1, 2, ..."""
    with ShardWriter(folder, max_samples=len(sizes[0])) as writer:
        for i, size in enumerate(size for shard in sizes for size in shard):
            columns = {"tokens": i} if tokens else None
            writer.write({"__key__": str(i), "png": Image.new("RGB", size)}, columns=columns)
    return folder


A = [[(30, 20), (8, 8)], [(30, 20), (5, 40)], [(100, 7)]]
B = [[(8, 8)], [(64, 64)]]


@pytest.fixture
def measured(tmp_path: Path) -> tuple[Path, Path]:
    """Two datasets of images, of which the first has a column `tokens`: 0 ... 4."""
    return _measured(tmp_path / "a", A, tokens=True), _measured(tmp_path / "b", B)


def _sizes(catalog: Catalog) -> list[list[tuple[int, int]]]:
    """The sizes in each shard by its columns."""
    columns = [catalog.columns(shard) for shard in range(len(catalog))]
    return [list(zip(c["width"].tolist(), c["height"].tolist(), strict=True)) for c in columns]


def _check_histogram(catalog: Catalog) -> None:
    """The histogram counts the images of each shard in the cells of their sizes, between the bounds."""
    table = catalog.histogram("size")
    assert table is not None
    for row, sizes in zip(table.counts, _sizes(catalog), strict=True):
        width, height = np.array(sizes).T
        at = np.searchsorted(table.cells, size_cells(width, height, table.shift))
        assert row.tolist() == np.bincount(at, minlength=len(table.cells)).tolist()
        assert (table.bounds[at, 0] <= sizes).all()
        assert (table.bounds[at, 1] >= sizes).all()


def test_columns_of_a_dataset(measured: tuple[Path, Path]) -> None:
    """Columns come with those that follow from others, sums are theirs, histograms count them; unknown ones are not
    there.
    """
    catalog = open_catalog(measured[0])
    assert _sizes(catalog) == A
    assert catalog.columns(1)["pixels"].tolist() == [600, 200]
    assert [catalog.columns(i)["tokens"].tolist() for i in range(3)] == [[0, 1], [2, 3], [4]]
    assert catalog.sums("tokens").tolist() == [1, 5, 4]
    assert catalog.sums("pixels").tolist() == [664, 800, 700]
    assert catalog.sums("seconds").tolist() == [0, 0, 0]
    assert catalog.histogram("seconds") is None
    _check_histogram(catalog)
    tokens = catalog.histogram("tokens")
    assert tokens is not None
    assert tokens.counts.sum(axis=1).tolist() == [2, 2, 1]
    assert tokens.cells.tolist() == np.unique(value_cells(np.arange(5))).tolist()


def test_columns_of_some_shards_in_another_order(measured: tuple[Path, Path]) -> None:
    """Where shards are named one by one, sums, columns and histograms are of these, in their order."""
    folder, _ = measured
    catalog = open_catalog([folder / "shard-000002.tar", folder / "shard-000000.tar"])
    assert catalog.counts.tolist() == [1, 2]
    assert _sizes(catalog) == [A[2], A[0]]
    assert catalog.sums("tokens").tolist() == [4, 1]
    _check_histogram(catalog)


def test_joined_catalogs(measured: tuple[Path, Path]) -> None:
    """Joined catalogs are one dataset: shards, sums and histograms one below the other; a column that one of them lacks
    is 0 there, and its histogram counts nothing.
    """
    parts = [open_catalog(folder) for folder in measured]
    both = Catalog.joined([parts[0], parts[1], parts[0]])
    assert both.counts.tolist() == [2, 2, 1, 1, 1, 2, 2, 1]
    assert _sizes(both) == [*A, *B, *A]
    assert [both.url(i) for i in (2, 3)] == [parts[0].url(2), parts[1].url(0)]
    assert both.table(4).key(0) == "1"
    assert both.bytes == 2 * parts[0].bytes + parts[1].bytes
    assert both.local
    assert both.sums("tokens").tolist() == [1, 5, 4, 0, 0, 1, 5, 4]
    assert both.columns(3)["tokens"].tolist() == [0]
    assert both.columns(5)["tokens"].tolist() == [0, 1]
    assert "tokens" not in parts[1].columns(0)
    _check_histogram(both)
    tokens = both.histogram("tokens")
    assert tokens is not None
    assert tokens.counts.sum(axis=1).tolist() == [2, 2, 1, 0, 0, 2, 2, 1]
    assert both.digest() == open_catalog([measured[0], measured[1], measured[0]]).digest()
    assert Catalog.joined([parts[0]]).digest() == parts[0].digest()


def test_several_sources_of_a_mix(tmp_path: Path, measured: tuple[Path, Path]) -> None:
    """The sources of a mix are opened as one dataset, with the number of shards of each."""
    catalog, shards = open_mix(list(measured))
    assert shards == [3, 2]
    assert _sizes(catalog) == [*A, *B]
    with pytest.raises(DatasetNotFound):
        open_mix([measured[0], tmp_path / "nothing"])


def test_the_indexes_of_a_mix_lie_apart(tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """index= of a mix is a folder that holds the index of each source, made once."""
    sources: list[Source] = [write_numbered(tmp_path / name, [n, 1], index=False) for name, n in (("a", 2), ("b", 3))]
    for lines in (2, 0):
        caplog.clear()
        catalog, shards = open_mix(sources, index=tmp_path / "elsewhere")
        assert shards == [2, 2]
        assert catalog.counts.tolist() == [2, 1, 3, 1]
        assert sum("had no index" in r.getMessage() for r in caplog.records) == lines
    assert not cache.exists() or not (cache / "index").exists()
    assert sorted(p.name for p in (tmp_path / "elsewhere").iterdir()) == ["source-0", "source-1"]


def test_sidecars_from_afar_are_fetched_once(
    measured: tuple[Path, Path], s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that asks for columns and a reader that asks for spans share one reading, also from many threads; a copy
    in another process starts anew.
    """
    url = s3.bucket("columns") + "/set"
    with ShardWriter(url, max_samples=2, storage_options=s3.options) as writer:
        for i in range(6):
            writer.write({"__key__": str(i), "txt": "x"}, columns={"tokens": i})
    read: list[int] = []

    def load(store: Any, manifest: Any, row: int, **options: Any) -> ShardTable:
        read.append(row)
        return load_table(store, manifest, row, **options)

    monkeypatch.setattr("streaming.catalog.load_table", load)
    catalog = open_catalog(url, options=s3.options)
    assert [catalog.columns(shard)["tokens"].tolist() for shard in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with ThreadPoolExecutor(4) as pool:
        assert [t.key(0) for t in pool.map(catalog.table, [0, 1, 2] * 10)] == ["0", "2", "4"] * 10
    assert read == [0, 1, 2]
    chosen = Chosen(catalog, Where("tokens % 2 == 1"), run=ThreadPoolExecutor(2).map)
    assert chosen.counts.tolist() == [1, 1, 1]
    assert open_catalog(measured[0]).table(0) is not open_catalog(measured[0]).table(0)
    assert len(read) == 5
    assert pickle.loads(pickle.dumps(catalog))._fetched.get(7, lambda: catalog.table(0)).key(0) == "0"
