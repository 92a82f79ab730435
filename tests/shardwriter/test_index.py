"""Indexing shards that are there already, by one process and by several, in folders and in S3."""

from __future__ import annotations

import functools
import gzip
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tars
from PIL import Image

from shardwriter import index_shards
from shardwriter.errors import (
    DestinationError,
    FormatError,
    GroupingError,
    IndexFormatError,
    IndexMismatch,
    ObjectNotFound,
    SourceError,
    TruncatedShard,
    UnsupportedShard,
)
from shardwriter.format import INDEX_SUFFIX, MANIFEST, PARTIAL
from shardwriter.index import build_index
from shardwriter.open import load_manifest, load_table
from shardwriter.store import open_store

index = functools.partial(index_shards, workers=1)


def jpeg(width: int, height: int, **options: Any) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(out, "JPEG", **options)
    return out.getvalue()


def flac(frames: int, rate: int) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, np.zeros(frames, "f4"), rate, format="FLAC")
    return out.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of three shards, one in gzip and one in a subfolder, and of files that are none."""
    shards = tmp_path / "shards"
    (shards / "deep").mkdir(parents=True)
    (shards / ".hidden").mkdir()
    (shards / "b.tar").write_bytes(tars.tar(tars.numbered(3)))
    (shards / "a.tgz").write_bytes(tars.zipped(tars.tar(tars.numbered(2, 10))))
    (shards / "deep" / "c.tar").write_bytes(tars.tar([*tars.numbered(1, 20), ("README", b""), ("._x.txt", b"")]))
    for other in ("notes.txt", ".d.tar", ".hidden/e.tar", "f.tar.part"):
        (shards / other).write_bytes(b"no shard")
    return shards


def read_all(url: str | Path, apart: str | Path | None = None, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Key -> {field: bytes}, by the spans of the index alone, in order."""
    store = open_store(url, options)
    place = store if apart is None else open_store(apart, options)
    manifest = load_manifest(place)
    found = {}
    for i, name in enumerate(manifest.names()):
        table, raw = load_table(place, manifest, i), store.read(name)
        if table.gzipped:
            raw = gzip.decompress(raw)
        assert len(raw) == table.content_bytes
        for j in range(len(table)):
            spans = table.spans(j).items()
            found[table.key(j)] = {field: raw[span.offset : span.offset + span.size] for field, span in spans}
    return found


EXPECTED = {f"{i:06d}": {"cls": b"%d" % i, "txt": b"text %d" % i} for i in (10, 11, 0, 1, 2, 20)}


@pytest.mark.parametrize("workers", [1, 2, None])
def test_shards_are_found_and_indexed(folder: Path, workers: int | None) -> None:
    """All shards below a folder are indexed in the order of their names, by any number of processes."""
    report = index_shards(folder, workers=workers, progress=False)
    manifest = load_manifest(open_store(folder))
    assert manifest.names() == ["a.tgz", "b.tar", "deep/c.tar"]
    assert list(read_all(folder).items()) == list(EXPECTED.items())
    assert manifest.samples.tolist() == [2, 3, 1]
    assert manifest.sizes.tolist() == [(folder / name).stat().st_size for name in manifest.names()]
    assert manifest.meta == {
        "base": None,
        "fields": {"cls": 6, "txt": 6},
        "skipped": {"hidden file": 1, "no field name": 1},
    }
    assert (report.shards, report.samples, report.bytes) == (3, 6, int(manifest.sizes.sum()))
    assert (report.skipped, report.damaged, report.empty) == (manifest.meta["skipped"], (), 0)
    assert str(report).startswith("indexed 3 shards: 6 samples, ")
    assert "1 x hidden file" in str(report)


