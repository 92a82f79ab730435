"""Which shards a dataset has, where its index is, and how an index comes to be."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import reading
import tars
from reading import flat, write_numbered

from shardwriter import ShardWriter, index_shards
from shardwriter.errors import DestinationError, FormatError, IndexFormatError, TruncatedShard
from shardwriter.format import MANIFEST
from streaming import DatasetNotFound, IndexMismatch, ObjectChanged, StreamingDataset
from streaming.catalog import open_catalog


def _read(source: object, **options: object) -> list[int]:
    return flat(StreamingDataset(source, threads=0, **options))  # type: ignore[arg-type]


def _indexed(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of indexing since the last call."""
    lines = [r.getMessage() for r in caplog.records if "had no index" in r.getMessage()]
    caplog.clear()
    return lines


def test_an_indexed_folder(small: str) -> None:
    """Counts, sizes and URLs of the shards come in the order of the manifest; the catalog can be pickled."""
    catalog = open_catalog(small)
    assert catalog.counts.tolist() == list(reading.COUNTS)
    assert catalog.bytes == sum(p.stat().st_size for p in Path(small).glob("*.tar"))
    again = pickle.loads(pickle.dumps(catalog))
    assert len(again) == len(reading.COUNTS)
    for i in range(len(again)):
        assert again.url(i) == f"{small}/shard-{i:03d}.tar"
        assert len(again.table(i)) == reading.COUNTS[i]


