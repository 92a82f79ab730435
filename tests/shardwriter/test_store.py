"""Stores hold bytes by name, whatever storage is behind them: the same checks for folders, S3 and fsspec."""

from __future__ import annotations

import copy
import os
import secrets
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwriter.errors import ObjectChanged, ObjectNotFound, StoreError
from shardwriter.store import Store, contents, join_url, open_store
from shardwriter.store.fsspec_client import s3fs_client
from shardwriter.store.options import Options
from shardwriter.store.remote import Client, RemoteStore

AWKWARD = [
    "plain.tar",
    "with blank.tar",
    "50% #1 {a,b} [c] 'q' \"d\" $HOME `x` ?&=+;!.tar",
    "%41.tar",
    "déjà/日本/~x.tar",
    "a*b.tar",
    "..hidden/...tar",
    "-rf.tar",
]


@dataclass
class Through:
    """Leads to S3 through s3fs."""

    root: str
    options: Options

    def connect(self) -> Client:
        """A client of s3fs."""
        return s3fs_client(self.root, self.options)

    def without_secrets(self) -> Through:
        """Not for pickling."""
        raise NotImplementedError

    def secrets(self) -> tuple[str, ...]:
        """What must not be shown."""
        return self.options.secrets()


@pytest.fixture(params=["local", "file", "s3", "memory", "fsspec", "s3fs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind, below a root with a name that would be decoded or expanded by mistake."""
    if request.param == "local":
        return open_store(f"{tmp_path}/50%20 #1 {{a}}")
    if request.param == "file":
        return open_store(f"file://{tmp_path}/a%20b")
    if request.param == "memory":
        return open_store(f"memory://test-{secrets.token_hex(4)}/deep root")
    if request.param == "fsspec":  # a filesystem that renames
        return open_store(f"local://{tmp_path}/50%20 #1 {{a}}")
    server = request.getfixturevalue("s3")
    if request.param == "s3fs":  # the way that forked children go
        url = server.bucket("s3fs") + "/50%20 #1 {a}"
        return RemoteStore(url, Through(url.removeprefix("s3://"), Options.parse(server.options)))
    return open_store(server.bucket("store") + "/50%20 #1 {a}/", server.options)


def names(store: Store, prefix: str = "") -> list[str]:
    return [info.name for info in store.list(prefix)]


def test_what_is_written_is_read_back(store: Store) -> None:
    """Bytes come back whole, by range and as a mapping, and info tells their number."""
    data = secrets.token_bytes(100_000)
    store.write("deep/er/a.tar", data)
    assert store.read("deep/er/a.tar") == data
    assert store.info("deep/er/a.tar").size == len(data)
    assert store.info("deep/er/a.tar").name == "deep/er/a.tar"
    assert store.read_range("deep/er/a.tar", 99_990, 100_000) == data[99_990:]
    with contents(store, "deep/er/a.tar") as view:
        assert view.readonly
        assert bytes(view) == data


def test_views_are_ranges_without_a_copy(store: Store) -> None:
    """A view is read-only and holds the bytes of the range; its errors are those of read_range."""
    store.write("a", b"0123456789")
    for start, end in ((0, 10), (3, 5), (4, 4)):
        view = store.read_view("a", start, end, version=store.info("a").version)
        assert view.readonly
        assert (view.format, view.ndim, view.contiguous) == ("B", 1, True)
        assert view == b"0123456789"[start:end]
    with pytest.raises(StoreError, match="a"):
        store.read_view("a", 5, 11)
    with pytest.raises(ObjectNotFound):
        store.read_view("b", 0, 1)


def test_empty_objects(store: Store) -> None:
    """An object of no bytes exists, has size 0 and reads as nothing."""
    store.write("empty", b"")
    assert store.info("empty").size == 0
    assert store.read("empty") == b""
    assert store.read_range("empty", 0, 0) == b""
    with contents(store, "empty") as view:
        assert len(view) == 0


def test_ranges_at_the_edges(store: Store) -> None:
    """Ranges are half-open and exact; one that reaches past the end is an error that says how long the object is."""
    store.write("a", b"0123456789")
    cases = [(0, 10), (0, 1), (9, 10), (3, 3), (10, 10), (2, 7)]
    assert [store.read_range("a", s, e) for s, e in cases] == [b"0123456789"[s:e] for s, e in cases]
    for start, end in [(0, 11), (9, 11), (10, 11), (50, 60)]:
        with pytest.raises(StoreError) as caught:
            store.read_range("a", start, end)
        assert caught.value.offset == start
        assert "a" in str(caught.value.shard)
        assert caught.value.hint
        assert not isinstance(caught.value, ObjectNotFound)
    for start, end in [(-1, 2), (5, 3)]:
        with pytest.raises(StoreError, match="not a byte range"):
            store.read_range("a", start, end)


def read_contents(store: Store, name: str) -> None:
    with contents(store, name):
        pass


@pytest.mark.parametrize(
    "read",
    [
        lambda store, name: store.info(name),
        lambda store, name: store.read(name),
        lambda store, name: store.read_range(name, 0, 1),
        read_contents,
    ],
    ids=["info", "read", "range", "contents"],
)
def test_absent_objects(store: Store, read: Callable[[Store, str], object]) -> None:
    """Reading what is not there raises ObjectNotFound, with the full URL; so does reading a folder."""
    store.write("folder/a", b"1")
    for name in ("nothing", "folder", "folder/a/b", "no/where"):
        with pytest.raises(ObjectNotFound) as caught:
            read(store, name)
        assert caught.value.shard == join_url(store.url, name)


def test_delete(store: Store) -> None:
    """A deleted object is gone, and deleting what is not there is no error."""
    store.write("a", b"1")
    store.delete("a")
    store.delete("a")
    store.delete("no/where")
    with pytest.raises(ObjectNotFound):
        store.info("a")


def test_listing_is_sorted_recursive_and_filtered(store: Store) -> None:
    """Listings come sorted by name, at any depth, with sizes; a prefix need not end at a slash."""
    every = ["a-b/2", "a.tar", "a/1", "a/b/3", "aa", "b", "x-000000.tar", "x-000001.tar"]
    for name in reversed(every):
        store.write(name, name.encode())
    assert names(store) == sorted(every)
    assert {info.name: info.size for info in store.list()} == {name: len(name) for name in every}
    for prefix in ("a", "a/", "a/b", "x-00000", "a-", "none", "none/"):
        assert names(store, prefix) == [name for name in sorted(every) if name.startswith(prefix)]


def test_listing_of_a_missing_folder_is_empty(store: Store) -> None:
    """A store whose folder does not exist lists as empty."""
    assert names(store) == []
    assert names(store, "sub/") == []


def test_listings_agree_with_info(store: Store) -> None:
    """Each entry of a listing equals what info says of it."""
    for name in ("a", "deep/b"):
        store.write(name, name.encode())
    assert [store.info(info.name) for info in store.list()] == list(store.list())


def test_awkward_names(store: Store) -> None:
    """Characters that shells, URLs and patterns would act on are just characters."""
    for name in AWKWARD:
        store.write(name, name.encode())
    assert names(store) == sorted(AWKWARD)
    for number, name in enumerate(sorted(AWKWARD)):
        assert store.read(name) == name.encode()
        assert store.info(name).name == name
        store.delete(name)
        assert names(store) == sorted(AWKWARD)[number + 1 :]


def test_names_that_leave_the_root_are_refused(store: Store) -> None:
    """Names that would leave the store's root, or mean different things to different storages, are refused."""
    for name in ("", "/a", "a/", "a//b", "../a", "a/../b", ".", "a\0b"):
        for action in (store.info, store.read, store.delete, lambda name: store.write(name, b"1")):
            with pytest.raises(StoreError, match="not the name of an object"):
                action(name)


def test_writing_again_replaces(store: Store) -> None:
    """The second write under a name replaces the first whole."""
    store.write("a", b"0123456789")
    store.write("a", b"xyz")
    assert store.read("a") == b"xyz"
    assert names(store) == ["a"]


@pytest.mark.parametrize("size", [0, 10, 20 << 20])
def test_finished_files_are_handed_over(store: Store, tmp_path: Path, size: int) -> None:
    """write_file stores a file of any size under its name, and the file itself is gone."""
    source = tmp_path / "finished"
    data = secrets.token_bytes(size)
    source.write_bytes(data)
    store.write_file("deep/a.tar", source)
    assert not source.exists()
    with contents(store, "deep/a.tar") as view:
        assert bytes(view) == data
    assert names(store) == ["deep/a.tar"]


def test_a_missing_source_file_publishes_nothing(store: Store, tmp_path: Path) -> None:
    """write_file of a file that is not there is an error, and nothing appears."""
    with pytest.raises(StoreError):
        store.write_file("a.tar", tmp_path / "missing")
    assert names(store) == []


def test_views_of_contents_may_outlive_the_block(store: Store) -> None:
    """A view that is kept too long does not break the end of the block, and still shows the bytes."""
    store.write("a", b"0123456789")
    with contents(store, "a") as view:
        kept = view[2:5]
    assert bytes(kept) == b"234"


def test_writable_where_writing_works(store: Store) -> None:
    """A store that takes a write says that it is writable."""
    assert store.writable()
    store.write("a", b"1")


def test_replaced_objects_are_noticed(s3: Any) -> None:
    """A range asked for by version raises ObjectChanged once the object is replaced, even by one of the same size."""
    store = open_store(s3.bucket(), s3.options)
    store.write("a", b"0123456789")
    version = store.info("a").version
    assert version
    assert store.read_range("a", 1, 3, version=version) == b"12"
    store.write("a", b"9876543210")
    with pytest.raises(ObjectChanged) as caught:
        store.read_range("a", 1, 3, version=version)
    assert caught.value.shard == join_url(store.url, "a")
    assert store.read_range("a", 1, 3) == b"87"


def test_many_objects_are_listed_whole(s3: Any) -> None:
    """Listings longer than one page of the S3 protocol (1000) are complete."""
    store = open_store(s3.bucket("many"), s3.options)
    every = [f"x-{i:06d}.tar" for i in range(1005)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.write(name, b""), every))
    assert names(store) == every


def test_other_clients_see_the_same_object(s3: Any) -> None:
    """What is stored under an awkward name has exactly that key for another S3 client."""
    url = s3.bucket()
    open_store(url + "/a b", s3.options).write("50% #1+.tar", b"data")
    client = s3.client()
    keys = [each["Key"] for each in client.list_objects_v2(Bucket=url.removeprefix("s3://"))["Contents"]]
    client.close()
    assert keys == ["a b/50% #1+.tar"]


def test_one_store_serves_many_threads(store: Store) -> None:
    """Reads from many threads at once, the first of which makes the client, all get their own bytes."""
    data = secrets.token_bytes(64_000)
    store.write("a", data)
    fresh = copy.copy(store)
    with ThreadPoolExecutor(16) as pool:
        parts = pool.map(lambda i: fresh.read_range("a", i * 1000, i * 1000 + 1000), range(64))
        assert b"".join(parts) == data


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=64), st.integers(0, 70), st.integers(0, 70))
def test_local_ranges_are_slices(tmp_path: Path, data: bytes, start: int, length: int) -> None:
    """A range of a file is the slice of its bytes, or an error exactly where the slice would be short."""
    store = open_store(tmp_path)
    store.write("a", data)
    if start + length <= len(data) or length == 0:
        assert store.read_range("a", start, start + length) == data[start : start + length]
    else:
        with pytest.raises(StoreError, match=f"has {len(data)} bytes"):
            store.read_range("a", start, start + length)


