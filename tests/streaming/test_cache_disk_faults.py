"""The disk tier of the cache on disks that fail, and with files that are damaged or not its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from filling import LEDGER, entries, fill, limit_for, weigh
from torchrun import ROOT

from streaming.cache import entries as entries_module
from streaming.cache.disk import DiskTier
from streaming.cache.sealed import FOOTER_BYTES, seal

KB = b"k" * 1000


def python(program: str, *arguments: object, within: tuple[str, ...] = ()) -> str:
    """What a program prints and logs."""
    command = [*within, sys.executable, "-c", program, *map(str, arguments)]
    path = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def used(tier: DiskTier) -> int:
    """What the ledger says."""
    assert tier._opened is not None
    return tier._opened.budget.used()


FULL = """
import resource, sys
from pathlib import Path
from filling import entries, fill, weigh
from streaming.cache.disk import DiskTier

folder, most, now, n = Path(sys.argv[1]), int(sys.argv[2]), [0.0], 1
if most:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
tier = DiskTier(folder, clock=lambda: now[0])
assert fill(tier, "g/0", bytes(100_000))
while fill(tier, f"g/{n}", bytes(100_000 + 10_000 * n)):
    n += 1
assert n > 2
assert tier.counters()["failed"] == 1, tier.counters()
for now[0] in (0.0, 59.0):
    assert not fill(tier, "g/small", b"1"), "paused"
assert tier.counters()["failed"] == 3
assert tier.get("g/0") == bytes(100_000)
now[0] = 61.0
assert fill(tier, "g/small", b"1")
assert not fill(tier, "g/large", bytes(100_000 + 10_000 * n))
assert entries(folder) == {*map(str, range(n)), "small"}
assert not list(folder.rglob("*.fill"))
assert tier._opened.budget.used() == weigh(folder)
tier.close()
"""


def mounting(folder: Path) -> tuple[str, ...]:
    """A command that runs another one with a file system of 1 MB in a folder; nothing where that is not allowed."""
    for more in ((), ("--map-root-user",)):
        script = f'mount -t tmpfs -o size=1m none {folder} && exec "$@"'
        command = ("unshare", *more, "--mount", "sh", "-c", script, "sh")
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    return ()


@pytest.mark.parametrize("by", ["file system", "largest file"])
def test_a_disk_that_is_full(tmp_path: Path, by: str) -> None:
    """Readers get what they make, nothing is left of what did not fit, filling pauses for a minute, one warning.

    In a small file system of its own, and with a limit of how large files of the process may get, which is all that
    can be tried where nothing may be mounted.
    """
    within = mounting(tmp_path) if by == "file system" else ()
    printed = python(FULL, tmp_path / "cache", 0 if within else 150_000, within=within)
    assert ("No space left on device" if within else "File too large") in printed
    assert printed.count("cache folder") == 1


NOBODY = """
import os, sys
from filling import fill
from streaming.cache.disk import DiskTier

if os.getuid() == 0:                # who may write anywhere
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
with DiskTier(sys.argv[1]) as tier:
    print([fill(tier, f"g/{n}") for n in "abc"])
    print(bytes(tier.get("g/old") or b""))
    print(tier.counters()["hits"], tier.counters()["failed"])
"""


def test_a_folder_that_this_user_may_not_write() -> None:
    """Nothing is stored, one warning; what is in it is read nevertheless, and stays as it is."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "cache"
        with DiskTier(folder) as tier:
            assert fill(tier, "g/old", b"old")
        paths = [Path(name), folder, *folder.rglob("*")]
        try:
            for path in paths:
                path.chmod(0o555 if path.is_dir() else 0o444)
            before = {path: path.stat().st_mtime_ns for path in paths}
            printed = python(NOBODY, folder)
            assert "[False, False, False]\nb'old'\n1 3\n" in printed
            assert printed.count("cache folder") == 1
            assert {path: path.stat().st_mtime_ns for path in (Path(name), folder, *folder.rglob("*"))} == before
            printed = python(NOBODY, Path(name) / "new")
            assert "[False, False, False]\nb''\n0 3\n" in printed
            assert printed.count("cache folder") == printed.count("Permission denied") == 1
        finally:
            for path in paths:
                path.chmod(0o755)


