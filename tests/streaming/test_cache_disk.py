"""The disk tier of the cache, in one process."""

from __future__ import annotations

import gc
import json
import mmap
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from filling import LEDGER, MARKER, entries, fill, limit_for, weigh

from shardwriter.errors import StoreError
from streaming.cache.disk import DiskTier, NotWaited
from streaming.cache.sealed import FOOTER_BYTES, unseal

KB = b"k" * 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the cache is; not there yet."""
    return tmp_path / "deep" / "cache"


@pytest.fixture
def tier(folder: Path) -> Iterator[DiskTier]:
    with DiskTier(folder) as opened:
        yield opened


def used(tier: DiskTier) -> int:
    """What the ledger says."""
    assert tier._opened is not None
    return tier._opened.budget.used()


def test_an_entry_is_made_once_and_read_by_map(tier: DiskTier, folder: Path) -> None:
    """What fill gives, and get from then on, is the mapped file, which holds data and footer."""
    calls = []

    def make() -> bytes:
        calls.append(1)
        return KB

    assert tier.get("g/a", 1000) is None
    for expected in (True, False):
        data, made = tier.fill("g/a", 1000, make)
        assert (made, data == KB, isinstance(data.obj, mmap.mmap), data.readonly) == (expected, True, True, True)
    assert tier.get("g/a") == tier.get("g/a", 1000) == KB
    assert len(calls) == 1
    assert unseal((folder / "g" / "a.chunk").read_bytes(), size=1000, verify=True) == KB
    counted = {name: n for name, n in tier.counters().items() if n}
    assert counted == {
        "misses": 1, "misses_bytes": 1000, "filled": 1, "filled_bytes": 1000, "joined": 1, "joined_bytes": 1000,
        "hits": 2, "hits_bytes": 2000,
    }  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, 100_001])
def test_any_size_and_any_buffer(tier: DiskTier, size: int) -> None:
    """Nothing, one byte, odd numbers; bytes, bytearrays and views of other items than bytes."""
    data = os.urandom(size)
    made = [data, bytearray(data), memoryview(data)]
    made += [memoryview(data).cast("I")] if size % 4 == 0 else []
    for i, buffer in enumerate(made):
        assert tier.fill(f"g/{i}", size, lambda buffer=buffer: buffer) == (data, True)
        assert tier.get(f"g/{i}", size) == data


@pytest.mark.parametrize("name", ["a", "a/", "/a", "a/b/c", "../b", "a/../b", ".a/b", "A/b", "a/b c", "a/é", "x" * 81 + "/b", "shardstream-cache.x/b", "a\n/b", "a/b\n"])  # fmt: skip # noqa: E501
def test_names_stay_in_the_folder(tier: DiskTier, name: str) -> None:
    """Names of other forms are refused; every name of the form is taken, whatever the cache's own files are called."""
    with pytest.raises(ValueError, match="is no entry"):
        tier.get(name)
    with pytest.raises(ValueError, match="is no entry"):
        tier.fill(name, 1, lambda: b"1")
    for entry in ("..", ".use", "a.fill", "a.chunk", "a", "-", "9" * 80):
        assert fill(tier, f"3c.6-e/{entry}", entry.encode())
    for entry in ("..", ".use", "a.fill", "a.chunk", "a", "-", "9" * 80):
        assert tier.get(f"3c.6-e/{entry}") == entry.encode()


def test_what_make_raises_comes_through(tier: DiskTier, folder: Path) -> None:
    """The same error, with nothing left behind and the entry free for the next; a wrong length is an error too."""
    error = StoreError("gone")

    def fail() -> bytes:
        raise error

    before = used(tier)
    with pytest.raises(StoreError) as caught:
        tier.fill("g/a", 1000, fail)
    assert caught.value is error
    with pytest.raises(ValueError, match="g/a was made with 1000 bytes in place of 999"):
        tier.fill("g/a", 999, lambda: KB)
    assert sorted(os.listdir(folder / "g")) == [".use"]
    assert used(tier) == before == weigh(folder)
    assert fill(tier, "g/a")


def test_others_wait_for_the_one_that_makes_it(tier: DiskTier, folder: Path) -> None:
    """Threads of this process and another opened tier get what the first makes; they give up when nobody wants it."""
    begun, go_on = threading.Event(), threading.Event()
    found: list[tuple[bytes, bool]] = []

    def make() -> bytes:
        begun.set()
        assert go_on.wait(30)
        return KB

    def read(by: DiskTier) -> None:
        data, made = by.fill("g/a", 1000, make)
        found.append((bytes(data), made))

    with DiskTier(folder) as other:
        threads = [threading.Thread(target=read, args=(by,)) for by in (tier, tier, other, other)]
        for thread in threads:
            thread.start()
        assert begun.wait(30)
        with pytest.raises(NotWaited):
            other.fill("g/a", 1000, make, wanted=lambda: False)
        go_on.set()
        for thread in threads:
            thread.join()
        assert sorted(made for _, made in found) == [False, False, False, True]
        assert {data for data, _ in found} == {KB}
        assert tier.counters()["joined"] + other.counters()["joined"] == 3


