"""Datasets read by budgets of every kind, and what their batches should hold, worked out from each sample alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import IMAGE, RATE, Entry, entries, key, read_wav

from streaming import CostBudget, PixelBudget, StreamingDataset
from streaming.image import Framing, decode_image
from streaming.plan import Groups
from streaming.ragged import views

Budget = PixelBudget | CostBudget
BUDGETS: dict[str, Budget] = {
    "bucket": PixelBudget(4000, multiple=8),
    "given": PixelBudget(6000, buckets=[(8, 8), (12, 24), (24, 12), (40, 40)]),
    "random": PixelBudget(5000, buckets=[(16, 16), (24, 48), (48, 24)], upscale=True, crop="random"),
    "pad": PixelBudget(12_000, mode="pad"),
    "longest": PixelBudget(8000, mode="pad", longest=40),
    "pack": PixelBudget(12_000, mode="pack"),
    "pack longest": PixelBudget(8000, mode="pack", longest=30),
    "tokens": CostBudget("tokens", 150),
    "seconds": CostBudget("seconds", 0.45),
    "tokens packed": CostBudget("tokens", 150, pad=False),
}
EVERY = pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
SAMPLES = entries(90)
"""The samples of the dataset that most tests of budgets read."""


def open_budget(source: str | Path, batch: Budget, **options: Any) -> StreamingDataset:
    """A dataset with a budget, shuffled, without threads, in which every sample comes."""
    fields: Any = {"image": IMAGE, "cls": "cls"}
    if isinstance(batch, CostBudget):
        fields = ["cls", "npy", "feat.npy", "wav"]
    options = {"fields": fields, "decode": {"wav": read_wav}, "threads": 0, "shuffle": True, "seed": 4, **options}
    return StreamingDataset(source, **{"batch": batch, "tail": "uneven", **options})


def numbers_of(batches: Iterable[dict[str, Any]]) -> list[int]:
    """The numbers of the samples of all batches, one after the other."""
    return [n for batch in batches for n in batch["cls"].tolist()]


def same(one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> bool:
    """Whether batches are equal in everything but their states and whether they are repeats."""

    def equal(a: Any, b: Any) -> bool:
        return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)

    def shown(batch: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in batch.items() if name not in ("__state__", "__repeat__")}

    pairs = [(shown(a), shown(b)) for a, b in zip(one, other, strict=True)]
    return all(a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a) for a, b in pairs)


# What batches hold, compared with each sample by itself.


def check_batches(
    dataset: StreamingDataset, batches: Sequence[dict[str, Any]], samples: Sequence[Entry] = SAMPLES
) -> None:
    """Each batch is dense or ragged as its mode says, holds what its samples hold, and is within its budget."""
    budget = dataset.plan.batch
    for batch in batches:
        assert batch["cls"].dtype == torch.int64
        assert batch["__key__"] == [key(n) for n in batch["cls"].tolist()]
        inside = [samples[n] for n in batch["cls"].tolist()]
        if isinstance(budget, CostBudget):
            _check_arrays(budget, batch, inside)
        else:
            assert isinstance(budget, PixelBudget)
            one = {"bucket": _check_bucket, "pad": _check_padded, "pack": _check_packed}[budget.mode]
            one(dataset, budget, batch, inside)


def _check_bucket(dataset: StreamingDataset, budget: PixelBudget, batch: Any, inside: Sequence[Entry]) -> None:
    images = batch["image"]
    n, height, width = images.shape[0], images.shape[2], images.shape[3]
    assert isinstance(dataset.plan.groups, Groups)
    assert (height, width) in dataset.plan.groups.shapes
    assert images.dtype == torch.uint8
    assert images.shape == (len(inside), 3, height, width)
    assert n * height * width <= budget.max_pixels
    assert batch.keys() == {"image", "cls", "__key__", "__state__"}
    for image, entry in zip(images, inside, strict=True):
        if not budget.upscale:
            assert entry.height >= height
            assert entry.width >= width
        if budget.crop == "center":
            assert torch.equal(image, decode_image(entry.image, Framing((height, width))))
        else:
            assert any(torch.equal(image, crop) for crop in _crops(entry, height, width))


def _crops(entry: Entry, height: int, width: int) -> Iterator[torch.Tensor]:
    """An image cut to height x width at every place along the side that is too long."""
    for place in np.linspace(0, 1, 2 + max(entry.height, entry.width)):
        yield decode_image(entry.image, Framing((height, width), at=(place, place)))


def _check_padded(dataset: StreamingDataset, budget: PixelBudget, batch: Any, inside: Sequence[Entry]) -> None:
    alone = [image_of(entry, budget) for entry in inside]
    height, width = max(image.shape[1] for image in alone), max(image.shape[2] for image in alone)
    assert batch["image"].shape == (len(alone), 3, height, width)
    assert batch["image"].dtype == torch.uint8
    assert batch["image.sizes"].tolist() == [list(image.shape[1:]) for image in alone]
    assert len(alone) * height * width <= budget.max_pixels or len(alone) == 1
    for slot, image in zip(batch["image"], alone, strict=True):
        assert torch.equal(slot[:, : image.shape[1], : image.shape[2]], image)
        assert slot.sum(dtype=torch.int64) == image.sum(dtype=torch.int64), "all around the image is 0"


def _check_packed(dataset: StreamingDataset, budget: PixelBudget, batch: Any, inside: Sequence[Entry]) -> None:
    alone = [image_of(entry, budget) for entry in inside]
    assert batch["image"].dtype == torch.uint8
    assert batch["image"].shape == (sum(image.numel() for image in alone),)
    assert batch["image"].numel() <= 3 * budget.max_pixels or len(alone) == 1
    assert batch["image.offsets"].tolist() == np.cumsum([0, *(image.numel() for image in alone)]).tolist()
    assert batch["image.sizes"].tolist() == [list(image.shape[1:]) for image in alone]
    for view, image in zip(views(batch, "image"), alone, strict=True):
        assert torch.equal(view, image)
        assert view.untyped_storage().data_ptr() == batch["image"].untyped_storage().data_ptr()


def image_of(entry: Entry, budget: PixelBudget) -> torch.Tensor:
    """The image decoded by itself, scaled down where the budget says so."""
    if budget.longest is None:
        return decode_image(entry.image)
    image = decode_image(entry.image, Framing(longest=budget.longest))
    assert max(image.shape[1:]) == min(max(entry.height, entry.width), budget.longest)
    return image


def _check_arrays(budget: CostBudget, batch: Any, inside: Sequence[Entry]) -> None:
    costs = [cost_of(budget, entry) for entry in inside]
    assert (len(costs) * max(costs) if budget.pad else sum(costs)) <= budget.max_cost or len(costs) == 1
    fields = {"npy": ("tokens", 0), "feat.npy": ("features", 0), "wav": ("sound", -1)}
    for field, (name, axis) in fields.items():
        alone = [torch.from_numpy(getattr(entry, name)) for entry in inside]
        alone = [sound[None] for sound in alone] if field == "wav" else alone
        lengths = [value.shape[axis] for value in alone]
        whole = batch[field]
        if budget.pad:
            assert batch[f"{field}.lengths"].tolist() == lengths
            assert whole.shape[axis if axis else 1] == max(lengths)
            parts = [slot.narrow(axis, 0, length) for slot, length in zip(whole, lengths, strict=True)]
            assert whole.count_nonzero() == sum(value.numel() for value in alone), "the rest is 0"
        else:
            assert batch[f"{field}.offsets"].tolist() == np.cumsum([0, *lengths]).tolist()
            parts = list(whole.split(lengths, dim=axis))
        assert all(torch.equal(part, value) for part, value in zip(parts, alone, strict=True))


def cost_of(budget: CostBudget, entry: Entry) -> float:
    """What a sample costs."""
    frames = len(entry.sound)
    return {"tokens": len(entry.tokens), "frames": frames, "seconds": frames / RATE}[budget.column]
