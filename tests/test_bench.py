"""The benchmarks run and say what they measured; how fast is theirs to say."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from torchrun import ROOT, python

from streaming import StreamingDataset

BENCH = ROOT / "tools" / "bench"


def run(tool: str, *arguments: object, code: int = 0) -> str:
    """What a tool prints."""
    return python(BENCH / tool, *arguments, timeout=200, code=code)


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file of the benchmarks, imported here."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module(name)


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


def peers(data: Path, work: Path, *arguments: object, code: int = 0) -> str:
    """What the comparison prints; webdataset runs in this environment."""
    return run(
        "peers.py", data, "--here", "--peers", "webdataset", "--repeats", 1, "--work", work, *arguments, code=code
    )


def by_way(figure: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The lines of a figure by their names; none has failed."""
    assert figure["failed"] == {}
    return {line["way"]: line for line in figure["ways"]}


@pytest.mark.parametrize(
    ("side", "kind", "options"),
    [
        ("ours", "batches", {"expect": 70, "how": "process", "threads": 2}),
        ("limit", "limit", {"threads": 2}),
        ("webdataset", "batches", {"expect": 70}),
        ("webdataset", "batches", {"expect": 70, "decoder": "ours"}),
    ],
)
def test_a_measurement_gives_every_sample_decoded(made: Path, side: str, kind: str, options: dict[str, Any]) -> None:
    """Samples and bytes are counted over the whole epoch, the clock and the processor over a part of it."""
    (found,) = lines(run("measure.py", side, kind, made, json.dumps(options)))
    assert (found["samples"], found["bytes"]) == (70, 70 * 3 * 224 * 224)
    assert 0 < found["rated"] <= 70
    assert found["seconds"] > 0 <= found["cpu"]


@pytest.mark.parametrize(("side", "options"), [("ours", {"decode": "views"}), ("webdataset", {"batched": True})])
def test_a_measurement_gives_every_sample_as_it_is(made: Path, side: str, options: dict[str, Any]) -> None:
    """Samples and bytes are those of one epoch, however many a second of reading takes."""
    (found,) = lines(run("measure.py", side, "raw", made, json.dumps(options)))
    assert found["samples"] == 70 <= found["rated"]
    assert found["bytes"] == sum(len(sample["jpg"]) for sample in StreamingDataset(made, decode=False))
    assert found["seconds"] >= 1


@pytest.mark.slow
def test_ours_and_webdataset_in_two_figures(made: Path, tmp_path: Path) -> None:
    """A figure is a line of JSON with each way's figure, and its ratio to the best of ours."""
    first, written = lines(peers(made, tmp_path, "--json", "--only", "first batch", "--only", "write"))
    assert (first["figure"], first["unit"], first["repeats"]) == ("first batch", "s", 1)
    ways = by_way(first)
    assert {name.partition(",")[0] for name in ways} == {"ours", "webdataset"}
    assert sum(name.startswith("ours") for name in ways) == 2
    assert all(line["least"] == line["median"] == line["most"] > 0 for line in ways.values())
    best = ways[first["best_of_ours"]]["median"]
    for name, line in ways.items():
        assert name.startswith("ours") or line["ratio"] == pytest.approx(line["median"] / best)
    assert first["ratio_of_the_best"] == pytest.approx(ways[first["best_peer"]]["median"] / best)
    assert {"limit, tar cf", "webdataset", "ours, one process"} <= set(by_way(written))
    assert not list(tmp_path.glob("peers/*/written"))


def test_people_get_a_table_of_a_part_of_the_dataset(made: Path, tmp_path: Path) -> None:
    """Without --json there are headings and a row for each way; the part is made below the folder given."""
    said = peers(made, tmp_path, "--peers", "none", "--samples", 66, "--only", "resume").splitlines()
    assert said[0].startswith("made: 66 samples, ")
    assert [line.partition(":")[0] for line in said if line and not line.startswith(" ")] == ["made", "resume"]
    assert [line.partition("  ")[0] for line in map(str.strip, said)][-2:] == ["ours, fresh", "ours, resumed"]
    (base,) = (tmp_path / "peers").iterdir()
    assert len(list((base / "folder").glob("*.jpg"))) == 66


