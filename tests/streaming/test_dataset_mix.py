"""StreamingDataset over a Mix of two small datasets: what is in the batches, how many, resume, and what is refused."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from reading import by_position, flat, numbers, planned, write_numbered
from torch.utils.data import DataLoader

from shardwriter import ShardWriter
from streaming import (
    CostBudget,
    DatasetNotFound,
    FixedBatch,
    Mix,
    PixelBudget,
    PlanError,
    StateMismatch,
    StreamingDataset,
)
from streaming.plan import Groups
from streaming.plan.chosen import originals
from streaming.ragged import views

SIZES = {"a": [(16 + 5 * i % 40, 20 + 7 * i % 24) for i in range(23)], "b": [(60, 12 + i) for i in range(9)]}
"""(width, height) of the images of both datasets."""
STARTS = {"a": 0, "b": 23}
BUDGETS: dict[str, Any] = {
    "fixed": FixedBatch(4, size=(24, 32)),
    "bucket": PixelBudget(2600, buckets=[(16, 24), (20, 40)], upscale=True),
    "pad": PixelBudget(7000, mode="pad"),
    "pack": PixelBudget(5000, mode="pack"),
    "tokens": CostBudget("tokens", 60),
}
CASES = [(by, kind) for by in ("sample", "batch") for kind in BUDGETS if (by, kind) != ("sample", "pack")]
each_case = pytest.mark.parametrize(("by", "kind"), CASES)


def _length(number: int) -> int:
    return 3 + number % 11


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Samples 0 ... 22 in 5 shards and 23 ... 31 in 3, with images, arrays and a column `tokens`."""
    folder = tmp_path_factory.mktemp("mix")
    for name, sizes in SIZES.items():
        with ShardWriter(folder / name, max_samples=5 if name == "a" else 4) as writer:
            for i, size in enumerate(sizes, STARTS[name]):
                image, array = Image.new("RGB", size, (i, 0, 255 - i)), np.full(_length(i), i)
                sample = {"__key__": f"{i:03d}", "png": image, "npy": array, "cls": i}
                writer.write(sample, columns={"tokens": _length(i)})
    return {name: str(folder / name) for name in SIZES}


def _mix(sources: dict[str, str], a: float = 0.7, b: float = 0.3, **options: Any) -> Mix:
    return Mix({sources["a"]: a, sources["b"]: b}, **options)


def _open(source: Any, batch: Any, **options: Any) -> StreamingDataset:
    fields = ["npy", "cls"] if isinstance(batch, CostBudget) else ["png", "cls"]
    return StreamingDataset(source, **{"batch": batch, "fields": fields, "shuffle": True, "threads": 0, **options})


def _expected(dataset: StreamingDataset, epoch: int) -> list[list[int]]:
    """The sample numbers of each position, as the plan has them."""
    plan, cursor = dataset.plan, dataset.plan.epoch(epoch).cursor()
    starts, found = np.cumsum([0, *dataset.catalog.counts]), []
    for position in range(plan.total):
        refs = cursor.samples(np.array([position]))
        found.append((starts[refs.shards] + originals(plan.statistics, refs.shards, refs.indices)).tolist())
    return found


def _same(one: Iterable[dict[str, Any]], other: Iterable[dict[str, Any]]) -> bool:
    """Whether batches are equal in everything but their states and whether they are repeats."""
    for a, b in zip(one, other, strict=True):
        for name in a.keys() - {"__state__", "__repeat__"}:
            if not (torch.equal(a[name], b[name]) if isinstance(a[name], torch.Tensor) else a[name] == b[name]):
                return False
    return True


def _check_images(budget: Any, batch: dict[str, Any], shapes: set[tuple[float, ...]]) -> None:
    """Each image has its colour, and its size or that of its bucket; the batch is within its budget."""
    inside = batch["cls"].tolist()
    sizes = [[*SIZES["a"], *SIZES["b"]][n][::-1] for n in inside]
    if isinstance(budget, FixedBatch) or budget.mode == "bucket":
        images = list(batch["png"])
        assert tuple(batch["png"].shape[2:]) in shapes
    elif budget.mode == "pad":
        assert batch["png.sizes"].tolist() == [list(size) for size in sizes]
        images = [image[:, :h, :w] for image, (h, w) in zip(batch["png"], sizes, strict=True)]
    else:
        images = views(batch, "png")
        assert [tuple(image.shape[1:]) for image in images] == sizes
    for image, number in zip(images, inside, strict=True):
        assert image.amax(dim=(1, 2)).tolist() == image.amin(dim=(1, 2)).tolist() == [number, 0, 255 - number]
    if isinstance(budget, PixelBudget):
        pixels = batch["png"].numel() / 3
        assert pixels <= budget.max_pixels


