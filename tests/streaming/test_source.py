"""What the user named: folders, shards, patterns, lists, URLs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tars
from reading import flat

from shardwriter.errors import ObjectNotFound, StoreError
from streaming import DatasetNotFound, StreamingDataset
from streaming.source import Listing, list_shards, shards_below


def _shards(folder: Path, *names: str) -> Path:
    """Shards of one sample each, numbered in the order of `names`."""
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(tars.tar(tars.numbered(1, i)))
    return folder


def _read(source: object) -> list[int]:
    return flat(StreamingDataset(source, threads=0))  # type: ignore[arg-type]


def test_a_folder_is_whole(tmp_path: Path) -> None:
    """A folder stands for all shards below it, whether it is given as text or as a path."""
    for source in (tmp_path, str(tmp_path), f"{tmp_path}/"):
        [listing] = list_shards(source)
        assert listing.whole
        assert listing.names == ()
        assert os.path.samefile(listing.root, tmp_path)


def test_a_single_shard(tmp_path: Path) -> None:
    """A file is one shard of its folder."""
    _shards(tmp_path, "a.tar")
    assert list_shards(tmp_path / "a.tar") == [Listing(str(tmp_path), ("a.tar",), whole=False)]


def test_a_relative_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name without a folder is looked for in the working folder."""
    _shards(tmp_path, "a.tar", "b.tar")
    monkeypatch.chdir(tmp_path)
    assert list_shards("{a,b}.tar") == [Listing(".", ("a.tar", "b.tar"), whole=False)]
    assert _read("*.tar") == [0, 1]


def test_braces_count_in_their_order() -> None:
    """Braces give ranges with zeros, lists and both together, in the order of bash, without a look at the storage."""
    [listing] = list_shards("s3://b/x-{008..010}.tar")
    assert listing == Listing("s3://b", ("x-008.tar", "x-009.tar", "x-010.tar"), whole=False)
    [listing] = list_shards("s3://b/{z,a}-{2..1}.tar")
    assert listing.names == ("z-2.tar", "z-1.tar", "a-2.tar", "a-1.tar")


def test_braces_over_folders() -> None:
    """Braces in the folder part give a listing for each folder, also of whole folders."""
    assert [x.root for x in list_shards("s3://b/{0..1}/x.tar")] == ["s3://b/0", "s3://b/1"]
    assert list_shards("s3://b/{en,de}") == [Listing("s3://b/en", (), whole=True), Listing("s3://b/de", (), whole=True)]


def test_globs_match_within_one_part(tmp_path: Path) -> None:
    """*, ? and [ ] match shards only, and no slash; the order is that of the names."""
    _shards(tmp_path, "b-2.tar", "b-1.tar", "b-10.tar", "b.txt", "sub/b-3.tar", "b-4.tgz", "b-5.tar.ssx")
    assert list_shards(f"{tmp_path}/b-*")[0].names == ("b-1.tar", "b-10.tar", "b-2.tar", "b-4.tgz")
    assert list_shards(f"{tmp_path}/b-?.tar")[0].names == ("b-1.tar", "b-2.tar")
    assert list_shards(f"{tmp_path}/b-[!2].tar")[0].names == ("b-1.tar",)
    assert list_shards(f"{tmp_path}/*/b-*.tar") == [Listing(str(tmp_path), ("sub/b-3.tar",), whole=False)]


def test_globs_and_braces_together(tmp_path: Path) -> None:
    """Braces are expanded first, then each result is matched."""
    _shards(tmp_path, "a/1.tar", "a/2.tar", "b/1.tar")
    assert _read(f"{tmp_path}/{{b,a}}/*.tar") == [2, 0, 1]


def test_lists_keep_their_order(tmp_path: Path) -> None:
    """A list is read in its order, neighbours of one folder together."""
    _shards(tmp_path, "a/1.tar", "a/2.tar", "b/1.tar")
    given = [tmp_path / "a/2.tar", f"{tmp_path}/a/1.tar", tmp_path / "b"]
    assert [(x.names, x.whole) for x in list_shards(given)] == [(("2.tar", "1.tar"), False), ((), True)]
    assert _read(given) == [1, 0, 2]


def test_same_base_name_in_two_folders(tmp_path: Path) -> None:
    """Shards of the same name in two folders stay apart, un-indexed and on the second opening."""
    _shards(tmp_path, "a/part-0.tar", "b/part-0.tar")
    for _ in range(2):
        assert _read(f"{tmp_path}/{{a,b}}/part-0.tar") == [0, 1]
        assert _read([f"{tmp_path}/b/part-0.tar", f"{tmp_path}/a/part-0.tar"]) == [1, 0]