def test_the_next_makes_it_when_the_first_fails(tier: DiskTier) -> None:
    """A reader that waited makes the entry itself."""
    begun = threading.Event()
    waits = threading.Event()

    def fail() -> bytes:
        begun.set()
        assert waits.wait(30)
        raise StoreError("gone")

    def first() -> None:
        with pytest.raises(StoreError, match="gone"):
            tier.fill("g/a", 1000, fail)

    def wanted() -> bool:
        waits.set()
        return True

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(30)
    assert tier.fill("g/a", 1000, lambda: KB, wanted=wanted) == (KB, True)
    thread.join()
    assert tier.get("g/a", 1000) == KB


def test_the_limit_holds_and_nothing_is_thrown_out_for_more(folder: Path) -> None:
    """As many entries as fit are stored; later ones are made for their reader alone, and the first ones stay."""
    with DiskTier(folder, limit_for(3, 1000)) as tier:
        assert [fill(tier, f"g/{i}") for i in range(6)] == [True] * 3 + [False] * 3
        assert weigh(folder) == used(tier) == tier.limit
        assert entries(folder) == {"0", "1", "2"}
        counted = tier.counters()
        assert (counted["filled"], counted["refused"], counted["refused_bytes"]) == (3, 3, 3000)
        assert (counted["failed"], counted["evicted"]) == (0, 0)
    with DiskTier(folder, limit_for(3, 1000) - 1) as smaller:
        assert not fill(smaller, "g/3")
        assert entries(folder) == {"0", "1", "2"}