def _check(dataset: StreamingDataset, batch: dict[str, Any]) -> None:
    budget = dataset.plan.batch
    if not isinstance(budget, CostBudget):
        parts = [p.groups for p in (dataset.plan, *dataset.plan.plans) if isinstance(p.groups, Groups)]
        shapes: set[tuple[float, ...]] = {shape for groups in parts for shape in groups.shapes} or {(24, 32)}
        return _check_images(budget, batch, shapes)
    assert batch["npy.lengths"].tolist() == [_length(n) for n in batch["cls"].tolist()]
    assert batch["npy"].numel() <= budget.max_cost
    for row, number, length in zip(batch["npy"], batch["cls"], batch["npy.lengths"], strict=True):
        assert row[:length].tolist() == [int(number)] * int(length)
        assert not row[length:].any()
    return None


@each_case
@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_what_is_read_is_what_is_planned(sources: dict[str, str], by: Any, kind: str, tail: Any) -> None:
    """Several epochs give the plan's own sequence on one rank and on three, `len` of it, in batches as the budget says,
    of one source each where batches are mixed.
    """
    mix, batch = _mix(sources, by=by), BUDGETS[kind]
    dataset = _open(mix, batch, tail=tail)
    ranks = [_open(mix, batch, tail=tail, rank=r, world_size=3) for r in range(3)]
    for epoch in range(3):
        wanted = _expected(dataset, epoch)
        wanted = wanted[: dataset.plan.full] if tail == "drop" else wanted
        batches = list(dataset)
        assert numbers(batches) == wanted
        assert len(dataset) == len(batches)
        for item in batches:
            _check(dataset, item)
            assert by == "sample" or len({n < STARTS["b"] for n in item["cls"].tolist()}) == 1
        got = [list(rank) for rank in ranks]
        assert {len(items) for items in got} == {len(ranks[0])}
        together = by_position(got)
        assert _same(together, (batches * 3)[: len(together)])
        if tail == "pad":
            again = [bool(item["__repeat__"].all()) for item in together]
            assert again == [p >= len(batches) for p in range(len(together))]


