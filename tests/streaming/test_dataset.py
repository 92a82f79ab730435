"""StreamingDataset in one process: what it yields, how much, and what it refuses."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from reading import COUNTS, FailAt, by_position, draw, flat, numbers, planned, write_numbered, write_samples

from shardwriter import ShardWriter
from streaming import (
    BatchError,
    DecodeError,
    FieldMissing,
    FixedBatch,
    PlanError,
    Shuffle,
    StreamingDataset,
    TooManySkipped,
    TransformError,
)


def _open(source: object, **options: Any) -> StreamingDataset:
    return StreamingDataset(source, **{"threads": 0, **options})  # type: ignore[arg-type]


def test_batches_of_all_kinds_of_fields(tmp_path: Path) -> None:
    """Images, integers, arrays, text, JSON and unknown fields come in the shapes that the docstring promises."""
    with ShardWriter(tmp_path / "data") as writer:
        for i in range(4):
            image = Image.new("RGB", (20 + i, 10), (i, 0, 0))
            values = {"jpg": image, "cls": i, "npy": np.full((2, 3), i, np.float32), "txt": f"t{i}", "json": {"i": i}}
            writer.write({"__key__": f"k{i}", "bin": b"b", **values})
    [batch] = _open(tmp_path / "data", batch=FixedBatch(4, size=8))
    assert batch["jpg"].shape == (4, 3, 8, 8)
    assert batch["jpg"].dtype == torch.uint8
    assert batch["cls"].tolist() == [0, 1, 2, 3]
    assert batch["cls"].dtype == torch.int64
    assert batch["npy"].shape == (4, 2, 3)
    assert batch["txt"] == ["t0", "t1", "t2", "t3"]
    assert batch["json"] == [{"i": i} for i in range(4)]
    assert batch["bin"] == [b"b"] * 4
    assert batch["__key__"] == ["k0", "k1", "k2", "k3"]
    json.dumps(batch["__state__"])


def test_samples_as_webdataset_shapes_them(small: str) -> None:
    """Without batch= each sample is a dict of key, URL and fields, in the order of the shards."""
    samples = list(_open(small, tail="uneven"))
    assert samples[9] == {"__key__": "000009", "__url__": f"{small}/shard-001.tar", "cls": 9, "txt": "text 9"}
    assert flat(samples) == list(range(37))


@pytest.mark.parametrize("shuffle", [False, True, Shuffle(shards=2, buffer=4)])
@pytest.mark.parametrize("batch", [None, FixedBatch(1), FixedBatch(5), FixedBatch(64)])
def test_what_is_read_is_what_is_planned(small: str, batch: FixedBatch | None, shuffle: bool | Shuffle) -> None:
    """Three epochs in a row give the plan's own sequence, all 37 samples each, and `len` of them."""
    dataset = _open(small, batch=batch, shuffle=shuffle, tail="uneven", seed=3)
    for epoch in range(3):
        got = numbers(dataset)
        assert got == planned(dataset, epoch)
        assert len(got) == len(dataset)
        assert sorted(n for batch in got for n in batch) == list(range(37))


