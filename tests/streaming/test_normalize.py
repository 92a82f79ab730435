"""Pixels to numbers, for batches of each kind."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from streaming import BatchError, FieldMissing, PlanError
from streaming.normalize import Normalize
from streaming.ragged import packed, padded, views

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STEPS = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""How far a value between -3 and 3 may be from the exact one."""


def _images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def _exact(images: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (MEAN, STD))
    return (images.double() / 255 - mean) / std


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", STEPS)
def test_values_and_layout(dtype: torch.dtype, layout: torch.memory_format) -> None:
    """Numbers are exact to their type's precision, and lie in memory as the pixels did, which stay as they are."""
    images = _images(4, 3, 20, 30).contiguous(memory_format=layout)
    kept = images.clone()
    out = Normalize(dtype=dtype)(images)
    assert out.dtype == dtype
    assert out.is_contiguous(memory_format=layout)
    assert (out.double() - _exact(images)).abs().max() <= STEPS[dtype]
    assert torch.equal(images, kept)


@pytest.mark.parametrize("dtype", STEPS)
def test_every_pixel_value(dtype: torch.dtype) -> None:
    """Each of the 256 values becomes the float32 result rounded to the type, whatever stands beside it."""
    images = torch.arange(256, dtype=torch.uint8).repeat(3, 1).view(1, 3, 16, 16)
    assert torch.equal(Normalize(dtype=dtype)(images), Normalize()(images).to(dtype))
    assert torch.equal(Normalize(mean=None, dtype=dtype)(images), (images.float() / 255).to(dtype))


def test_zero_to_one() -> None:
    """Without a mean, pixels become numbers from 0 to 1 and no more."""
    out = Normalize(mean=None)(_images(2, 3, 9, 9))
    assert torch.equal(out, _images(2, 3, 9, 9).float() / 255)


def test_batches() -> None:
    """In a batch the uint8 images are replaced, in a new dict; all else is passed on."""
    batch = {
        "jpg": _images(2, 3, 8, 8),
        "mask": _images(2, 1, 8, 8),
        "codes": _images(2, 40),
        "depth": torch.rand(2, 3, 8, 8),
        "cls": torch.tensor([1, 2]),
        "txt": ["a", "b"],
    }
    out = Normalize()(batch)
    assert list(out) == list(batch)
    assert torch.equal(out["jpg"], Normalize()(batch["jpg"]))
    assert batch["jpg"].dtype == torch.uint8
    for field in ("mask", "codes", "depth", "cls", "txt"):
        assert out[field] is batch[field]


def test_named_fields() -> None:
    """Only fields that are named are replaced."""
    batch = {"left": _images(2, 3, 8, 8), "right": _images(2, 3, 8, 8, seed=1)}
    out = Normalize(fields=["right"])(batch)
    assert out["left"] is batch["left"]
    assert torch.equal(out["right"], Normalize()(batch["right"]))


def test_one_image() -> None:
    """A single image is normalised as one of a batch."""
    images = _images(2, 3, 8, 8)
    assert torch.equal(Normalize()(images[1]), Normalize()(images)[1])


def _samples(sizes: list[tuple[int, int]]) -> list[dict[str, Any]]:
    return [{"__key__": str(i), "jpg": _images(3, h, w, seed=i)} for i, (h, w) in enumerate(sizes)]


SIZES = [(4, 9), (7, 3), (7, 9), (1, 1)]


@pytest.mark.parametrize("dtype", STEPS)
def test_padded_batches(dtype: torch.dtype) -> None:
    """Each image of a padded batch is normalised as by itself, and all around it is 0."""
    batch = padded(_samples(SIZES), images=True)
    out = Normalize(dtype=dtype)(batch)
    assert out["jpg.sizes"] is batch["jpg.sizes"]
    for image, sample, (h, w) in zip(out["jpg"], _samples(SIZES), SIZES, strict=True):
        assert torch.equal(image[:, :h, :w], Normalize(dtype=dtype)(sample["jpg"]))
        image[:, :h, :w] = 0
        assert not image.any()


@pytest.mark.parametrize("mean", [MEAN, None])
@pytest.mark.parametrize("dtype", STEPS)
def test_packed_batches(dtype: torch.dtype, mean: tuple[float, ...] | None) -> None:
    """Each image of a packed batch is normalised as by itself."""
    step = Normalize(mean=mean, dtype=dtype)
    batch = packed(_samples(SIZES), images=True)
    out = step(batch)
    assert out["jpg"].dtype == dtype
    assert out["jpg"].shape == batch["jpg"].shape
    for image, sample in zip(views(out, "jpg"), _samples(SIZES), strict=True):
        assert torch.equal(image, step(sample["jpg"]))


def test_packed_images_of_other_channels() -> None:
    """A packed batch whose images have other than three channels is refused."""
    samples = [{"__key__": "a", "jpg": _images(1, 4, 4)}]
    with pytest.raises(BatchError, match=r"4 x 4 pixels has 16 values.*field jpg"):
        Normalize()(packed(samples, images=True))


@pytest.mark.parametrize(
    "value", [torch.rand(2, 3, 8, 8), _images(2, 1, 8, 8), _images(2, 3), _images(48), ["a"], torch.zeros(0)]
)
def test_what_is_no_image(value: Any) -> None:
    """A field that was named and holds no uint8 images is an error that names it; so is a batch without any."""
    with pytest.raises(BatchError, match=r"Normalize takes uint8 images.*field jpg"):
        Normalize(fields=["jpg"])({"jpg": value})
    with pytest.raises(BatchError, match="no uint8 images"):
        Normalize()({"jpg": value})
    if isinstance(value, torch.Tensor):
        with pytest.raises(BatchError, match="takes uint8 images"):
            Normalize()(value)


def test_fields_that_are_not_there() -> None:
    """A named field that a batch lacks is an error that lists what there is."""
    with pytest.raises(FieldMissing, match=r"no field 'png'.*it has jpg, txt"):
        Normalize(fields=["png"])({"jpg": _images(1, 3, 2, 2), "txt": ["a"]})


@pytest.mark.parametrize(
    "arguments",
    [
        {"dtype": torch.uint8},
        {"dtype": torch.float64},
        {"mean": (0.5, 0.5)},
        {"std": None},
        {"std": (0.1, 0.0, 0.1)},
        {"std": (0.1, float("nan"), 0.1)},
        {"fields": "jpg"},
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any]) -> None:
    """Arguments are checked when the step is made, and the error names the one."""
    with pytest.raises(PlanError, match=f"Normalize\\({next(iter(arguments))}="):
        Normalize(**arguments)


def test_reaches_other_processes() -> None:
    """The step can be pickled, and lists count as tuples."""
    step = Normalize([0.5, 0.5, 0.5], [0.25, 0.5, 1], torch.bfloat16, ["jpg"])
    assert pickle.loads(pickle.dumps(step)) == step
    assert step.mean == (0.5, 0.5, 0.5)
    assert Normalize(MEAN, STD) == Normalize()