def test_local_listing_follows_links_once(tmp_path: Path) -> None:
    """Linked shards and folders are listed; a link back up ends instead of going round."""
    store = open_store(tmp_path / "set")
    store.write("real/a.tar", b"1")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.tar").write_bytes(b"22")
    (tmp_path / "set" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set" / "c.tar").symlink_to(tmp_path / "elsewhere" / "b.tar")
    (tmp_path / "set" / "real" / "up").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "broken").symlink_to(tmp_path / "nothing")
    assert [(i.name, i.size) for i in store.list()] == [("c.tar", 2), ("linked/b.tar", 2), ("real/a.tar", 1)]


def test_local_special_files_are_refused(tmp_path: Path) -> None:
    """A named pipe is an error at once, not a read that waits for ever."""
    os.mkfifo(tmp_path / "pipe.tar")
    store = open_store(tmp_path)
    for read in (store.read, store.info, lambda name: store.read_range(name, 0, 1)):
        with pytest.raises(StoreError, match="not a regular file"):
            read("pipe.tar")
    assert names(store) == []


def test_local_files_get_ordinary_permissions(tmp_path: Path) -> None:
    """A shard that was written to a private temporary file can be read by whoever could read any new file."""
    fd, source = tempfile.mkstemp(dir=tmp_path)
    os.close(fd)
    store = open_store(tmp_path / "set")
    store.write_file("a.tar", Path(source))
    store.write("a.ssx", b"")
    umask = os.umask(0)
    os.umask(umask)
    assert [(tmp_path / "set" / n).stat().st_mode & 0o777 for n in ("a.tar", "a.ssx")] == [0o666 & ~umask] * 2


