"""The benchmarks run and say what they measured; how fast is theirs to say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torchrun import ROOT, python

from streaming import StreamingDataset

BENCH = ROOT / "tools" / "bench"


def run(tool: str, *arguments: object, code: int = 0) -> str:
    """What a tool prints."""
    return python(BENCH / tool, *arguments, timeout=200, code=code)


def lines(text: str) -> list[dict[str, Any]]:
    """The figures among what was printed."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "made"
    said = run("make_dataset.py", folder, "--samples", "70", "--per-shard", "40")
    assert "70 samples in 2 shards" in said
    return folder


def test_made_pictures_are_all_different_and_of_the_sizes_promised(made: Path) -> None:
    """No two samples share their bytes, and sides lie between 192 and 320 pixels."""
    samples = list(StreamingDataset(made, decode=False))
    assert len({sample["jpg"] for sample in samples}) == len(samples) == 70
    assert all(len(sample["txt"].split()) >= 5 for sample in samples)
    shapes = [sample["jpg"].shape for sample in StreamingDataset(made)]
    assert all(192 <= side <= 320 for shape in shapes for side in shape[1:])
    assert len(set(shapes)) > 30


def test_the_same_arguments_make_the_same_bytes(made: Path, tmp_path: Path) -> None:
    """A second run writes the same shards, another seed others."""
    for seed, same in (("0", True), ("1", False)):
        run("make_dataset.py", tmp_path / seed, "--samples", "70", "--per-shard", "40", "--seed", seed)
        names = sorted(path.name for path in (tmp_path / seed).glob("*.tar"))
        assert names == sorted(path.name for path in made.glob("*.tar"))
        assert same == all((tmp_path / seed / name).read_bytes() == (made / name).read_bytes() for name in names)


def test_larger_pictures(tmp_path: Path) -> None:
    """--kind imagenet makes pictures 500 wide."""
    run("make_dataset.py", tmp_path / "large", "--samples", "3", "--kind", "imagenet")
    sample = next(iter(StreamingDataset(tmp_path / "large")))
    assert sample["jpg"].shape[2] == 500


@pytest.mark.slow
def test_load_compares_the_two_sides_figure_by_figure(made: Path) -> None:
    """Each figure is one line of JSON, in which both sides gave all 70 samples."""
    figures = lines(run("load.py", made, "--json", "--repeats", "1"))
    assert [f["what"] for f in figures] == ["raw", "raw shuffled", "raw batches", "decoded", "first batch"]
    for figure in figures:
        assert figure["repeats"] == 1
        assert figure["unit"] == ("s" if figure["what"] == "first batch" else "samples/s")
        assert figure["samples"] == (64 if figure["what"] == "first batch" else 70)
        assert figure["ours"] > 0 < figure["webdataset"]
        assert figure["ratio"] > 0
    raw, _, batches, decoded, _ = figures
    assert raw["bytes"] == batches["bytes"] < decoded["bytes"] > 70 * 3 * 224 * 224


def test_load_prints_a_table_for_people(made: Path) -> None:
    """Without --json there is a heading and a row."""
    said = run("load.py", made, "--repeats", "1", "--only", "raw").splitlines()
    assert "medians of 1" in said[0]
    assert said[1].split() == ["ours", "webdataset", "ratio"]
    assert said[2].startswith("raw ")
    assert len(said) == 3


def test_load_measures_nothing_where_the_sides_differ(made: Path, tmp_path: Path) -> None:
    """A shard that only one side reads is found out before anything is measured."""
    for path in made.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    extra = next(made.glob("*.tar"))
    (tmp_path / "unlisted.tar").write_bytes(extra.read_bytes())
    said = run("load.py", tmp_path, "--repeats", "1", "--only", "raw", code=1)
    assert "do not give the same samples" in said


@pytest.mark.parametrize("samples", [30, 90_000])
def test_scale_plans_without_any_shard(samples: int) -> None:
    """All ways open, count and plan an index; the plan alone takes less memory than torch does."""
    fixed, pixels, alone = lines(run("scale.py", "--json", "--samples", str(samples), "--shards", "30"))
    assert (fixed["what"], pixels["what"], alone["what"]) == ("fixed", "pixels", "plan")
    assert fixed["samples"] == pixels["samples"] == alone["samples"] == samples
    assert fixed["steps"] == -(-samples // (256 * 64))
    assert pixels["steps"] == alone["steps"] >= 1
    for line in (fixed, pixels, alone):
        assert all(line[name] >= 0 for name in ("open_s", "len_s", "first_batch_s", "batch_at_95_percent_s"))
    assert alone["peak_mb"] < fixed["torch_mb"] < fixed["peak_mb"] + 1


def test_scale_prints_a_line_for_each_way() -> None:
    """Without --json the first line says how large the dataset is."""
    said = run("scale.py", "--samples", "3003", "--shards", "7").splitlines()
    assert said[0].startswith("3,003 samples in 7 shards, a manifest of ")
    assert [line.split()[0] for line in said[1:]] == ["fixed", "pixels", "plan"]
