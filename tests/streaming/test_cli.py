"""The command `shardstream plan`."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchrun import ROOT

from shardwriter import ShardWriter
from streaming import CostBudget, FixedBatch, PixelBudget, Plan
from streaming.catalog import open_catalog
from streaming.cli import main
from streaming.plan_report import report


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    """60 pictures of three sizes in 4 shards, with a column `tokens`."""
    folder = tmp_path_factory.mktemp("photos") / "set"
    with ShardWriter(folder, max_samples=16) as writer:
        for i in range(60):
            shape = [(64, 96, 3), (96, 64, 3), (40, 70, 3)][i % 3]
            writer.write({"__key__": f"{i:03d}", "jpg": np.full(shape, i, np.uint8)}, columns={"tokens": i % 7 + 1})
    return str(folder)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_plan_is_printed(capsys: pytest.CaptureFixture[str], photos: str) -> None:
    """Steps, batches, buckets, tail and workers, without a line about anything else."""
    arguments = ("--batch", "pixels:64*96*5", "--ranks", 2, "--workers", 3, "--lanes", 4)
    code, out, err = run(capsys, "plan", photos, *arguments)
    assert (code, err) == (0, "")
    assert out.startswith("60 samples in 4 shards, read along 4 lanes (Shuffle(")
    assert "PixelBudget(30720):" in out
    assert 'tail "drop":' in out
    assert "3 workers on each of 2 ranks: parts of shards are read twice" in out
    assert "numbers per rank with which none is: 1, 2\n" in out
    assert "64 x 96" in out


@pytest.mark.parametrize(
    ("arguments", "batch"),
    [
        (["--batch", "fixed:7"], FixedBatch(7)),
        (["--batch", "pixels:20000"], PixelBudget(20000)),
        (["--batch", "pixels:20000", "--area", "2048"], PixelBudget(20000, area=2048)),
        (["--batch", "pixels:20000", "--mode", "pack"], PixelBudget(20000, mode="pack")),
        (
            ["--batch", "pixels:5000", "--mode", "pad", "--longest", "64", "--oversize", "skip"],
            PixelBudget(5000, mode="pad", longest=64, oversize="skip"),
        ),
        (["--batch", "cost:tokens:20"], CostBudget("tokens", 20)),
        (["--batch", "cost:tokens:2*7.5", "--mode", "pack"], CostBudget("tokens", 15.0, pad=False)),
    ],
)
def test_json_holds_the_report(
    capsys: pytest.CaptureFixture[str], photos: str, arguments: list[str], batch: Any
) -> None:
    """For every kind of batch it is the report of the plan that a dataset with these arguments has."""
    code, out, _ = run(capsys, "plan", photos, *arguments, "--seed", 5, "--ranks", 2, "--json")
    catalog = open_catalog(photos)
    plan = Plan.make(catalog, batch=batch, shuffle=True, seed=5, world_size=2, dataset=catalog.digest())
    assert code == 0
    assert json.loads(out) == json.loads(json.dumps(dataclasses.asdict(report(plan))))


def test_the_order_the_tail_and_the_runs_can_be_chosen(capsys: pytest.CaptureFixture[str], photos: str) -> None:
    """In order one lane is read and the tail is padded; --tail and --together go to the plan."""
    _, out, _ = run(capsys, "plan", photos, "--batch", "fixed:8", "--no-shuffle", "--ranks", 3, "--workers", 0)
    assert "1 lane (in order)" in out
    assert 'tail "pad": 8 samples in 1 batch given again' in out
    assert "0 workers on each of 3 ranks: no byte is read twice" in out
    _, out, _ = run(capsys, "plan", photos, "--batch", "fixed:8", "--tail", "uneven")
    assert 'tail "uneven"' in out
    options = ["plan", photos, "--batch", "pixels:20000", "--lanes", 4, "--json"]
    wide, narrow = (json.loads(run(capsys, *options, "--together", n)[1]) for n in (4, 2))
    assert (wide["good_workers"], narrow["good_workers"]) == ([1, 2, 4], [1, 2])


def test_lanes_can_keep_their_shards(capsys: pytest.CaptureFixture[str], photos: str) -> None:
    """--sticky goes to the plan, which says whether ranks have lanes of their own."""
    options = ("plan", photos, "--batch", "fixed:4", "--lanes", 4, "--sticky", "--ranks")
    for ranks, text in ((2, "lanes keep their shards over epochs, and ranks their lanes"), (3, "but ranks share them")):
        assert text in run(capsys, *options, ranks)[1]
        found = json.loads(run(capsys, *options, ranks, "--json")[1])
        assert (found["sticky"], found["keeps_lanes"]) == (True, ranks == 2)
    _, out, _ = run(capsys, *options[:-2])
    assert "sticky" not in out


def test_samples_can_be_chosen(capsys: pytest.CaptureFixture[str], photos: str) -> None:
    """--where leaves out what does not fit, and a column that is not there is an error."""
    arguments = ("--batch", "pixels:20000", "--where", "height > 40 and tokens < 7")
    code, out, _ = run(capsys, "plan", photos, *arguments, "--json")
    kept = sum(i % 3 != 2 and i % 7 < 6 for i in range(60))
    assert (code, json.loads(out)["samples"]) == (0, kept)
    code, out, err = run(capsys, "plan", photos, "--batch", "fixed:2", "--where", "depth > 1")
    assert (code, out) == (1, "")
    assert "no column 'depth'" in err


def test_a_picture_is_drawn(capsys: pytest.CaptureFixture[str], photos: str, tmp_path: Path) -> None:
    """--plot writes the file and prints what is printed without it."""
    arguments = ("plan", photos, "--batch", "pixels:20000")
    code, out, _ = run(capsys, *arguments, "--plot", tmp_path / "plan.png")
    assert code == 0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert out == run(capsys, *arguments)[1]


def test_a_missing_package_is_named_before_anything_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without matplotlib --plot fails at once, with the extra to install, even where there is no dataset."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = run(capsys, "plan", tmp_path / "none", "--batch", "fixed:2", "--plot", tmp_path / "plan.png")
    assert (code, out) == (1, "")
    assert "shardstream[plot]" in err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--batch", "64"],
        ["--batch", "fixed:0.5"],
        ["--batch", "fixed:a:3"],
        ["--batch", "pixels:"],
        ["--batch", "pixels:-1"],
        ["--batch", "pixels:1e6"],
        ["--batch", "cost:60"],
        ["--batch", "cost::60"],
        ["--batch", "cost:tokens:inf"],
        ["--batch", "fixed:2", "--mode", "pad"],
        ["--batch", "fixed:2", "--oversize", "skip"],
        ["--batch", "cost:tokens:9", "--mode", "bucket"],
        ["--batch", "cost:tokens:9", "--longest", "9"],
        ["--batch", "pixels:9", "--mode", "fill"],
        ["--batch", "pixels:9", "--ranks", "0"],
        ["--batch", "pixels:9", "--workers", "-1"],
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], photos: str, arguments: list[str]) -> None:
    """Ends with exit code 2 and says how it is done, without a traceback."""
    with pytest.raises(SystemExit) as ended:
        main(["plan", photos, *arguments])
    assert ended.value.code == 2
    assert "usage: shardstream plan" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--batch", "fixed:0"], "at least 1 sample"),
        (["--batch", "pixels:9"], "over the budget"),
        (["--batch", "cost:words:9"], "no column 'words'"),
        (["--batch", "pixels:9000", "--mode", "pack", "--area", "9"], "has no meaning in 'pack'"),
        (["--batch", "pixels:5000", "--mode", "pad", "--oversize", "error"], "over the budget"),
        (["--batch", "pixels:9000", "--where", "import os"], "can't be read"),
        (["--batch", "pixels:9000", "--mode", "pack", "--plot", "plan.png"], "no buckets to draw"),
    ],
)
def test_plans_that_can_not_be_made(
    capsys: pytest.CaptureFixture[str], photos: str, arguments: list[str], text: str
) -> None:
    """The plan's own error, with exit code 1 and nothing on standard output."""
    code, out, err = run(capsys, "plan", photos, *arguments)
    assert (code, out) == (1, "")
    assert text in err
    assert err.startswith("shardstream: ")


def test_a_dataset_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Is an error that names it."""
    code, _, err = run(capsys, "plan", tmp_path / "none", "--batch", "fixed:2")
    assert code == 1
    assert "none" in err


def test_planning_loads_no_torch(photos: str) -> None:
    """In a process of its own the command makes a plan, and the other commands start without numpy."""
    program = f"""
import sys
from streaming.cli import main
assert "numpy" not in sys.modules
assert main(["plan", {photos!r}, "--batch", "pixels:20000", "--where", "width > 9"]) == 0
assert "torch" not in sys.modules and "matplotlib" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_commands_of_shardwriter_are_there(capsys: pytest.CaptureFixture[str], photos: str) -> None:
    """The installed command is this one, and has them all."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        assert tomllib.load(file)["project"]["scripts"] == {"shardstream": "streaming.cli:main"}
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"\n    {name} " in shown for name in ("write", "index", "verify", "inspect", "plan"))
    code, out, _ = run(capsys, "inspect", photos)
    assert code == 0
    assert "60 samples in 4 shards" in out