def test_first_use_indexes_a_folder_beside_its_shards(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A local folder without an index gets one beside its shards, with one line that says so, and only once."""
    folder = write_numbered(tmp_path / "data", [3, 2], index=False)
    assert _read(folder) == [0, 1, 2, 3, 4]
    [line] = _indexed(caplog)
    assert re.search(rf"{folder} had no index; made one in {folder}: indexed 2 shards: 5 samples.* in [0-9.]+ s", line)
    assert (folder / MANIFEST).exists()
    assert not (cache / "index").exists()
    assert _read(folder) == [0, 1, 2, 3, 4]
    assert not _indexed(caplog)


def test_first_use_indexes_a_pattern_in_the_cache(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Shards that a pattern names are indexed in the user's cache folder: others beside them are not touched."""
    folder = write_numbered(tmp_path / "data", [2, 2, 1], index=False)
    before = sorted(folder.iterdir())
    assert _read(f"{folder}/shard-00{{0,2}}.tar") == [0, 1, 4]
    assert len(_indexed(caplog)) == 1
    assert sorted(folder.iterdir()) == before
    assert list((cache / "index").rglob(MANIFEST))
    assert _read(f"{folder}/shard-00[02].tar") == [0, 1, 4]
    assert not _indexed(caplog), "the same shards by another pattern need no new index"
    assert _read(f"{folder}/shard-00[012].tar") == [0, 1, 2, 3, 4]
    assert len(_indexed(caplog)) == 1


def test_first_use_indexes_a_folder_that_is_not_ours_in_the_cache(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that can't be written is indexed in the cache folder, and found there again."""
    folder = write_numbered(tmp_path / "data", [3], index=False)
    folder.chmod(0o555)
    if os.geteuid() == 0:  # the superuser may write everywhere
        real = os.access
        monkeypatch.setattr(os, "access", lambda p, mode: real(p, mode) and not (mode & os.W_OK and Path(p) == folder))
    for lines in (1, 0):
        assert _read(folder) == [0, 1, 2]
        assert len(_indexed(caplog)) == lines
    assert not (folder / MANIFEST).exists()
    folder.chmod(0o755)


def test_patterns_use_the_index_beside_the_shards(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where an index lists all shards that are named, it is used; where it lacks one, the named ones are indexed."""
    folder = write_numbered(tmp_path / "data", [2, 1])
    assert _read([folder / "shard-001.tar", folder / "shard-000.tar"]) == [2, 0, 1]
    assert not _indexed(caplog)
    (folder / "shard-002.tar").write_bytes(tars.tar(tars.numbered(1, 3)))
    assert _read(f"{folder}/*.tar") == [0, 1, 2, 3]
    assert len(_indexed(caplog)) == 1


@pytest.mark.parametrize("kind", ["folder", "pattern"])
def test_the_index_may_be_elsewhere(tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    """index= names the place where the index is made, and found the next time."""
    folder = write_numbered(tmp_path / "data", [2, 1], index=False)
    source = folder if kind == "folder" else f"{folder}/*.tar"
    for lines in (1, 0):
        assert _read(source, index=tmp_path / "elsewhere") == [0, 1, 2]
        assert len(_indexed(caplog)) == lines
    assert (tmp_path / "elsewhere" / MANIFEST).exists()
    assert not (folder / MANIFEST).exists()
    assert not (cache / "index").exists()


def test_an_index_made_elsewhere_knows_its_shards(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An index folder that index_shards made can be named as the source itself: it says where the shards are."""
    folder = write_numbered(tmp_path / "data", [2, 1], index=False)
    index_shards(folder, index=tmp_path / "elsewhere", workers=1, progress=False)
    assert _read(folder, index=tmp_path / "elsewhere") == [0, 1, 2]
    assert _read(tmp_path / "elsewhere") == [0, 1, 2]
    assert not _indexed(caplog)


def test_several_places_with_an_index_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The indexes of a list of datasets stay apart in one index folder."""
    a, b = (write_numbered(tmp_path / name, [n], index=False) for name, n in (("a", 2), ("b", 3)))
    for lines in (2, 0):
        assert _read([a, b], index=tmp_path / "elsewhere") == [0, 1, 0, 1, 2]
        assert len(_indexed(caplog)) == lines


def test_a_list_of_datasets_is_one_after_the_other(tmp_path: Path, small: str) -> None:
    """Two datasets in a list are concatenated, shards and samples; their order is part of the digest."""
    other = str(write_numbered(tmp_path / "other", [2, 1]))
    both = open_catalog([other, small])
    assert both.counts.tolist() == [2, 1, *reading.COUNTS]
    assert both.url(1) == f"{other}/shard-001.tar"
    assert both.url(2) == f"{small}/shard-000.tar"
    assert both.table(2).key(0) == "000000"
    assert _read([other, small]) == [0, 1, 2, *range(37)]
    assert both.digest() != open_catalog([small, other]).digest()


def test_the_digest_names_the_content(tmp_path: Path, small: str) -> None:
    """A copy has the same digest wherever it lies; a changed sample or another order of shards gives another."""
    copy = shutil.copytree(small, tmp_path / "copy")
    digest = open_catalog(small).digest()
    assert open_catalog(copy).digest() == digest
    assert open_catalog([copy / f"shard-00{i}.tar" for i in (1, 0, 2, 3, 4, 5, 6)]).digest() != digest
    (copy / "shard-004.tar").write_bytes(tars.tar(tars.numbered(1, 90)))
    index_shards(copy, workers=1, progress=False)
    assert open_catalog(copy).digest() != digest


def test_writing_that_never_ended_is_refused(tmp_path: Path, cache: Path) -> None:
    """A dataset that is still being written is an error that says so, not the shards that are there so far."""
    writer = ShardWriter(tmp_path / "data", max_samples=1)
    for i in range(3):
        writer.write({"__key__": str(i), "cls": i})
    for source in (tmp_path / "data", str(tmp_path / "data")):
        with pytest.raises((DatasetNotFound, DestinationError), match=r"still being written|interrupted"):
            StreamingDataset(source)
    writer.close()
    assert _read(tmp_path / "data") == [0, 1, 2]


@pytest.mark.parametrize("kind", ["folder", "pattern"])
def test_processes_that_open_at_once(tmp_path: Path, cache: Path, kind: str) -> None:
    """Processes that open an un-indexed dataset at the same moment all get all of it."""
    folder = write_numbered(tmp_path / "data", [40] * 6, index=False)
    source = str(folder) if kind == "folder" else f"{folder}/shard-*.tar"
    context = multiprocessing.get_context("fork")
    start, answers = context.Event(), context.SimpleQueue()
    processes = [context.Process(target=reading.open_and_read, args=(source, start, answers)) for _ in range(4)]
    for process in processes:
        process.start()
    start.set()
    assert [answers.get() for _ in processes] == [list(range(240))] * 4
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


def _other_size(shard: Path) -> None:
    shard.write_bytes(tars.tar(tars.numbered(9, 0)))


def _cut(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:-512])


def _same_size(shard: Path) -> None:
    data = tars.tar(tars.numbered(8, 100))
    assert len(data) == shard.stat().st_size
    shard.write_bytes(data)


def _fields_swapped(shard: Path) -> None:
    members = tars.numbered(8)
    data = tars.tar(m for pair in zip(members[1::2], members[::2], strict=True) for m in pair)
    assert len(data) == shard.stat().st_size
    shard.write_bytes(data)


def _zeros(shard: Path) -> None:
    shard.write_bytes(bytes(shard.stat().st_size))


@pytest.mark.parametrize("change", [_other_size, _cut, _same_size, _fields_swapped, _zeros])
@pytest.mark.parametrize("zipped", [False, True])
def test_shards_that_changed(tmp_path: Path, change: Callable[[Path], None], zipped: bool) -> None:
    """A shard that is no longer what the index describes is an error that names it, whatever on_error says."""
    folder = write_numbered(tmp_path / "data", [8, 8], index=False)
    shard = folder / "shard-000.tar"
    if zipped:
        shard.write_bytes(tars.zipped(shard.read_bytes()))
    index_shards(folder, workers=1, progress=False)
    if zipped:
        size = shard.stat().st_size
        plain = folder / "plain"
        plain.write_bytes(tars.tar(tars.numbered(8)))
        change(plain)
        shard.write_bytes(tars.zipped(plain.read_bytes()).ljust(size, b"\0"))
        plain.unlink()
    else:
        change(shard)
    for on_error in ("raise", "skip"):
        with pytest.raises((ObjectChanged, FormatError)) as caught:
            _read(folder, on_error=on_error)
        assert caught.value.shard == str(shard)
        if not zipped:
            assert isinstance(caught.value, ObjectChanged)
            assert "shardstream index" in str(caught.value)


def test_a_cached_index_follows_the_shards(tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A shard that was replaced by one of another size makes its index in the cache folder stale: a new one is made."""
    folder = write_numbered(tmp_path / "data", [8, 2], index=False)
    assert len(_read(f"{folder}/*.tar")) == 10
    _other_size(folder / "shard-000.tar")
    assert len(_read(f"{folder}/*.tar")) == 11
    assert len(_indexed(caplog)) == 2


def test_counts_that_disagree(tmp_path: Path) -> None:
    """A sidecar that does not fit the manifest is an error with both numbers and the sidecar's name."""
    folder = write_numbered(tmp_path / "data", [8, 5])
    shutil.copy(folder / "shard-001.tar.ssx", folder / "shard-000.tar.ssx")
    with pytest.raises(IndexMismatch, match="promises 8 samples, the sidecar has 5") as caught:
        _read(folder)
    assert "shard-000.tar" in str(caught.value.shard)


def test_a_damaged_manifest_is_not_made_anew(tmp_path: Path) -> None:
    """A manifest that is cut is an error that names it; it is neither ignored nor overwritten."""
    folder = write_numbered(tmp_path / "data", [8, 5])
    cut = (folder / MANIFEST).read_bytes()[:100]
    (folder / MANIFEST).write_bytes(cut)
    with pytest.raises(IndexFormatError, match=MANIFEST):
        StreamingDataset(folder)
    assert (folder / MANIFEST).read_bytes() == cut


def test_gzip_shards(tmp_path: Path) -> None:
    """Shards in gzip, told by content, are read like the others, fields and order."""
    folder = write_numbered(tmp_path / "data", [4, 3, 2], index=False)
    for i, name in enumerate(("shard-000.tar", "shard-001.tar.gz", "shard-002.tgz")):
        data = (folder / f"shard-00{i}.tar").read_bytes()
        (folder / f"shard-00{i}.tar").unlink()
        (folder / name).write_bytes(tars.zipped(data))
    index_shards(folder, workers=1, progress=False)
    samples = list(StreamingDataset(folder, threads=0))
    assert [s["cls"] for s in samples] == list(range(9))
    assert [s["txt"] for s in samples] == [f"text {i}" for i in range(9)]


def test_damage_ends_indexing_unless_it_may_be_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A cut shard is an error with its name; under on_error="skip" its whole samples are kept and the log tells."""
    folder = write_numbered(tmp_path / "data", [4, 4], index=False)
    shard = folder / "shard-000.tar"
    shard.write_bytes(shard.read_bytes()[: 512 * 9])  # two samples of four blocks, and half of the third
    with pytest.raises(TruncatedShard) as caught:
        StreamingDataset(folder)
    assert caught.value.shard is not None
    assert caught.value.shard.endswith("shard-000.tar")
    assert not (folder / MANIFEST).exists()
    with caplog.at_level(logging.WARNING):
        assert _read(folder, on_error="skip") == [0, 1, 4, 5, 6, 7]
    assert "shard-000.tar, key 000002, offset 4096" in caplog.text


def test_shards_that_the_index_does_not_list_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A shard that was put into an indexed folder is not read, and the log says so; without one it says nothing."""
    folder = write_numbered(tmp_path / "data", [3, 2])
    assert _read(folder) == [0, 1, 2, 3, 4]
    assert "does not list" not in caplog.text
    shutil.copy(folder / "shard-000.tar", folder / "shard-002.tar")
    assert _read(folder) == [0, 1, 2, 3, 4]
    assert "1 shards that its index does not list, such as shard-002.tar" in caplog.text


def test_a_pickled_catalog_leaves_out_what_only_plans_need(small: str) -> None:
    """Worker processes get shards, counts and digests, and no histograms, which grow with the shards."""
    catalog = open_catalog(small)
    again = pickle.loads(pickle.dumps(catalog))
    assert again.digest() == catalog.digest()
    assert again.counts.tolist() == catalog.counts.tolist()
    assert [part.manifest.histograms for part in again._parts] == [{}]
