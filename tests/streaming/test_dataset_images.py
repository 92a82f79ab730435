"""Random crops and flips, layouts in memory and views, through whole datasets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from photos import jpeg
from reading import write_samples
from torch.utils.data import DataLoader

from streaming import FixedBatch, PlanError, StreamingDataset, StreamingLoader
from streaming.image import decode_image
from streaming.transforms import RandomFlip, RandomResizedCrop


def _open(source: object, **options: Any) -> StreamingDataset:
    return StreamingDataset(source, **{"threads": 0, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 photos of different sizes in three shards, some of them stored on their side."""
    folder = tmp_path_factory.mktemp("photos") / "data"
    folder.mkdir()
    for shard in range(3):
        numbers = range(8 * shard, 8 * shard + 8)
        images = [jpeg(30 + 3 * (i % 5), 40 + i, orientation=6 if i % 4 == 0 else 1) for i in numbers]
        members = [(f"{i:02d}.jpg", image) for i, image in zip(numbers, images, strict=True)]
        write_samples(folder, members, f"shard-{shard:03d}.tar")
    return folder


class NotePixels:
    """Adds the mean of the image, as a transform behind the built-in ones sees it."""

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:  # noqa: D102
        return sample | {"mean": sample["jpg"].float().mean().item(), "draw": rng.random()}


AUGMENT = [RandomResizedCrop(scale=(0.3, 1.0)), RandomFlip(), NotePixels()]


def _by_key(batches: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Each sample's image and numbers."""
    return {
        key: (batch["jpg"][i].clone(), batch["mean"][i].item(), batch["draw"][i].item())
        for batch in batches
        for i, key in enumerate(batch["__key__"])
    }


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(image, other[key][0]) and numbers == list(other[key][1:]) for key, (image, *numbers) in one.items()
    )


def test_augmentation_repeats_on_any_layout(photos: Path, forkserver: None) -> None:
    """Random crops and flips done while decoding give each sample of an epoch the same pixels, however many ranks,
    workers and threads read it, in whatever batches; and others in another epoch.
    """
    options = {"batch": FixedBatch(4, size=16), "shuffle": True, "seed": 9, "transform": AUGMENT}
    first = _open(photos, **options)
    wanted, later = _by_key(first), _by_key(first)
    assert len(wanted) == 24
    assert not _same(wanted, later)
    for threads in (1, 4):
        assert _same(wanted, _by_key(_open(photos, **(options | {"threads": threads}))))
    ranks = [_by_key(_open(photos, rank=rank, world_size=3, **options)) for rank in range(3)]
    assert _same(wanted, ranks[0] | ranks[1] | ranks[2])
    assert _same(wanted, _by_key(_open(photos, **(options | {"batch": FixedBatch(3, size=16), "shuffle": False}))))
    for workers in (0, 2):
        with StreamingLoader(_open(photos, **options), workers=workers, threads=2, start="forkserver") as loader:
            assert _same(wanted, _by_key(loader))


def test_augmentation_repeats_behind_a_resume(photos: Path) -> None:
    """A run that goes on from a state augments as the one that was not stopped."""
    options = {"batch": FixedBatch(4, size=16), "shuffle": True, "seed": 9, "transform": AUGMENT}
    whole = list(_open(photos, **options))
    resumed = _open(photos, **options)
    resumed.load_state_dict(whole[2]["__state__"])
    assert _same(_by_key(whole[3:]), _by_key(resumed))


def test_augmentation_by_hand_is_the_same(photos: Path) -> None:
    """Steps that lead the list are fused, those behind a function of the user's are done on decoded images; either way
    a flip gives the image or its mirror image.
    """
    fused = _open(photos, batch=None, transform=[RandomFlip()], seed=9)
    by_hand = _open(photos, batch=None, transform=[_as_it_is, RandomFlip()], seed=9)
    assert fused.recipe.steps == (RandomFlip(),)
    assert by_hand.recipe.steps == ()
    flipped = 0
    plain = {sample["__key__"]: sample["jpg"] for sample in _open(photos, batch=None)}
    for sample in fused:
        image = plain[sample["__key__"]]
        mirrored = not torch.equal(sample["jpg"], image)
        assert not mirrored or torch.equal(sample["jpg"], image.flip(-1))
        flipped += mirrored
    assert 0 < flipped < 24
    for sample in by_hand:
        image = plain[sample["__key__"]]
        assert torch.equal(sample["jpg"], image) or torch.equal(sample["jpg"], image.flip(-1))


def _as_it_is(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return sample


def _upside_down(data: bytes) -> torch.Tensor:
    return decode_image(data).flip(1)


def test_own_decoders_of_images_are_not_fused(photos: Path) -> None:
    """Where images are decoded by a function of the user's, steps get what that gives."""
    own = _open(photos, batch=None, decode={"jpg": _upside_down}, transform=[RandomFlip(1.0)], seed=9)
    assert own.recipe.steps == ()
    plain = {sample["__key__"]: sample["jpg"] for sample in _open(photos, batch=None)}
    for sample in own:
        assert torch.equal(sample["jpg"], plain[sample["__key__"]].flip(1).flip(-1))


def test_sizes_of_crops_are_checked_at_once(photos: Path) -> None:
    """A crop of another size than the batch's, or of none at all, is refused before anything is read."""
    with pytest.raises(PlanError, match="leave out the size of the crop"):
        _open(photos, batch=FixedBatch(4, size=16), transform=[RandomResizedCrop(17)])
    with pytest.raises(PlanError, match="without a size"):
        _open(photos, batch=FixedBatch(4), transform=[RandomResizedCrop()])


def test_channels_last(photos: Path) -> None:
    """channels_last changes where values lie in memory, and no value."""
    for transform in (None, AUGMENT):
        options = {"batch": FixedBatch(4, size=16), "seed": 9, "transform": transform}
        pairs = zip(_open(photos, **options), _open(photos, channels_last=True, **options), strict=True)
        for planes, pixels in pairs:
            assert planes["jpg"].is_contiguous()
            assert pixels["jpg"].is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(planes["jpg"], pixels["jpg"])
            assert planes["__key__"] == pixels["__key__"]


@pytest.mark.parametrize("threads", [0, 2])
def test_views(small: str, threads: int) -> None:
    """decode="views" gives memoryviews, in samples and in batches, which stay as they are when reading is over."""
    samples = list(_open(small, decode="views", tail="uneven", threads=threads))
    [first, *_] = _open(small, decode="views", batch=FixedBatch(37), threads=threads)
    assert {type(sample["txt"]) for sample in samples} == {type(text) for text in first["txt"]} == {memoryview}
    assert [bytes(sample["txt"]) for sample in samples] == [b"text %d" % n for n in range(37)]
    assert [bytes(text) for text in first["txt"]] == [b"text %d" % n for n in range(37)]


def test_views_can_not_leave_a_worker(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's DataLoader can't send views from its workers: that is refused there, with what to use instead; in the
    trainer's own process it can give them.
    """
    dataset = _open(small, decode="views", tail="uneven")
    assert len(list(DataLoader(dataset, batch_size=None))) == 37
    worker = SimpleNamespace(id=0, num_workers=1, seed=1)
    monkeypatch.setattr("streaming.dataset.get_worker_info", lambda: worker)
    with pytest.raises(PlanError, match=r"a DataLoader's worker can't send.*decode=False, num_workers=0"):
        iter(dataset)
