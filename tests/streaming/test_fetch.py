"""Bytes of samples, from maps and by ranges."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import reading
import tars
from hypothesis import given
from hypothesis import strategies as st
from reading import write_numbered, write_samples

from shardwriter import index_shards
from shardwriter.store import open_store
from streaming import ObjectChanged, ObjectNotFound
from streaming.catalog import Catalog, open_catalog
from streaming.fetch import GAP, OPEN_SHARDS, PART, Fetcher, join_spans
from streaming.plan import SampleRefs


def _refs(*places: tuple[int, int]) -> SampleRefs:
    return SampleRefs(np.array([s for s, _ in places], np.int64), np.array([i for _, i in places], np.int64))


@pytest.fixture(scope="module")
def remote(s3: Any) -> tuple[str, dict[str, Any]]:
    """The numbered dataset in a bucket, and the options with which it is opened."""
    url = s3.bucket("fetch") + "/data"
    store = open_store(url, s3.options)
    first = 0
    for i, count in enumerate(reading.COUNTS):
        store.write(f"shard-{i:03d}.tar", tars.tar(tars.numbered(count, first)))
        first += count
    store.write("zipped/z.tar.gz", tars.zipped(tars.tar(tars.numbered(3, 100))))
    index_shards(url, workers=1, progress=False, storage_options=s3.options)
    return url, s3.options


@pytest.fixture(params=["mapped", "ranges"])
def catalog(request: pytest.FixtureRequest, small: str) -> Catalog:
    """The same dataset on disk and in a bucket."""
    if request.param == "mapped":
        return open_catalog(small)
    url, options = request.getfixturevalue("remote")
    return open_catalog(url, options=options)


def test_samples_come_in_the_order_asked_for(catalog: Catalog) -> None:
    """Any order, over shards and within them, with repeats; key, place and bytes of each field are right."""
    starts = np.cumsum([0, *reading.COUNTS])
    places = [(5, 11), (0, 0), (5, 0), (0, 7), (0, 0), (4, 0), (6, 2)]
    with Fetcher(catalog) as fetcher:
        samples = fetcher.fetch(_refs(*places))
    assert [(s.shard, s.index) for s in samples] == places
    for sample in samples:
        number = int(starts[sample.shard]) + sample.index
        assert sample.key == f"{number:06d}"
        assert list(sample.fields.items()) == [("cls", b"%d" % number), ("txt", b"text %d" % number)]


def test_no_references_no_samples(catalog: Catalog) -> None:
    """An empty request opens nothing and gives nothing."""
    with Fetcher(catalog) as fetcher:
        assert fetcher.fetch(_refs()) == []


def test_only_what_is_wanted_is_read(catalog: Catalog) -> None:
    """Fields that are not wanted are left out; names that a shard does not have are no error here."""
    with Fetcher(catalog, lambda names: ["txt", "absent"]) as fetcher:
        assert [s.fields for s in fetcher.fetch(_refs((0, 1)))] == [{"txt": b"text 1"}]
    with Fetcher(catalog, lambda names: []) as fetcher:
        assert [(s.key, s.fields) for s in fetcher.fetch(_refs((0, 1)))] == [("000001", {})]


def test_gzip_in_a_bucket(remote: tuple[str, dict[str, Any]]) -> None:
    """A remote shard in gzip is fetched and unpacked."""
    url, options = remote
    catalog = open_catalog(url, options=options)
    assert catalog.url(7).endswith("zipped/z.tar.gz")
    with Fetcher(catalog) as fetcher:
        assert [s.fields["cls"] for s in fetcher.fetch(_refs((7, 2), (7, 0)))] == [b"102", b"100"]


def test_remote_shards_that_change_between_reads(s3: Any) -> None:
    """A remote shard that is replaced by one of the same size while it is read is an error, never a mix."""
    url = s3.bucket("change")
    store = open_store(url, s3.options)
    store.write("a.tar", tars.tar(tars.numbered(8)))
    index_shards(url, workers=1, progress=False, storage_options=s3.options)
    with Fetcher(open_catalog(url, options=s3.options)) as fetcher:
        fetcher.fetch(_refs((0, 0)))
        store.write("a.tar", tars.tar(tars.numbered(8, 100)))
        with pytest.raises(ObjectChanged) as caught:
            fetcher.fetch(_refs((0, 7)))
    assert caught.value.shard == f"{url}/a.tar"


def test_shards_replaced_while_they_are_mapped(tmp_path: Path) -> None:
    """A local shard that a rename replaces is read on from the old file, whole."""
    folder = write_numbered(tmp_path / "data", [8])
    with Fetcher(open_catalog(folder)) as fetcher:
        fetcher.fetch(_refs((0, 0)))
        (tmp_path / "new").write_bytes(tars.tar(tars.numbered(8, 100)))
        os.replace(tmp_path / "new", folder / "shard-000.tar")
        assert [s.fields["cls"] for s in fetcher.fetch(_refs((0, 7)))] == [b"7"]


def test_shards_that_are_gone(tmp_path: Path) -> None:
    """A shard that was removed is an error that names it."""
    folder = write_numbered(tmp_path / "data", [2, 2])
    (folder / "shard-001.tar").unlink()
    with Fetcher(open_catalog(folder)) as fetcher, pytest.raises(ObjectNotFound) as caught:
        fetcher.fetch(_refs((0, 0), (1, 0)))
    assert caught.value.shard == str(folder / "shard-001.tar")


def test_long_and_strange_names(tmp_path: Path) -> None:
    """Keys longer than a header holds, with folders and letters beyond ASCII, fit their index and come back."""
    keys = [f"{'d' * 60}/{'k' * 120}", "ümläut/犬", "a b", "k" * 89, "k" * 90, "k" * 95]
    shard = tars.tarfile_tar((f"{key}.txt", key.encode()) for key in keys)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.tar").write_bytes(shard)
    index_shards(folder, workers=1, progress=False)
    with Fetcher(open_catalog(folder)) as fetcher:
        samples = fetcher.fetch(_refs(*((0, i) for i in range(len(keys)))))
    assert [(s.key, s.fields["txt"].decode()) for s in samples] == [(key, key) for key in keys]


def test_fields_of_zero_bytes(tmp_path: Path) -> None:
    """A field without bytes is there, and empty; one that a sample lacks is not there."""
    folder = write_samples(tmp_path / "data", [("a.txt", b""), ("a.cls", b"1"), ("b.cls", b"2")])
    with Fetcher(open_catalog(folder)) as fetcher:
        assert [s.fields for s in fetcher.fetch(_refs((0, 0), (0, 1)))] == [{"txt": b"", "cls": b"1"}, {"cls": b"2"}]


def test_threads_may_share_a_fetcher(catalog: Catalog) -> None:
    """Many threads that read at once get what one would."""
    places = [(s, i) for s, count in enumerate(reading.COUNTS) for i in range(count)]
    generator = np.random.default_rng(0)
    orders = [[places[i] for i in generator.permutation(len(places))] for _ in range(16)]
    with Fetcher(catalog) as fetcher, ThreadPoolExecutor(8) as pool:
        for order, samples in zip(orders, pool.map(lambda o: fetcher.fetch(_refs(*o)), orders), strict=True):
            assert [(s.shard, s.index) for s in samples] == order


def test_open_shards_are_bounded(tmp_path: Path) -> None:
    """However many shards are read, no more than OPEN_SHARDS stay open, and none behind close."""
    count = OPEN_SHARDS + 40
    folder = write_numbered(tmp_path / "data", [1] * count)
    process = psutil.Process()
    before = process.num_fds()

    def maps() -> int:
        return sum(str(folder) in m.path for m in process.memory_maps(grouped=False))

    with Fetcher(open_catalog(folder)) as fetcher:
        numbers = [int(fetcher.fetch(_refs((i, 0)))[0].fields["cls"]) for i in range(count)]
        assert numbers == list(range(count))
        assert maps() <= 2 * OPEN_SHARDS + 1  # shard and sidecar, and the manifest
    assert maps() <= 1
    assert process.num_fds() <= before + 1


def test_close_ends_the_threads(remote: tuple[str, dict[str, Any]], nothing_left: Callable[[], None]) -> None:
    """Reading by ranges takes threads; none is left behind close."""
    url, options = remote
    with Fetcher(open_catalog(url, options=options)) as fetcher:
        fetcher.fetch(_refs((0, 0), (5, 3)))
        assert any(t.name.startswith("shardstream-read") for t in threading.enumerate())
    nothing_left()


SPANS = st.lists(
    st.tuples(st.integers(-1, 40 << 20), st.integers(0, 12 << 20)).map(lambda t: (t[0], max(t[0], 0) + t[1])),
    max_size=30,
)


@given(SPANS)
def test_requests_cover_what_is_wanted(spans: list[tuple[int, int]]) -> None:
    """Each wanted span lies in exactly one request; requests read through gaps of at most GAP, and a span that would
    make a request longer than PART is not joined to it.
    """
    lows, highs = (np.array([s[k] for s in spans], np.int64) for k in (0, 1))
    requests = join_spans(lows, highs)
    members = [i for request in requests for i in request.members]
    assert sorted(members) == [i for i, (low, _) in enumerate(spans) if low >= 0]
    for request in requests:
        inside = sorted((spans[i] for i in request.members), key=lambda s: s[0])
        assert request.low == inside[0][0]
        assert request.high == max(high for _, high in inside)
        assert all(high - request.low <= PART for _, high in inside[1:])
        reach = inside[0][1]
        for low, high in inside[1:]:
            assert low - reach <= GAP
            reach = max(reach, high)


def test_views_where_they_are_wanted(catalog: Catalog) -> None:
    """Fields that are wanted as views are memoryviews, the others bytes, with the same contents."""
    with Fetcher(catalog, viewed=lambda field: field == "txt") as fetcher:
        samples = fetcher.fetch(_refs((0, 3), (5, 2), (0, 1)))
        assert {type(sample.fields["txt"]) for sample in samples} == {memoryview}
        assert {type(sample.fields["cls"]) for sample in samples} == {bytes}
        numbers = [int(sample.fields["cls"]) for sample in samples]
        assert [bytes(sample.fields["txt"]) for sample in samples] == [b"text %d" % n for n in numbers]


def test_views_outlive_the_fetcher(catalog: Catalog) -> None:
    """What was given stays as it is when the fetcher is closed."""
    with Fetcher(catalog, viewed=lambda field: True) as fetcher:
        [sample] = fetcher.fetch(_refs((1, 1)))
    assert bytes(sample.fields["txt"]) == b"text 9"


def test_columns(catalog: Catalog) -> None:
    """Field by field the samples of several shards are in the order asked for, with keys and sizes."""
    places = [(5, 11), (0, 0), (5, 0), (0, 7), (0, 0), (6, 2)]
    with Fetcher(catalog) as fetcher:
        cut = fetcher.cut(_refs(*places))
        samples = fetcher.fetch(_refs(*places))
    assert cut.whole
    assert len(cut) == 6
    assert cut.keys == [sample.key for sample in samples]
    assert {name: list(field.cut()) for name, field in cut.fields.items()} == {
        name: [sample.fields[name] for sample in samples] for name in ("cls", "txt")
    }
    assert cut.size == sum(len(data) for sample in samples for data in sample.fields.values())


def test_bytes_are_cut_out_when_they_are_taken(catalog: Catalog) -> None:
    """Until a sample's turn comes nothing of it is copied; each is cut out once for each time it is taken."""
    with Fetcher(catalog) as fetcher:
        cut = fetcher.cut(_refs((0, 0), (0, 1)))
        first, again = cut.samples(), cut.raw()
        fetcher.close()
        assert next(first)["txt"] == b"text 0"
        assert next(again).fields["txt"] == b"text 0"
        assert [sample["txt"] for sample in first] == [b"text 1"]