@pytest.mark.slow
def test_a_busy_trainer_is_compared_with_an_idle_one(made: Path) -> None:
    """Both take turns in one process, and their rates are medians of them."""
    (found,) = lines(run("measure.py", "ours", "busy", made, json.dumps({"workers": 0, "threads": 1})))
    assert found["value"] == pytest.approx(found["busy"] / found["idle"])


def test_nothing_is_measured_where_the_sides_differ(made: Path, tmp_path: Path) -> None:
    """A shard that only one side reads is found out before anything is measured."""
    data = tmp_path / "data"
    data.mkdir()
    for path in made.iterdir():
        (data / path.name).write_bytes(path.read_bytes())
    (data / "unlisted.tar").write_bytes(next(made.glob("*.tar")).read_bytes())
    said = peers(data, tmp_path, "--only", "raw", code=1)
    assert "nothing is measured: ours and webdataset do not give the same samples" in said


def test_a_peer_without_an_environment_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that can't be made, or must not be, comes back with the reason, and half of one is not used."""
    environments = module("environments", monkeypatch)
    monkeypatch.setitem(environments.PEERS, "webdataset", [str(tmp_path / "no-such-package")])
    ready, failed = environments.environments(["webdataset"], tmp_path, make=False)
    assert not ready
    assert "--setup makes it" in failed["webdataset"]
    for _ in range(2):
        ready, failed = environments.environments(["webdataset"], tmp_path)
        assert not ready
        assert "pip failed" in failed["webdataset"]
    monkeypatch.setitem(environments.PEERS, "webdataset", [])
    (tmp_path / "webdataset" / "requirements.json").write_text("[]")
    ready, failed = environments.environments(["webdataset"], tmp_path, make=False)
    assert ready["webdataset"].exists()
    assert not failed


def test_a_summary_compares_each_way_with_the_best_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """More is better for rates, less for seconds; what failed is said, and has no number."""
    way = module("figures", monkeypatch).Way
    figure = module("figures", monkeypatch).Figure
    report = module("report", monkeypatch)
    ways = (way("ours", "a", "first"), way("ours", "b", "first"), way("ray", "", "first"), way("litdata", "", "first"))
    times = {"ours, a": [3.0, 1.0, 9.0], "ours, b": [2.0, 2.0], "ray": [8.0, 9.0, 7.0]}
    runs = {name: [{"seconds": t, "rated": 100, "cpu": t} for t in found] for name, found in times.items()}
    slow = report.summary(figure("f", "about", "s", "less", ways), runs, {"litdata": "ended with code 1"})
    assert (slow["best_of_ours"], slow["best_peer"], slow["ratio_of_the_best"]) == ("ours, b", "ray", 4.0)
    assert [(line["way"], line["median"], line.get("ratio")) for line in slow["ways"]] == [
        ("ours, a", 3.0, None),
        ("ours, b", 2.0, None),
        ("ray", 8.0, 4.0),
    ]
    fast = report.summary(figure("f", "about", "samples/s", "more", ways), runs, {})
    assert (fast["best_of_ours"], fast["ratio_of_the_best"]) == ("ours, b", 4.0)
    said = report.table(slow).splitlines()
    assert said[-1] == "  litdata: FAILED, ended with code 1"
    assert "b, against the best peer, ray: 4.00" in said[-2]


def test_a_measurement_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last lines of what it said are in the error, and what it started is ended."""
    watch = module("watch", monkeypatch)
    with pytest.raises(watch.Failed, match=r"code 3: .*no such file"):
        watch.run([sys.executable, "-c", "import sys; print('no such file', file=sys.stderr); sys.exit(3)"], os.environ)
    code = "x = bytearray(60 << 20); import time; time.sleep(0.4); print('{}')"
    held = watch.run([sys.executable, "-c", code], os.environ, memory=True)
    assert 60 < held["anonymous_mb"] <= held["peak_mb"] < 200


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
