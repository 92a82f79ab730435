"""The command `shardstream cache`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from filling import LEDGER, MARKER, entries, fill, weigh

from streaming.cache.disk import DiskTier
from streaming.cache.sealed import FOOTER_BYTES
from streaming.cli import main

ENTRY = 1000 + FOOTER_BYTES


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command."""
    code = main(["cache", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache with three datasets, one of them without a label, which were used on other days."""
    folder = tmp_path / "cache"
    with DiskTier(folder) as tier:
        tier.use("aa", "s3://me:secret@bucket/cc3m")
        tier.use("bb", "https://host/set?token=secret")
        for i in range(5):
            fill(tier, f"{('aa', 'bb')[i % 2]}/{i}")
        fill(tier, "cc/0")
    for day, group in enumerate(("cc", "bb", "aa")):
        os.utime(folder / group / ".use", (day * 86400.0,) * 2)
    return folder


def test_stats_list_the_datasets(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    """The last used first, with the URL as far as known, entries, bytes, time, and whether they are in use."""
    code, out, err = run(capsys, "--stats", folder)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"{folder}: 6 entries of 3 datasets, {weigh(folder):,} bytes",
        f"    s3://bucket/cc3m  (aa): 3 entries, {3 * ENTRY + 17:,} bytes, last used 1970-01-03T00:00:00+00:00",
        f"    https://host/set  (bb): 2 entries, {2 * ENTRY + 17:,} bytes, last used 1970-01-02T00:00:00+00:00",
        f"    cc: 1 entry, {ENTRY:,} bytes, last used 1970-01-01T00:00:00+00:00",
    ]


def test_stats_say_what_is_in_use(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    """In words and in JSON; looking changes nothing."""
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    run(capsys, "--stats", folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    with DiskTier(folder) as tier:
        tier.use("bb")
        assert re.search(r"\(bb\): .* in use now", run(capsys, "--stats", folder)[1])
        code, out, _ = run(capsys, "--stats", folder, "--json")
        assert tier.get("bb/1") is not None
    assert code == 0
    found = json.loads(out)
    assert (found["folder"], found["bytes"]) == (str(folder), weigh(folder))
    assert {group["group"]: group["in_use"] for group in found["groups"]} == {"aa": False, "bb": True, "cc": False}
    group = found["groups"][-1]
    assert group == {
        "group": "cc", "label": "", "entries": 1, "bytes": ENTRY, "last_use": "1970-01-01T00:00:00+00:00",
        "in_use": False,
    }  # fmt: skip


def test_clear_removes_what_is_not_in_use(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    """It says what it kept, leaves files that the cache did not make, and the account is right."""
    (folder / "aa" / "notes.txt").write_text("mine")
    with DiskTier(folder) as tier:
        assert tier.get("bb/1") is not None
        (folder / "cc" / "9.fill").write_bytes(bytes(50))
        code, out, err = run(capsys, "--clear", folder)
        assert (code, err) == (0, "")
        assert out == (f"{folder}: removed 4 entries, {4 * ENTRY + 50:,} bytes; kept, since in use: https://host/set\n")
        assert sorted(os.listdir(folder)) == ["aa", "bb", MARKER, LEDGER]
        assert os.listdir(folder / "aa") == ["notes.txt"]
        assert entries(folder, "bb") == {"1", "3"}
        assert fill(tier, "bb/5")
        assert tier._opened is not None
        assert tier._opened.budget.used() == weigh(folder) - len("mine") - 50  # no process had written these down
    code, out, _ = run(capsys, "--clear", folder, "--json")
    cleared = json.loads(out)
    assert (code, cleared) == (0, {"folder": str(folder), "removed": 3, "bytes": 3 * ENTRY, "kept": []})
    assert run(capsys, "--clear", folder)[1] == f"{folder}: removed 0 entries, 0 bytes\n"
    assert run(capsys, "--stats", folder)[1].startswith(f"{folder}: 0 entries of 0 datasets, ")
    assert (folder / "aa" / "notes.txt").read_text() == "mine"
    with DiskTier(folder) as tier:
        assert fill(tier, "aa/1")


@pytest.mark.parametrize("option", ["--stats", "--clear"])
def test_folders_that_are_no_cache(capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str) -> None:
    """An error that says so, with nothing made or removed."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.chunk").write_text("mine")
    for path in ("home", "none", "home/thesis.chunk"):
        code, out, err = run(capsys, option, tmp_path / path)
        assert (code, out) == (1, "")
        assert err.startswith(f"shardstream: {tmp_path / path} is no cache folder")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["home", "home/thesis.chunk"]


@pytest.mark.parametrize("arguments", [[], ["--stats"], ["--stats", "a", "--clear", "a"], ["folder"]])
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """Ends with exit code 2 and says how it is done."""
    with pytest.raises(SystemExit) as ended:
        main(["cache", *arguments])
    assert ended.value.code == 2
    assert "usage: shardstream cache" in capsys.readouterr().err


def test_the_command_has_an_example_and_loads_no_torch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--help shows how it is used; in a process of its own neither torch nor numpy is loaded."""
    with pytest.raises(SystemExit):
        main(["cache", "--help"])
    assert "shardstream cache --stats /ssd/cache" in capsys.readouterr().out
    program = f"""
import sys
from streaming.cli import main
assert main(["cache", "--stats", {str(folder)!r}]) == 0
assert "torch" not in sys.modules and "numpy" not in sys.modules and "obstore" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