@pytest.mark.parametrize("by", ["sample", "batch"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_single_samples(sources: dict[str, str], by: Any, shuffle: bool) -> None:
    """Without batch= samples come one by one, in their shares, and a small source comes again in whole passes."""
    dataset = _open(_mix(sources, 0.5, 0.5, by=by, length=46), None, shuffle=shuffle, tail="uneven")
    seen: Counter[int] = Counter()
    for epoch in range(3):
        items = list(dataset)
        assert numbers(items) == _expected(dataset, epoch)
        assert sum(n < STARTS["b"] for n in flat(items)) == 23
        seen += Counter(flat(items))
    assert {seen[n] for n in range(23)} == {3}
    assert {seen[n] for n in range(23, 32)} == {7, 8}


@each_case
def test_a_predicate_chooses_samples_of_both_sources(sources: dict[str, str], by: Any, kind: str) -> None:
    """where= holds for each sample that comes, all those for which it holds come, and `len` counts only them."""
    tail: Any = "uneven"
    options: Any = {"where": "tokens >= 6 and (width > 20 or height == 20)", "tail": tail}
    dataset = _open(_mix(sources, by=by), BUDGETS[kind], **options)
    sizes = [*SIZES["a"], *SIZES["b"]]
    wanted = {n for n, (w, h) in enumerate(sizes) if _length(n) >= 6 and (w > 20 or h == 20)}
    assert dataset.plan.samples == len(wanted) < 32
    seen: set[int] = set()
    for epoch in range(4):
        batches = list(dataset)
        assert len(batches) == len(dataset)
        assert numbers(batches) == _expected(dataset, epoch)
        for item in batches:
            _check(dataset, item)
        seen |= set(flat(batches))
    assert seen == wanted


@each_case
def test_resume_from_every_position_on_other_ranks(sources: dict[str, str], by: Any, kind: str) -> None:
    """A state of any batch of the second epoch goes on, on one rank or two, with exactly the batches that are left."""
    mix, batch = _mix(sources, by=by), BUDGETS[kind]
    dataset = _open(mix, batch, tail="pad")
    dataset.set_epoch(1)
    straight = list(dataset)
    following = next(iter(dataset))
    for done, item in enumerate(straight, 1):
        state = json.loads(json.dumps(item["__state__"]))
        [again] = [_open(mix, batch, tail="pad")]
        again.load_state_dict(state)
        assert again.state_dict() == state
        left = straight[done:] or [following]
        assert _same([b for b, _ in zip(again, left, strict=False)], left)
    ranks = [_open(mix, batch, tail="pad", rank=r, world_size=2) for r in range(2)]
    for rank in ranks:
        rank.load_state_dict(straight[0]["__state__"])
    rest = by_position([list(rank) for rank in ranks])
    assert _same(rest[: len(straight) - 1], straight[1:])


@pytest.mark.parametrize("by", ["sample", "batch"])
def test_another_mix_is_refused(tmp_path: Path, sources: dict[str, str], by: Any) -> None:
    """A state of other weights, another kind or length, another predicate, or other sources is refused with what
    differs; sources that were moved are the same.
    """
    mix, batch = _mix(sources, by=by), BUDGETS["bucket"]
    where = "width >= 20"
    dataset = _open(mix, batch, where=where)
    next(iter(dataset))
    state = json.loads(json.dumps(dataset.state_dict()))
    other = "batch" if by == "sample" else "sample"
    changes: list[tuple[Any, Any, str]] = [
        (_mix(sources, 0.6, 0.4, by=by), where, rf"mix: saved \[\[0\.7, 0\.3\], '{by}', None\], now \[\[0\.6, 0\.4\]"),
        (_mix(sources, by=other), where, f"mix: saved .*'{by}'.*now .*'{other}'"),
        (_mix(sources, by=by, length=20), where, "mix: saved .*None.*now .*20"),
        (mix, "width >= 21", "where: saved 'width >= 20', now 'width >= 21'"),
        (mix, None, "where: saved 'width >= 20', now None"),
        (sources["a"], where, "dataset: saved .*mix: saved .*now None"),
        (Mix({sources["b"]: 0.7, sources["a"]: 0.3}, by=by), where, r"sources: saved \[5, 3\], now \[3, 5\]"),
    ]
    for source, predicate, named in changes:
        with pytest.raises(StateMismatch, match=named):
            _open(source, batch, where=predicate).load_state_dict(state)
    for name in SIZES:
        (tmp_path / name).symlink_to(sources[name])
    moved = _open(Mix({str(tmp_path / "a"): 0.7, str(tmp_path / "b"): 0.3}, by=by), batch, where=where)
    moved.load_state_dict(state)
    assert _same(moved, dataset_behind(dataset, state))


def dataset_behind(dataset: StreamingDataset, state: dict[str, Any]) -> StreamingDataset:
    """The dataset, about to go on behind a state."""
    dataset.load_state_dict(state)
    return dataset


@pytest.mark.usefixtures("forkserver")
@pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning")
@pytest.mark.parametrize(("by", "kind"), [("sample", "bucket"), ("batch", "pack")])
def test_workers_change_nothing(sources: dict[str, str], by: Any, kind: str) -> None:
    """Three worker processes give the batches that one process gives, with their states."""
    dataset = _open(_mix(sources, by=by), BUDGETS[kind], where="tokens > 3")
    straight = list(dataset)
    dataset.set_epoch(0)
    loader = DataLoader(dataset, batch_size=None, num_workers=3, multiprocessing_context="forkserver")
    batches = list(loader)
    assert _same(batches, straight)
    assert [b["__state__"] for b in batches] == [b["__state__"] for b in straight]


def test_a_plan_travels_with_its_dataset(sources: dict[str, str]) -> None:
    """A plan of a mix can be pickled, and is then the same."""
    for by, kind in CASES:
        plan = _open(_mix(sources, by=by), BUDGETS[kind], where="tokens > 3").plan
        again = pickle.loads(pickle.dumps(plan))
        assert again == plan
        assert again.fingerprint() == plan.fingerprint()


def test_tiny_sources_and_many_ranks(tmp_path: Path) -> None:
    """Sources of one sample in one shard: each of 5 ranks has its steps, and what they give is the plan's."""
    one, many = (str(write_numbered(tmp_path / name, counts)) for name, counts in (("one", [1]), ("many", [4, 0, 3])))
    for by in ("sample", "batch"):
        mix = Mix({one: 1, many: 3}, by=by, length=24)
        ranks = [
            StreamingDataset(mix, batch=FixedBatch(2), shuffle=True, threads=0, rank=r, world_size=5) for r in range(5)
        ]
        for epoch in range(2):
            got = by_position([list(rank) for rank in ranks])
            assert len(got) == 5 * len(ranks[0]) > 0
            keys = [item["__key__"] for item in got]
            starts = np.cumsum([0, *ranks[0].plan.counts])
            wanted = [[f"{max(0, n - starts[1]):06d}" for n in batch] for batch in planned(ranks[0], epoch)]
            assert keys == wanted[: len(keys)]


def test_mixes_that_cannot_be_read(sources: dict[str, str], tmp_path: Path) -> None:
    """A source that is not there, that has no sample, or none for which where= holds, is an error that names it; so is
    packing by sample.
    """
    with pytest.raises(DatasetNotFound):
        _open(Mix({sources["a"]: 1, str(tmp_path / "nothing"): 1}), FixedBatch(2))
    with pytest.raises(PlanError, match=rf"'{sources['a']}' has no samples"):
        _open(_mix(sources), FixedBatch(2), where="width >= 60")
    empty = str(write_numbered(tmp_path / "empty", [0]))
    with pytest.raises(PlanError, match=f"'{empty}' has no samples"):
        _open(Mix({sources["a"]: 1, empty: 1}), FixedBatch(2))
    with pytest.raises(PlanError, match=r"can't be packed.*by=.batch"):
        _open(_mix(sources), BUDGETS["pack"])
    with pytest.raises(PlanError, match="leaves no batch"):
        _open(replace(_mix(sources), length=3), FixedBatch(4))