def test_local_file_from_another_file_system(tmp_path: Path) -> None:
    """A finished file on another file system is copied into place."""
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system")
    with tempfile.NamedTemporaryFile(dir=elsewhere, delete=False) as source:
        source.write(b"12345")
    store = open_store(tmp_path)
    store.write_file("a.tar", Path(source.name))
    assert store.read("a.tar") == b"12345"
    assert not Path(source.name).exists()
    assert names(store) == ["a.tar"]


def test_local_write_through_a_file_is_an_error(tmp_path: Path) -> None:
    """A name below a file, and a folder in place of the file, are errors that leave nothing behind."""
    store = open_store(tmp_path)
    store.write("a", b"1")
    store.write("folder/b", b"2")
    for name in ("a/b", "folder"):
        with pytest.raises(StoreError):
            store.write(name, b"3")
    assert not open_store(tmp_path / "a").writable()
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "b", "folder"]


def test_relative_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is a store, as "." and as the empty path."""
    monkeypatch.chdir(tmp_path)
    makers: list[Callable[[], Store]] = [lambda: open_store("."), lambda: open_store(""), lambda: open_store(Path())]
    for number, make in enumerate(makers):
        make().write(f"{number}", b"1")
        assert make().url == "."
    assert names(open_store(tmp_path)) == ["0", "1", "2"]