def test_shards_of_different_fields(tmp_path: Path) -> None:
    """A field that some samples lack, or whole shards, has gaps; the samples do not have it, and others are whole."""
    folder = tmp_path / "data"
    write_samples(folder, [("a.txt", b"1"), ("a.cls", b"1"), ("b.cls", b"2")], "shard-000.tar")
    write_samples(folder, [("c.cls", b"3"), ("c.bin", b"33")], "shard-001.tar")
    with Fetcher(open_catalog(folder)) as fetcher:
        for places, gaps in (
            ([(0, 0), (0, 1)], {"txt"}),
            ([(0, 0)], set()),
            ([(1, 0), (0, 0)], {"txt", "bin"}),
            ([(0, 1), (1, 0), (0, 0)], {"txt", "bin"}),
        ):
            cut = fetcher.cut(_refs(*places))
            samples = fetcher.fetch(_refs(*places))
            assert {name for name, field in cut.fields.items() if field.gaps} == gaps
            assert cut.whole == (not gaps)
            assert list(cut.fields["cls"].cut()) == [sample.fields["cls"] for sample in samples]
            assert [s["__key__"] for s in cut.samples()] == cut.keys == [sample.key for sample in samples]
            for plain, sample in zip(cut.samples(), samples, strict=True):
                assert {k: v for k, v in plain.items() if k[0] != "_"} == sample.fields
            assert cut.size == sum(len(data) for sample in samples for data in sample.fields.values())
        fields = [sample.fields for sample in fetcher.fetch(_refs((0, 0), (0, 1), (1, 0)))]
    assert fields == [{"txt": b"1", "cls": b"1"}, {"cls": b"2"}, {"cls": b"3", "bin": b"33"}]