def test_a_file_in_place_of_the_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is found or stored; it is tried again a minute later, and said once."""
    (tmp_path / "cache").write_text("mine")
    now = [5.0]
    with DiskTier(tmp_path / "cache", clock=lambda: now[0]) as tier:
        tier.use("g", "s3://bucket/g")
        assert not any(fill(tier, f"g/{i}") for i in range(3))
        now[0] = 66.0
        assert not fill(tier, "g/4")
        assert (tmp_path / "cache").read_text() == "mine"
        assert len(caplog.records) == 1
        (tmp_path / "cache").unlink()
        assert not fill(tier, "g/4")
        now[0] = 127.0
        assert fill(tier, "g/4")
        assert (tmp_path / "cache" / "g" / ".use").read_text() == "s3://bucket/g\n"
        assert tier.counters()["failed"] == 5


@pytest.mark.parametrize("instead", ["nothing", "foreign", "file"])
def test_a_folder_that_vanishes(tmp_path: Path, instead: str, caplog: pytest.LogCaptureFixture) -> None:
    """Removed or replaced while it is in use: reading goes on, and a minute later a new one is filled if it can be."""
    now = [5.0]
    folder = tmp_path / "cache"
    with DiskTier(folder, clock=lambda: now[0]) as tier:
        held = tier.fill("g/0", 1000, lambda: KB)[0]
        folder.rename(tmp_path / "away")
        if instead == "foreign":
            folder.mkdir()
            (folder / "thesis.txt").write_text("mine")
        elif instead == "file":
            folder.write_text("mine")
        assert not fill(tier, "g/1")
        assert held == KB
        now[0] = 66.0
        assert fill(tier, "g/1") == (instead == "nothing")
        assert len(caplog.records) == (1 if instead == "nothing" else 2)
        if instead == "foreign":
            assert os.listdir(folder) == ["thesis.txt"]
            assert "is no cache" in caplog.records[1].message


@pytest.mark.parametrize("what", ["folder", "link", "fifo"])
def test_other_things_under_the_name_of_an_entry(tmp_path: Path, what: str) -> None:
    """A folder, a link or a pipe is not followed, waited for or removed; reading goes on."""
    target = tmp_path / "target"
    target.write_bytes(b"mine" + seal(b"mine"))
    for name in ("a.chunk", "b.fill"):
        with DiskTier(tmp_path / "cache") as tier:
            fill(tier, "g/z")
            path = tmp_path / "cache" / "g" / name
            {"folder": path.mkdir, "link": lambda p=path: p.symlink_to(target), "fifo": lambda p=path: os.mkfifo(p)}[
                what
            ]()
            assert tier.get(f"g/{name[0]}", 4) is None
            assert tier.fill(f"g/{name[0]}", 4, lambda: b"data") == (b"data", True)
            assert target.read_bytes() == b"mine" + seal(b"mine")
            assert tier.get("g/z") is not None


@pytest.mark.parametrize("what", ["link", "file"])
def test_other_things_in_place_of_a_group(tmp_path: Path, what: str) -> None:
    """A link to a folder elsewhere is not followed; nothing is written or removed there."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".use").write_text("")
    (elsewhere / "a.chunk").write_bytes(b"mine")
    with DiskTier(tmp_path / "cache", limit_for(1, 1000)) as tier:
        if what == "link":
            (tmp_path / "cache" / "g").symlink_to(elsewhere)
        else:
            (tmp_path / "cache" / "g").write_text("mine")
        assert not fill(tier, "g/a")
        tier.use("g")
        assert tier.get("g/a") is None
    with DiskTier(tmp_path / "cache", limit_for(1, 1000)) as tier:
        assert [fill(tier, f"h/{i}") for i in range(2)] == [True, False]
    assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == {".use": b"", "a.chunk": b"mine"}


def test_foreign_files_survive_everything(tmp_path: Path) -> None:
    """Eviction, counting and filling leave alone what the cache did not make: in its folder, in groups, in others."""
    folder = tmp_path / "cache"
    limit = limit_for(3, 1000)
    with DiskTier(folder, limit) as tier:
        assert all(fill(tier, f"old/{i}") for i in range(3))
    mine = ["README", "notes.txt", "photos/cat.chunk", "photos/cat.fill", "old/notes.txt", "old/x.CHUNK", "old/.hidden",
            "old/deep/a.chunk", "old/.shardstream-1.tmp", "new/thesis", "x.chunk", "y.fill", ".use"]  # fmt: skip
    for name in mine:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    with DiskTier(folder, limit, recount_every=0) as tier:
        assert all(fill(tier, f"new/{i}", spare=lambda _: True) for i in range(9))
        assert entries(folder, "old") == set()
        assert not (folder / "old" / ".use").exists()
    assert {name: (folder / name).read_text() for name in mine} == {name: name for name in mine}


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "zeros":
        path.write_bytes(bytes(len(data)))
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "shorter":
        path.write_bytes(data[:-1])
    elif how == "longer":
        path.write_bytes(data + b"x")
    elif how == "footer":
        path.write_bytes(data[:-FOOTER_BYTES] + bytes(FOOTER_BYTES))
    elif how == "other":
        path.write_bytes(data[1:-FOOTER_BYTES] + seal(data[1:-FOOTER_BYTES]))


@pytest.mark.parametrize("how", ["zeros", "empty", "shorter", "longer", "footer", "other"])
@pytest.mark.parametrize("by", ["get", "fill"])
def test_an_entry_that_is_not_whole_is_made_again(tmp_path: Path, how: str, by: str) -> None:
    """It counts as absent, is removed, and the account is right afterwards."""
    with DiskTier(tmp_path / "cache") as tier:
        tier.fill("g/a", 1000, lambda: KB)
        damage(tmp_path / "cache" / "g" / "a.chunk", how)
    with DiskTier(tmp_path / "cache") as tier:
        if by == "get":
            assert tier.get("g/a", 1000) is None
            assert entries(tmp_path / "cache") == set()
            assert used(tier) == weigh(tmp_path / "cache")
        assert tier.fill("g/a", 1000, lambda: KB) == (KB, True)
        assert tier.get("g/a", 1000) == KB
        assert used(tier) == weigh(tmp_path / "cache")
        assert tier.counters()["damaged"] == 1