@pytest.mark.parametrize(
    "name",
    [
        "with blank.tar", "#1.tar", "50% off.tar", "%20.tar", "photos {a,b}.tar", "n{0..2}.tar", "a*b.tar", "q?.tar",
        "[ab].tar", "it's \"quoted\".tar", "$(touch MARK).tar", "`touch MARK`.tar", ";touch MARK;.tar",
        "|touch MARK.tar", "{.tar", "ümläut.tar", "s3:x.tar", "a;b.tar", "::x.tar",
    ],
)  # fmt: skip
def test_names_that_look_like_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A file that exists under the name as it is written is that file; nothing is run."""
    monkeypatch.chdir(tmp_path)
    _shards(tmp_path / name.removesuffix(".tar"), name)
    folder = tmp_path / name.removesuffix(".tar")
    assert _read(f"{folder}/{name}") == _read(folder / name) == _read([f"{folder}/{name}"]) == [0]
    assert _read(str(folder)) == [0]
    assert not list(tmp_path.rglob("MARK"))


@pytest.mark.parametrize("source", ["pipe:touch MARK", "pipe:cat a.tar", "pipe:touch MARK #{0..1}.tar"])
def test_pipes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """A pipe: source is an error that says so, and its command does not run."""
    monkeypatch.chdir(tmp_path)
    for given in (source, [source]):
        with pytest.raises(StoreError, match="run a command and are not read"):
            StreamingDataset(given)
    assert not list(tmp_path.iterdir())


def test_patterns_that_match_nothing(tmp_path: Path) -> None:
    """A pattern without a match is an error that shows it, also where only one of several matches nothing."""
    _shards(tmp_path, "a.tar")
    for source in (f"{tmp_path}/b-*.tar", [f"{tmp_path}/a.tar", f"{tmp_path}/b-*.tar"], f"{tmp_path}/none/*.tar"):
        with pytest.raises(DatasetNotFound, match=r"b-\*|none"):
            list_shards(source)


def test_absent_shards_and_folders(tmp_path: Path) -> None:
    """A shard, a folder or a part of a brace range that is not there is an error that names it, never left out."""
    _shards(tmp_path, "x-0.tar", "x-2.tar")
    for source, name in ((f"{tmp_path}/x-{{0..2}}.tar", "x-1.tar"), (f"{tmp_path}/y.tar", "y.tar")):
        with pytest.raises(ObjectNotFound, match=name):
            StreamingDataset(source)
    with pytest.raises((DatasetNotFound, ObjectNotFound), match="absent"):
        StreamingDataset(f"{tmp_path}/absent")


def test_folders_without_shards(tmp_path: Path) -> None:
    """An empty folder, or one with other files or hidden shards only, is an error."""
    (tmp_path / "a.txt").write_text("x")
    _shards(tmp_path, ".hidden/a.tar", ".b.tar")
    with pytest.raises(DatasetNotFound, match="no shard"):
        shards_below(str(tmp_path))
    with pytest.raises(DatasetNotFound, match="no shard"):
        StreamingDataset(tmp_path)


def test_empty_lists() -> None:
    """A list without entries is an error."""
    with pytest.raises(DatasetNotFound, match="empty"):
        list_shards([])


def test_braces_that_do_not_close() -> None:
    """A brace that is never closed stands for itself, as in bash; where that leaves doubt it is an error."""
    assert list_shards("s3://b/{a,b.tar") == [Listing("s3://b", ("{a,b.tar",), whole=False)]
    with pytest.raises(DatasetNotFound, match="not balanced"):
        list_shards("s3://b/{a,b}{c.tar")


def test_object_stores(s3: object) -> None:
    """Folders, single shards, braces and globs of a bucket are read as those of a disk are."""
    from shardwriter.store import open_store

    server: object = s3
    url = server.bucket("sources")  # type: ignore[attr-defined]
    options = server.options  # type: ignore[attr-defined]
    store = open_store(url, options)
    for i, name in enumerate(("d/x-0.tar", "d/x-1.tar", "d/y #1 {a,b}.tar")):
        store.write(name, tars.tar(tars.numbered(1, i)))

    def read(source: str | list[str]) -> list[int]:
        return flat(StreamingDataset(source, threads=0, storage_options=options))

    assert read(f"{url}/d/x-{{0..1}}.tar") == [0, 1]
    assert read(f"{url}/d/x-*.tar") == [0, 1]
    assert read([f"{url}/d/x-1.tar", f"{url}/d/x-0.tar"]) == [1, 0]
    assert read(f"{url}/*/y*.tar") == [2]
    assert read(f"{url}/d") == [0, 1, 2]
    with pytest.raises(DatasetNotFound, match="z-"):
        read(f"{url}/d/z-*.tar")