def test_a_limit_below_one_entry_is_said_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every entry is made for its reader; smaller ones are stored."""
    with DiskTier(folder, 900) as tier:
        assert not any(fill(tier, f"g/{i}") for i in range(3))
        assert fill(tier, "g/small", b"1")
    assert [record.message for record in caplog.records] == [
        f"cache folder {folder}: the limit of 900 bytes is less than one entry of 1024; "
        "reading goes on without, and the folder is tried again"
    ]


def test_groups_that_nobody_uses_make_room_the_oldest_first(folder: Path) -> None:
    """By last use, whenever they were filled; no more entries than needed, and an emptied group goes altogether."""
    with DiskTier(folder, limit_for(6, 1000)) as tier:
        for i in range(6):
            assert fill(tier, f"{'abc'[i % 3]}/{i}")
    for age, group in enumerate("bca"):
        os.utime(folder / group / ".use", (time.time() - 1000 + age,) * 2)
    with DiskTier(folder, limit_for(6, 1000)) as tier:
        left = []
        for i in range(4):
            assert fill(tier, f"new/{i}")
            left.append([len(entries(folder, group)) for group in "bca"])
            assert weigh(folder) == used(tier)
        assert left == [[1, 2, 2], [0, 2, 2], [0, 1, 2], [0, 0, 2]]
        assert sorted(path.name for path in folder.iterdir()) == ["a", "new", MARKER, LEDGER]
        assert tier.counters()["evicted"] == 4
        assert tier.counters()["evicted_bytes"] == 4 * (1000 + FOOTER_BYTES)


def test_a_group_in_use_is_never_evicted(folder: Path) -> None:
    """Not by another tier, not the own one, however old; once it is closed it makes room."""
    limit = limit_for(4, 1000)
    with DiskTier(folder, limit) as other:
        assert all(fill(other, f"a/{i}") for i in range(3))
        os.utime(folder / "a" / ".use", (1, 1))
        with DiskTier(folder, limit) as tier:
            assert [fill(tier, f"b/{i}") for i in range(3)] == [True, False, False]
            assert len(entries(folder, "a")) == 3
    with DiskTier(folder, limit) as tier:
        tier.use("b")
        assert [fill(tier, f"b/{i}") for i in range(5)] == [True] * 4 + [False]


def test_using_a_group_keeps_it_before_anything_is_read(folder: Path) -> None:
    """`use` alone holds the lock, writes the label once, and the time."""
    limit = limit_for(3, 1000)
    with DiskTier(folder, limit) as tier:
        assert all(fill(tier, f"a/{i}") for i in range(3))
    os.utime(folder / "a" / ".use", (1, 1))
    with DiskTier(folder, limit) as user, DiskTier(folder, limit) as tier:
        user.use("a")
        assert (folder / "a" / ".use").stat().st_mtime > 1
        assert not fill(tier, "b/0")
        assert entries(folder, "a") == {"0", "1", "2"}


def test_labels_name_the_dataset_without_its_password(folder: Path) -> None:
    """The first one stays; without room for it there is none, and the limit holds."""
    with DiskTier(folder) as tier:
        tier.use("a", "https://me:secret@host/set?token=secret")
        tier.use("a", "another")
        assert (folder / "a" / ".use").read_text() == "https://host/set\n"
        assert used(tier) == weigh(folder)
    with DiskTier(folder, weigh(folder)) as tier:
        tier.use("b", "s3://bucket/b")
        assert (folder / "b" / ".use").read_text() == ""


def test_entries_of_the_own_group_go_only_where_they_are_spare(folder: Path) -> None:
    """As many as needed; those that are mapped stay readable."""
    with DiskTier(folder, limit_for(4, 1000)) as tier:
        for i in range(4):
            assert fill(tier, f"g/{i}", bytes([i]) * 1000)
        held = [tier.get(f"g/{i}") for i in range(4)]
        asked: list[str] = []

        def spare(entry: str) -> bool:
            asked.append(entry)
            return entry in ("1", "3")

        assert [fill(tier, f"g/{i}", spare=spare) for i in range(4, 8)] == [True, True, False, False]
        assert entries(folder) == {"0", "2", "4", "5"}
        assert set(asked) <= {str(i) for i in range(8)}
        assert held == [bytes([i]) * 1000 for i in range(4)]
        assert weigh(folder) == used(tier)


def test_groups_that_nobody_uses_go_before_what_is_spare(folder: Path) -> None:
    """Spare entries stay as long as others can go."""
    limit = limit_for(4, 1000)
    with DiskTier(folder, limit) as tier:
        assert fill(tier, "old/0")
    with DiskTier(folder, limit) as tier:
        assert all(fill(tier, f"g/{i}", spare=lambda _: True) for i in range(4))
        assert entries(folder, "old") == set()
        assert entries(folder) == {"0", "1", "2", "3"}


def test_what_is_spare_is_asked_again_when_that_changes(folder: Path) -> None:
    """A search that found nothing is not repeated at once for the same question, but for another it is."""
    now = [0.0]

    def slow(_: str) -> bool:
        now[0] += 1.0
        return False

    with DiskTier(folder, limit_for(2, 1000), clock=lambda: now[0]) as tier:
        assert all(fill(tier, f"g/{i}") for i in range(2))
        assert not any(fill(tier, f"g/{i}", spare=slow) for i in range(2, 9))
        assert now[0] == 2.0
        now[0] += 101.0
        assert not fill(tier, "g/2", spare=slow)
        assert now[0] == 105.0
        assert fill(tier, "g/2", spare=lambda entry: entry == "0")


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    """Nothing is made or removed in it; an empty one is taken, as is the root of a new file system."""
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(StoreError, match=rf"holds 'thesis.txt' and is no cache.*new folder, such as {tmp_path}/cache"):
        DiskTier(tmp_path, 1)
    assert os.listdir(tmp_path) == ["thesis.txt"]
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)
    for taken in (tmp_path / "disk", tmp_path / "disk"):
        with DiskTier(taken) as tier:
            assert fill(tier, "g/a")
    assert (tmp_path / "disk" / "lost+found").is_dir()
    assert json.loads((tmp_path / "disk" / MARKER).read_text()) == {"shardstream cache": 1}


@pytest.mark.parametrize("mark", [b'{"shardstream cache": 2}\n', b"{", bytes(25), b"x" * 9999])
def test_a_cache_of_another_version_is_refused(folder: Path, mark: bytes) -> None:
    """Or one whose marker is damaged; an empty marker is that of a process that was killed while it made it."""
    folder.mkdir(parents=True)
    (folder / MARKER).write_bytes(mark)
    with pytest.raises(StoreError, match=r"another version, or its .* is damaged.*: delete the folder"):
        DiskTier(folder)
    (folder / MARKER).write_bytes(b"")
    with DiskTier(folder) as tier:
        assert fill(tier, "g/a")
    assert (folder / MARKER).read_bytes() == b'{"shardstream cache": 1}\n'


def test_closing_leaves_no_descriptor(folder: Path) -> None:
    """Nothing is open after views are let go, and a closed tier finds and stores nothing; its views stay."""
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))
    tier = DiskTier(folder, limit_for(2, 1000))
    view, _ = tier.fill("g/a", 1000, lambda: KB)
    for i in range(5):
        fill(tier, f"h/{i}")
    tier.close()
    tier.close()
    assert tier.get("g/a") is None
    assert tier.fill("g/b", 1000, lambda: KB) == (KB, True)
    tier.use("k")
    assert view == KB
    del view
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert entries(folder) == {"a"}
    assert not (folder / "k").exists()


def test_closing_while_an_entry_is_made(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its reader gets it; no file is left that is not whole, and there is no warning."""
    tier = DiskTier(folder)

    def make() -> bytes:
        tier.close()
        return KB

    assert tier.fill("g/a", 1000, make) == (KB, True)
    assert os.listdir(folder / "g") == [".use"]
    assert caplog.records == []


def test_a_folder_by_a_relative_path_or_a_link(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both are followed once, when it is opened."""
    folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    with DiskTier("link") as tier:
        monkeypatch.chdir("/")
        assert fill(tier, "g/a")
    assert entries(folder) == {"a"}


def test_files_have_the_usual_mode(folder: Path) -> None:
    """Read and write for all that the umask lets."""
    before = os.umask(0o007)
    try:
        with DiskTier(folder) as tier:
            fill(tier, "g/a")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert modes == {"g": 0o770, "a.chunk": 0o660, ".use": 0o660, MARKER: 0o660, LEDGER: 0o660}