def test_files_from_before_the_machine_started_are_verified_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may take pages of a file that has its name and footer; then the checksum tells.  So it does for a
    time in the future, which says nothing; what was found right is not verified again.
    """
    verified: list[bool] = []
    unseal = entries_module.unseal

    def watched(buffer: memoryview, *, size: int | None, verify: bool) -> memoryview | None:
        verified.append(verify)
        return unseal(buffer, size=size, verify=verify)

    monkeypatch.setattr(entries_module, "unseal", watched)
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    with DiskTier(tmp_path / "cache") as tier:
        for i, when in enumerate((boot - 100, time.time() + 1000)):
            tier.fill(f"g/{i}", 1000, lambda: KB)
            path = tmp_path / "cache" / "g" / f"{i}.chunk"
            assert tier.get(f"g/{i}") == KB
            os.utime(path, (when, when))
            assert tier.get(f"g/{i}") == tier.get(f"g/{i}") == KB
            assert verified[-3:] == [False, True, False]
            path.write_bytes(bytes(1000) + path.read_bytes()[1000:])
            os.utime(path, (when, when))
            assert tier.get(f"g/{i}") is None
            assert not path.exists()


def test_an_entry_that_was_replaced_meanwhile_is_not_removed(tmp_path: Path) -> None:
    """Between finding it damaged and removing it, another process may have made it anew."""
    with DiskTier(tmp_path / "cache") as tier:
        tier.fill("g/a", 1000, lambda: KB)
        path = tmp_path / "cache" / "g" / "a.chunk"
        fd = os.open(path, os.O_RDONLY)
        (tmp_path / "b").write_bytes(path.read_bytes())
        (tmp_path / "b").replace(path)
        assert tier._opened is not None
        assert tier._opened.budget.remove(str(path), fd) == 0
        os.close(fd)
        assert tier.get("g/a", 1000) == KB


@pytest.mark.parametrize("content", [None, b"", bytes(32), b"SSXLEDG1"])
def test_a_ledger_that_is_damaged_is_made_again(tmp_path: Path, content: bytes | None) -> None:
    """By counting what is there, when the folder is opened or when room is sought; the limit holds as before."""
    ledger = tmp_path / "cache" / LEDGER
    limit = limit_for(3, 1000)
    with DiskTier(tmp_path / "cache", limit) as tier:
        assert all(fill(tier, f"g/{i}") for i in range(2))
    ledger.unlink() if content is None else ledger.write_bytes(content)
    with DiskTier(tmp_path / "cache", limit) as tier:
        tier.use("g")
        assert [fill(tier, f"g/{i}") for i in range(5)] == [True, True, True, False, False]
        assert used(tier) == weigh(tmp_path / "cache") == limit
        (tmp_path / "cache" / "g" / "0.chunk").unlink()
        if content is not None:
            ledger.write_bytes(content)
            assert [fill(tier, f"g/{i}") for i in range(5, 7)] == [True, False]
            assert used(tier) == weigh(tmp_path / "cache") == limit


def test_stale_temporary_files_are_removed(tmp_path: Path) -> None:
    """When the folder is opened, when room is sought, and when the entry is made; not while somebody writes them."""
    folder = tmp_path / "cache"
    limit = limit_for(3, 1000)
    with DiskTier(folder, limit) as tier:
        assert fill(tier, "g/0")
    (folder / "g" / "1.fill").write_bytes(bytes(500))
    with DiskTier(folder, limit, recount_every=0) as tier:
        assert os.listdir(folder / "g") == [".use", "0.chunk"] or sorted(os.listdir(folder / "g")) == [
            ".use",
            "0.chunk",
        ]

        def make() -> bytes:
            with DiskTier(folder, limit, recount_every=0) as other:
                assert (folder / "g" / "1.fill").stat().st_size == 1000 + FOOTER_BYTES
                assert other.fill("g/2", 1000, lambda: KB)[1]
                assert not fill(other, "g/3")
                assert (folder / "g" / "1.fill").exists()
            return KB

        assert tier.fill("g/1", 1000, make) == (KB, True)
        assert tier.get("g/1") == KB
        for path in (folder / "g").glob("[12].chunk"):
            path.rename(path.with_suffix(".fill"))  # as if two that made them had been killed
        assert fill(tier, "g/1")
        assert not (folder / "g" / "1.fill").exists()
        assert fill(tier, "g/4")
        assert entries(folder) == {"0", "1", "4"}
        assert sorted(os.listdir(folder / "g")) == [".use", "0.chunk", "1.chunk", "4.chunk"]
        assert used(tier) == weigh(folder) == limit