def test_epochs_and_seeds(small: str) -> None:
    """Epochs differ, the same seed repeats them, another seed does not, and set_epoch(0) gives the first again."""
    first, again, other = (_open(small, shuffle=True, seed=seed) for seed in (7, 7, 8))
    orders = [flat(first) for _ in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    assert [flat(again) for _ in range(3)] == orders
    assert flat(other) not in orders
    first.set_epoch(0)
    assert [flat(first), flat(first)] == orders[:2]
    for epoch in (2, 1):
        again.set_epoch(epoch)
        assert flat(again) == orders[epoch]


def test_set_epoch_behind_iter(small: str) -> None:
    """An iterator from which nothing was taken yet begins the epoch that was set last."""
    dataset = _open(small, shuffle=True)
    iterator = iter(dataset)
    dataset.set_epoch(2)
    assert flat(iterator) == flat(planned_items(dataset, 2))
    assert dataset.state_dict()["epoch"] == 3


def planned_items(dataset: StreamingDataset, epoch: int) -> list[dict[str, int]]:
    """The planned samples of an un-batched dataset in the form of samples."""
    return [{"cls": n} for [n] in planned(dataset, epoch)]


def test_iterators_of_which_nothing_is_taken_begin_no_epoch(small: str) -> None:
    """Making an iterator alone leaves the dataset as it was."""
    dataset = _open(small, shuffle=True)
    before = dataset.state_dict()
    iter(dataset)
    iter(dataset)
    assert dataset.state_dict() == before
    assert flat(dataset) == flat(planned_items(dataset, 0))


def test_epochs_left_early(small: str) -> None:
    """Leaving an epoch early and iterating again begins the next one."""
    dataset = _open(small, batch=FixedBatch(4), shuffle=True)
    for _ in dataset:
        break
    assert numbers(dataset) == planned(dataset, 1)[: len(dataset)]


@pytest.mark.parametrize("epoch", [-1, 1.0, None, "1"])
def test_epochs_that_do_not_exist(small: str, epoch: Any) -> None:
    """set_epoch refuses what is no count."""
    with pytest.raises(PlanError, match="epochs count from 0"):
        _open(small).set_epoch(epoch)


@pytest.mark.parametrize("tail", ["drop", "pad", "uneven"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("batch", [None, FixedBatch(4)])
def test_ranks_together_are_the_plan(small: str, batch: FixedBatch | None, world_size: int, tail: str) -> None:
    """The ranks' batches laid out by position are the plan; all ranks have `len` of them, equal unless "uneven"."""
    ranks = [
        _open(small, batch=batch, shuffle=True, tail=tail, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    got = [list(rank) for rank in ranks]
    assert [len(items) for items in got] == [len(rank) for rank in ranks]
    laid_out, plan = numbers(by_position(got)), planned(ranks[0], 0)
    repeats = [bool(torch.as_tensor(item.get("__repeat__", False)).any()) for item in by_position(got)]
    report = ranks[0].plan.tail_report()
    if tail == "uneven":
        assert laid_out == plan
        return
    assert len({len(items) for items in got}) == 1
    if tail == "drop":
        assert laid_out == plan[: len(laid_out)]
        assert 37 - sum(map(len, laid_out)) == report.dropped_samples
    else:
        assert laid_out == plan + plan[: len(laid_out) - len(plan)]
        assert repeats == [False] * len(plan) + [True] * (len(laid_out) - len(plan))
        assert sum(map(len, laid_out)) - 37 == report.repeated_samples


def test_repeats_are_flagged_for_each_sample(small: str) -> None:
    """`__repeat__` of a batch is a truth value for each sample; only a padded tail has it."""
    for rank in range(3):
        batches = list(_open(small, batch=FixedBatch(30), tail="pad", rank=rank, world_size=3))
        assert [b["__repeat__"].tolist() for b in batches] == [[rank == 2] * len(batches[0]["cls"])]
        assert batches[0]["__repeat__"].dtype == torch.bool
    assert all("__repeat__" not in b for b in _open(small, batch=FixedBatch(30), tail="uneven"))


def test_more_ranks_than_batches(small: str, caplog: pytest.LogCaptureFixture) -> None:
    """With fewer batches than ranks "drop" is refused with the numbers, "pad" repeats and says how much at start."""
    with pytest.raises(PlanError, match=r"37 samples in FixedBatch\(16\) make 2 full micro-batches for 3 ranks"):
        _open(small, batch=FixedBatch(16), shuffle=True, rank=0, world_size=3)
    with caplog.at_level(logging.WARNING):
        ranks = [_open(small, batch=FixedBatch(16), tail="pad", rank=r, world_size=7) for r in range(7)]
    assert len(caplog.records) == 1, "rank 0 alone reports"
    assert "given again" in caplog.text
    assert [len(list(rank)) for rank in ranks] == [1] * 7


def test_fewer_shards_than_readers(tmp_path: Path) -> None:
    """3 shards of 8 samples, 4 ranks, batches of 2: 3 batches on each rank, all 24 samples once."""
    folder = write_numbered(tmp_path / "data", [8, 8, 8])
    ranks = [list(_open(folder, batch=FixedBatch(2), shuffle=True, rank=r, world_size=4)) for r in range(4)]
    assert [len(rank) for rank in ranks] == [3] * 4
    assert sorted(flat(by_position(ranks))) == list(range(24))


def test_fields(small: str) -> None:
    """A list chooses fields, a dict renames them too, and alternatives take the first that there is."""
    assert next(iter(_open(small, fields=["txt"]))).keys() - {"__repeat__"} == {"__key__", "__url__", "txt"}
    sample = next(iter(_open(small, fields={"label": "cls2;cls", "caption": "txt"})))
    assert (sample["label"], sample["caption"]) == (0, "text 0")
    assert "cls" not in sample


def test_fields_that_are_missing(small: str) -> None:
    """A field that a sample lacks is an error with shard, key, the name asked for, and what there is."""
    with pytest.raises(FieldMissing, match=r"'jpg;png'.*(cls|txt)") as caught:
        list(_open(small, fields=["cls", "jpg;png"]))
    assert (caught.value.key, caught.value.shard) == ("000000", f"{small}/shard-000.tar")


def test_decode_false_gives_bytes(small: str) -> None:
    """Without decoding each field is its bytes."""
    assert next(iter(_open(small, decode=False)))["cls"] == b"0"


def test_transforms_draw_the_same_on_any_layout(small: str) -> None:
    """The generator of a transform is a function of seed, epoch and sample: ranks, threads, batching and a resume
    change no draw; another epoch, seed or sample does.
    """

    def draws(epoch: int = 0, **options: Any) -> dict[int, float]:
        options = {"shuffle": True, "seed": 5, "tail": "uneven", **options}
        world = options.pop("ranks", 1)
        out: dict[int, float] = {}
        for rank in range(world):
            dataset = _open(small, transform=draw, rank=rank, world_size=world, **options)
            dataset.set_epoch(epoch)
            for item in dataset:
                out |= zip(np.atleast_1d(item["cls"]).tolist(), np.atleast_1d(item["draw"]).tolist(), strict=True)
        return out

    alone = draws()
    assert len(set(alone.values())) == 37
    assert draws(ranks=3) == draws(threads=4) == draws(shuffle=False) == alone
    batched = draws(batch=FixedBatch(4), ranks=2)
    assert batched.keys() == alone.keys()
    assert all(batched[n] == pytest.approx(alone[n], abs=1e-6) for n in alone)
    for other in (draws(epoch=1), draws(seed=6)):
        assert not set(other.values()) & set(alone.values())
    dataset = _open(small, transform=draw, shuffle=True, seed=5)
    iterator = iter(dataset)
    [next(iterator) for _ in range(11)]
    resumed = _open(small, transform=draw, shuffle=True, seed=5)
    resumed.load_state_dict(dataset.state_dict())
    assert [s["draw"] for s in resumed] == [alone[s["cls"]] for s in iterator]


def test_errors_of_a_transform_name_the_sample(small: str) -> None:
    """What a transform raises becomes a TransformError with its text, shard and key."""
    with pytest.raises(TransformError, match="Unpicklable: 1 and 9") as caught:
        list(_open(small, batch=FixedBatch(4), transform=FailAt(9)))
    assert (caught.value.key, caught.value.shard) == ("000009", f"{small}/shard-001.tar")


def test_transforms_that_return_nothing(small: str) -> None:
    """A transform that returns no dict is an error that says what it returned."""
    with pytest.raises(TransformError, match="NoneType"):
        list(_open(small, transform=lambda sample, rng: None))


def _damaged(folder: Path, count: int = 12, bad: tuple[int, ...] = (1, 5)) -> Path:
    members = [(f"{i:02d}.cls", b"x" if i in bad else b"%d" % i) for i in range(count)]
    return write_samples(folder, members)


def test_skipping_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Under on_error="skip" bad samples are left out, named in the batch and the log, and counted for the epoch."""
    folder = _damaged(tmp_path / "data")
    with pytest.raises(DecodeError, match="no decimal") as caught:
        list(_open(folder, batch=FixedBatch(4)))
    assert (caught.value.key, caught.value.field) == ("01", "cls")
    dataset = _open(folder, batch=FixedBatch(4), on_error="skip")
    for _ in range(2):
        batches = list(dataset)
        assert numbers(batches) == [[0, 2, 3], [4, 6, 7], [8, 9, 10, 11]]
        assert [b["__skipped__"] for b in batches] == [["01"], ["05"], []]
        assert dataset.skips.count == 2
        assert "key 01" in dataset.skips.examples[0]
    assert "skipped a sample" in caplog.text
    assert "key 05" in caplog.text


def test_skipping_has_a_limit(tmp_path: Path) -> None:
    """More bad samples than skip_limit in an epoch are an error with the limit and the last reason."""
    folder = _damaged(tmp_path / "data")
    assert len(list(_open(folder, batch=FixedBatch(4), on_error="skip", skip_limit=2))) == 3
    with pytest.raises(TooManySkipped, match=r"more than 1 samples.*key 05"):
        list(_open(folder, batch=FixedBatch(4), on_error="skip", skip_limit=1))


def test_batches_of_which_nothing_is_left(tmp_path: Path) -> None:
    """Where each sample of a batch is skipped, the next batch comes in its place, flagged, and ranks stay in step.

    A dataset of which nothing can be read is an error.
    """
    folder = _damaged(tmp_path / "data", bad=(4, 5, 6, 7))
    for rank in (0, 1):
        batches = list(_open(folder, batch=FixedBatch(2), on_error="skip", rank=rank, world_size=2))
        assert [b["__repeat__"].tolist() for b in batches] == [[False] * 2, [True] * 2, [False] * 2]
        assert [b["__skipped__"] for b in batches] == [[], [["04", "05"], ["06", "07"]][rank], []]
        assert numbers(batches)[1] == [8, 9]
        assert numbers(batches)[::2] == [[[0, 1], [8, 9]], [[2, 3], [10, 11]]][rank]
    nothing = _damaged(tmp_path / "none", bad=tuple(range(12)))
    with pytest.raises(BatchError, match="every sample of a batch was skipped") as caught:
        list(_open(nothing, batch=FixedBatch(4), on_error="skip"))
    assert caught.value.key == "00"


def test_skipping_covers_fields_and_transforms(small: str) -> None:
    """Missing fields and failing transforms are skipped too."""
    dataset = _open(small, batch=FixedBatch(10), on_error="skip", transform=FailAt(3, 4))
    assert next(iter(dataset))["__skipped__"] == ["000003", "000004"]
    with pytest.raises((BatchError, TooManySkipped)):
        list(_open(small, batch=FixedBatch(4), fields=["jpg"], on_error="skip"))


def test_single_samples_are_not_skipped_on_many_ranks(small: str) -> None:
    """Skipping single samples would make ranks unequal, so it is refused there; one rank may."""
    with pytest.raises(PlanError, match="unequal"):
        _open(small, on_error="skip", rank=0, world_size=2)
    samples = list(_open(small, on_error="skip", transform=FailAt(3, 4)))
    assert len(samples) == sum(COUNTS) - 2


def test_collate_of_the_user(small: str) -> None:
    """collate= makes the batch; its errors are named."""
    dataset = _open(small, batch=FixedBatch(3), collate=lambda samples: [s["cls"] for s in samples])
    assert next(iter(dataset)) == [0, 1, 2]

    def broken(samples: Any) -> Any:
        raise RuntimeError("no such shape")

    with pytest.raises(TransformError, match=r"broken\(\) raised RuntimeError: no such shape"):
        list(_open(small, batch=FixedBatch(3), collate=broken))


@pytest.mark.parametrize("options", [{"on_error": "ignore"}, {"threads": -1}, {"tail": "cut"}, {"lanes": 0}])
def test_arguments_that_make_no_sense(small: str, options: dict[str, Any]) -> None:
    """A wrong argument is an error that names it, when the dataset is made."""
    with pytest.raises(PlanError, match=next(iter(options))):
        _open(small, **options)


def test_empty_datasets(tmp_path: Path) -> None:
    """A dataset without samples yields nothing, epoch after epoch."""
    dataset = _open(write_numbered(tmp_path / "data", [0, 0]))
    assert len(dataset) == 0
    assert [list(dataset), list(dataset)] == [[], []]


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_leaving_early_leaves_nothing(small: str, threads: int, nothing_left: Callable[[], None]) -> None:
    """Breaking out of the loop leaves no thread behind."""
    for _ in _open(small, batch=FixedBatch(2), threads=threads):
        break
    nothing_left()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(0, 3))
def test_threads_change_nothing(small: str, size: int, threads: int) -> None:
    """Whatever the batch and the number of threads, the batches are those of the plan."""
    dataset = _open(small, batch=FixedBatch(size), tail="uneven", shuffle=True, threads=threads, ahead_bytes=1)
    assert numbers(dataset) == planned(dataset, 0)