def test_the_index_is_the_same_by_any_number_of_workers(folder: Path, tmp_path: Path) -> None:
    """One process and several write the same bytes."""
    for workers in (1, 3):
        index_shards(folder, index=tmp_path / str(workers), workers=workers)
    files = sorted(p.relative_to(tmp_path / "1") for p in (tmp_path / "1").rglob("*.ssx"))
    assert len(files) == 4
    assert all((tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes() for name in files)


def test_the_index_may_lie_elsewhere(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `index` nothing is written beside the shards, and the manifest says where these are, in any folder."""
    before = sorted(folder.rglob("*"))
    monkeypatch.chdir(tmp_path)
    index("shards", index="the index")
    assert sorted(folder.rglob("*")) == before
    assert load_manifest(open_store(tmp_path / "the index")).base == str(folder)
    assert read_all(folder, tmp_path / "the index") == EXPECTED
    index("shards", index=str(folder) + "/")
    assert load_manifest(open_store(folder)).base is None


def test_numbers_of_images_and_audio(tmp_path: Path) -> None:
    """Columns hold upright sizes and lengths; the first of a kind is plain; what can't be read is 0 and counted."""
    turned = Image.Exif()
    turned[0x0112] = 6
    members = [
        ("a.jpg", jpeg(40, 20, exif=turned)), ("a.seg.png", jpeg(8, 9)), ("a.flac", flac(1600, 16000)),
        ("b.jpg", b"<html>"), ("b.txt", b"no audio"),
        ("c.flac", b""), ("c.jpg", jpeg(100, 50)),
    ]  # fmt: skip
    (tmp_path / "a.tar").write_bytes(tars.tar(members))
    (tmp_path / "b.tar").write_bytes(tars.tar([("x.jpg", b""), ("x.txt", b"")]))
    report = index(tmp_path)
    manifest = load_manifest(open_store(tmp_path))
    table = load_table(open_store(tmp_path), manifest, 0)
    assert {name: column.tolist() for name, column in table.columns.items()} == {
        "width": [20, 0, 100], "height": [40, 0, 50], "seg.png.width": [8, 0, 0], "seg.png.height": [9, 0, 0],
        "frames": [1600, 0, 0], "rate": [16000, 0, 0],
    }  # fmt: skip
    assert {column.dtype.str for column in table.columns.values()} == {"<i4"}
    assert load_table(open_store(tmp_path), manifest, 1).columns == {}
    assert manifest.totals["width"].tolist() == [[120, 0, 100], [0, 0, 0]]
    assert report.unreadable == 3
    assert "3" in str(report).splitlines()[-1]


def test_empty_shards_are_counted(tmp_path: Path) -> None:
    """A tar without members is a shard of no samples, and the report says how many there are."""
    (tmp_path / "a.tar").write_bytes(bytes(10240))
    report = index(tmp_path)
    assert (report.shards, report.samples, report.empty) == (1, 0, 1)
    assert read_all(tmp_path) == {}


def test_the_kind_is_told_by_content(tmp_path: Path) -> None:
    """Data in gzip named .tar and a plain tar named .tar.gz are read as what they are."""
    (tmp_path / "a.tar").write_bytes(tars.zipped(tars.tar(tars.numbered(1))))
    (tmp_path / "b.tar.gz").write_bytes(tars.tar(tars.numbered(1, 1)))
    index(tmp_path)
    assert list(read_all(tmp_path)) == ["000000", "000001"]


GOOD = tars.tar(tars.numbered(3))
APART = tars.tar([("a.jpg", b""), ("b.jpg", b""), ("a.txt", b"")])
DAMAGE: dict[str, tuple[bytes, type[FormatError], int, list[str]]] = {
    "cut": (GOOD[:3500], TruncatedShard, 3072, ["000000"]),
    "empty file": (b"", TruncatedShard, 0, []),
    "apart": (APART, GroupingError, 1024, ["b"]),
    "cut gzip": (tars.zipped(GOOD)[:-9], TruncatedShard, len(tars.zipped(GOOD)) - 9, []),
    "bad gzip": (tars.zipped(GOOD)[:-8] + bytes(8), FormatError, 0, []),
    "bzip2": (b"BZh9" + bytes(1000), UnsupportedShard, 0, []),
    "many fields": (tars.tar((f"a.{i}", b"") for i in range(4097)), FormatError, -1, []),
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("case", DAMAGE)
def test_damage_raises_and_leaves_no_manifest(tmp_path: Path, case: str, workers: int) -> None:
    """The first damaged shard is an error with its path and offset, also from another process; no manifest is left."""
    raw, error, offset, _ = DAMAGE[case]
    for name in "acd":
        (tmp_path / f"{name}.tar").write_bytes(GOOD)
    (tmp_path / "b.tar").write_bytes(raw)
    with pytest.raises(error) as caught:
        index_shards(tmp_path, workers=workers)
    assert type(caught.value) is error
    assert caught.value.shard == str(tmp_path / "b.tar")
    assert caught.value.offset == (None if offset < 0 else offset)
    with pytest.raises(ObjectNotFound, match="no index"):
        load_manifest(open_store(tmp_path))


@pytest.mark.parametrize("case", DAMAGE)
def test_salvage_keeps_what_is_whole(tmp_path: Path, case: str) -> None:
    """Salvaging keeps the whole samples of a damaged shard and all of the others, and reports each error."""
    raw, _, _, kept = DAMAGE[case]
    (tmp_path / "a.tar").write_bytes(raw)
    (tmp_path / "b.tar").write_bytes(tars.tar(tars.numbered(1, 9)))
    report = index(tmp_path, on_error="salvage")
    manifest = load_manifest(open_store(tmp_path))
    table = load_table(open_store(tmp_path), manifest, 0)
    if case != "cut gzip":
        assert [table.key(i) for i in range(len(table))] == kept
    else:
        assert all(table.spans(i).keys() == {"cls", "txt"} for i in range(len(table)))
    assert load_table(open_store(tmp_path), manifest, 1).key(0) == "000009"
    assert report.damaged
    assert all(str(tmp_path / "a.tar") in text or "rule" in text for text in report.damaged)
    assert "salvaged" in str(report)
    assert index(tmp_path, on_error="salvage", reuse=True).damaged == report.damaged


def test_reuse(folder: Path) -> None:
    """With reuse, sidecars stay whose shard has their size; a changed shard and a damaged sidecar are redone."""
    index(folder)
    kept, changed, broken = (folder / (name + INDEX_SUFFIX) for name in ("a.tgz", "b.tar", "deep/c.tar"))
    stamp = os.stat(kept).st_mtime_ns
    (folder / "b.tar").write_bytes(tars.tar(tars.numbered(4)))
    broken.write_bytes(b"rubbish")
    report = index(folder, reuse=True)
    assert report.samples == 7
    assert report.skipped == {"hidden file": 1, "no field name": 1}
    assert os.stat(kept).st_mtime_ns == stamp
    assert len(read_all(folder)) == 7
    (folder / "a.tgz").write_bytes((folder / "a.tgz").read_bytes()[:-1])
    with pytest.raises(TruncatedShard):
        index(folder, reuse=True)
    assert changed.exists()


def test_salvaged_sidecars_are_not_reused_when_damage_is_an_error(tmp_path: Path) -> None:
    """What was salvaged once does not pass for whole later."""
    (tmp_path / "a.tar").write_bytes(GOOD[:3500])
    index(tmp_path, on_error="salvage")
    with pytest.raises(TruncatedShard):
        index(tmp_path, reuse=True)


def test_explicit_lists(folder: Path, tmp_path: Path) -> None:
    """build_index takes shards by name, in the order given, and refuses one twice or one that is missing."""
    root, place = open_store(folder), open_store(tmp_path / "index")
    build_index(root, ["deep/c.tar", "b.tar"], place, workers=1)
    assert load_manifest(place).names() == ["deep/c.tar", "b.tar"]
    with pytest.raises(SourceError, match="twice"):
        build_index(root, ["b.tar", "b.tar"], place)
    with pytest.raises(ObjectNotFound) as caught:
        build_index(root, ["b.tar", "z.tar"], place, workers=1)
    assert caught.value.shard == str(folder / "z.tar")


def test_wrong_places(tmp_path: Path) -> None:
    """A place without shards, one that is not there and one that is still being written are errors that say so."""
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ObjectNotFound, match=r"\*\.tar"):
            index(place)
    (tmp_path / "a.tar").write_bytes(GOOD)
    (tmp_path / PARTIAL).write_bytes(b"{}")
    with pytest.raises(DestinationError, match="being written"):
        index(tmp_path)
    with pytest.raises(DestinationError):
        index(tmp_path, index=tmp_path / "index")
    with pytest.raises(ObjectNotFound, match="never finished"):
        load_manifest(open_store(tmp_path))


def test_arguments_are_checked(folder: Path) -> None:
    """Workers below one and unknown policies are refused."""
    with pytest.raises(ValueError, match="workers"):
        index_shards(folder, workers=0)
    with pytest.raises(ValueError, match="on_error"):
        index(folder, on_error="ignore")  # type: ignore[arg-type]


def test_progress_is_shown_when_asked_for(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A bar comes with progress=True, and not where the output is no terminal."""
    index_shards(folder, workers=1)
    assert capfd.readouterr() == ("", "")
    index_shards(folder, workers=1, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "indexing" in err
    assert "3/3" in err


def test_damaged_index_files(folder: Path) -> None:
    """A cut or changed manifest or sidecar is an error that names the file."""
    index(folder)
    store = open_store(folder)
    manifest = load_manifest(store)
    sidecar, whole = folder / ("b.tar" + INDEX_SUFFIX), folder / MANIFEST
    for path, load in ((sidecar, lambda: load_table(store, manifest, 1)), (whole, lambda: load_manifest(store))):
        raw = path.read_bytes()
        for damaged in (b"", raw[:-1], raw[:30], raw[:-1] + b"x"):
            path.unlink()
            path.write_bytes(damaged)
            with pytest.raises(IndexFormatError) as caught:
                load()
            assert caught.value.shard == str(path)
            assert caught.value.hint
        path.write_bytes(raw)
    sidecar.unlink()
    with pytest.raises(ObjectNotFound):
        load_table(store, manifest, 1)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (tars.tar(tars.numbered(4)), "promises 3 samples, the sidecar has 4"),
        (GOOD + bytes(512), f"promises a shard of {len(GOOD)} bytes, the sidecar was made of {len(GOOD) + 512}"),
        (GOOD.replace(b"text 1", b"TEXT 1"), "digest"),
    ],
)
def test_sidecar_and_manifest_must_agree(folder: Path, other: bytes, told: str) -> None:
    """A sidecar of another version of the shard is refused with what was promised and what was found."""
    index(folder)
    manifest = load_manifest(open_store(folder))
    (folder / "b.tar").write_bytes(other)
    index(folder)
    with pytest.raises(IndexMismatch, match=told) as caught:
        load_table(open_store(folder), manifest, 1)
    assert caught.value.shard == str(folder / "b.tar.ssx")


def test_maps_end_with_their_arrays(folder: Path) -> None:
    """An index that is no longer used leaves no file mapped."""
    index(folder)
    manifest = load_manifest(open_store(folder))
    table = load_table(open_store(folder), manifest, 1)
    assert f"{folder}/b.tar.ssx" in Path("/proc/self/maps").read_text()
    del manifest, table
    assert str(folder) not in Path("/proc/self/maps").read_text()


def test_s3(s3: Any, folder: Path) -> None:
    """Shards in S3 are indexed there by several processes with credentials that were given as arguments."""
    url = s3.bucket() + "/set"
    store = open_store(url, s3.options)
    for name in ("a.tgz", "b.tar", "deep/c.tar"):
        store.write(name, (folder / name).read_bytes())
    report = index_shards(url, workers=2, storage_options=s3.options)
    assert (report.shards, report.samples) == (3, 6)
    assert read_all(url, options=s3.options) == EXPECTED
    store.write("b.tar", (folder / "b.tar").read_bytes()[:1500])
    with pytest.raises(TruncatedShard) as caught:
        index_shards(url, workers=2, storage_options=s3.options)
    assert (caught.value.shard, caught.value.offset) == (f"{url}/b.tar", 1024)
