"""Scaling of images; Pillow is the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from photos import photo, to_pixels
from PIL import Image
from torch.nn.functional import interpolate

from streaming import resize
from streaming.framing import DRAWS, Crop, Framing
from streaming.plan.costs import capped
from streaming.resize import cover, frame, scale_into, scaled, shrink

SIDES = st.integers(1, 90)


@settings(max_examples=150, deadline=None)
@given(SIDES, SIDES, SIDES, SIDES, st.integers(0, 99))
def test_cover_equals_pillow(h: int, w: int, height: int, width: int, seed: int) -> None:
    """Scaling to cover and cropping at the centre give, within rounding, what Pillow's resize of that box gives."""
    pixels = np.random.default_rng(seed).integers(0, 256, (h, w, 3), dtype=np.uint8)
    out = cover(torch.from_numpy(pixels).permute(2, 0, 1), height, width)
    assert out.dtype == torch.uint8
    assert out.shape == (3, height, width)
    scale = min(h / height, w / width)
    box_h, box_w = max(1, min(h, round(height * scale))), max(1, min(w, round(width * scale)))
    top, left = (h - box_h) // 2, (w - box_w) // 2
    crop = Image.fromarray(pixels).crop((left, top, left + box_w, top + box_h))
    expected = np.asarray(crop.resize((width, height), Image.Resampling.BILINEAR))
    assert np.abs(to_pixels(out).astype(int) - expected).max() <= 2


def test_cover_keeps_what_fits() -> None:
    """A picture that has the size already is not touched, and a larger one of the same shape is scaled as a whole."""
    pixels = torch.from_numpy(photo(30, 40)).permute(2, 0, 1)
    assert torch.equal(cover(pixels, 30, 40), pixels)
    assert torch.equal(cover(pixels, 30, 20), pixels[:, :, 10:30])
    half = to_pixels(cover(pixels, 15, 20))
    expected = Image.fromarray(photo(30, 40)).resize((20, 15), Image.Resampling.BILINEAR)
    assert np.abs(half.astype(int) - np.asarray(expected)).max() <= 2


PLACES = st.floats(0, 1, exclude_max=True)


@settings(max_examples=60, deadline=None)
@given(SIDES, SIDES, SIDES, SIDES, PLACES, PLACES)
def test_a_crop_may_lie_anywhere(h: int, w: int, height: int, width: int, down: float, across: float) -> None:
    """Wherever it lies, a crop is what scaling that box gives; it is as large as at the centre and inside the picture,
    and moves along one side at most.
    """
    pixels = np.random.default_rng(0).integers(0, 256, (h, w, 3), dtype=np.uint8)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    out = to_pixels(cover(image, height, width, at=(down, across)))
    assert out.shape == (height, width, 3)
    scale = min(h / height, w / width)
    box_h, box_w = max(1, min(h, round(height * scale))), max(1, min(w, round(width * scale)))
    assert box_h == h or box_w == w
    boxes = []
    for top in {max(0, min(h - box_h, round((h - box_h + 1) * down) + d)) for d in (-1, 0, 1)}:
        for left in {max(0, min(w - box_w, round((w - box_w + 1) * across) + d)) for d in (-1, 0, 1)}:
            crop = Image.fromarray(pixels).crop((left, top, left + box_w, top + box_h))
            boxes.append(np.asarray(crop.resize((width, height), Image.Resampling.BILINEAR)))
    assert min(np.abs(out.astype(int) - box).max() for box in boxes) <= 2


def test_each_place_of_a_crop_is_as_likely() -> None:
    """The places of a crop, from the first to the last, have equal parts of 0 to 1 each; 0.5 is the centre."""
    row = torch.arange(11, dtype=torch.uint8).repeat(3, 4, 1)
    parts = np.arange(800) / 800 + 1 / 1600
    lefts = [int(cover(row, 4, 4, at=(0.5, across))[0, 0, 0]) for across in parts]
    assert np.bincount(lefts).tolist() == [100] * 8
    tops = [int(cover(row.transpose(1, 2), 4, 4, at=(down, 0.5))[0, 0, 0]) for down in parts]
    assert tops == lefts
    assert cover(row, 4, 4, at=(0, 0))[0, 0].tolist() == [0, 1, 2, 3]
    assert cover(row, 4, 4, at=(1, 1))[0, 0].tolist() == [7, 8, 9, 10]
    assert torch.equal(cover(row, 4, 5), row[:, :, 3:8])


@settings(max_examples=60, deadline=None)
@given(SIDES, SIDES, st.integers(1, 100))
def test_pictures_shrink_to_what_plans_count(h: int, w: int, longest: int) -> None:
    """A picture above `longest` is scaled to the very size with which plans count it; others are not touched."""
    pixels = np.random.default_rng(0).integers(0, 256, (h, w, 3), dtype=np.uint8)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    out = shrink(image, longest)
    height, width = (int(side[0]) for side in capped(np.array([h]), np.array([w]), longest))
    assert out.shape == (3, height, width)
    assert max(height, width) == min(longest, max(h, w))
    assert out.dtype == torch.uint8
    if max(h, w) <= longest:
        assert out is image
    expected = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))
    assert np.abs(to_pixels(out).astype(int) - expected).max() <= 2


def _image(height: int, width: int, channels: int = 3) -> torch.Tensor:
    pixels = np.random.default_rng(height * width).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return torch.from_numpy(pixels).permute(2, 0, 1)


@pytest.fixture(params=["quick", "no out", "other values", "error"])
def changed_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernel that writes into a tensor: as it is, and changed in ways that a later torch might have."""
    public = torch._C._nn._upsample_bilinear2d_aa

    def changed(*arguments: Any, **named: Any) -> torch.Tensor:
        result: torch.Tensor = public(*arguments[:4])
        if "out" not in named:
            return result
        if request.param == "other values":
            return named["out"].copy_(result + 1)
        raise TypeError("no out") if request.param == "no out" else RuntimeError("not for uint8")

    if request.param != "quick":
        monkeypatch.setattr(torch._C._nn, "_upsample_bilinear2d_aa", changed)
    resize.kernel.cache_clear()
    yield
    resize.kernel.cache_clear()


def test_the_quick_kernel_is_used() -> None:
    """The torch that is installed has the quick kernel."""
    assert resize.kernel() is not resize._through_copy


@pytest.mark.usefixtures("changed_kernel")
@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("size", [(30, 40), (30, 20), (17, 40), (55, 70), (1, 1), (40, 60)])
def test_scaling_into_memory(size: tuple[int, int], channels: int) -> None:
    """Of all pixels or a part, into planes, channels-last or rows apart: what is written is what the public function
    gives, also where the quick kernel is not what it was.
    """
    whole = np.ascontiguousarray(_image(40, 60, channels).permute(1, 2, 0).numpy())
    for pixels in (whole, whole[5:35], whole[5:35, 10:50], whole[::2]):
        image = torch.from_numpy(pixels).permute(2, 0, 1)
        expected = interpolate(image[None], size=size, mode="bilinear", antialias=True)[0]
        planes = torch.zeros((2, channels, *size), dtype=torch.uint8)
        apart = torch.zeros((channels, size[0] + 3, size[1] + 5), dtype=torch.uint8)[:, 2:-1, 4:-1]
        for out in (planes[1], planes.contiguous(memory_format=torch.channels_last)[1], apart):
            scale_into(pixels, out)
            assert torch.equal(out, expected)
        assert not planes[0].any()


@pytest.mark.parametrize("size", [(30, 40), (30, 20), (55, 70), (1, 1)])
def test_scaling_planes(size: tuple[int, int]) -> None:
    """Planes are scaled to the same pixels as channels side by side, to a single one too."""
    image = _image(40, 60)
    assert torch.equal(scaled(image.contiguous(), *size), scaled(image, *size))
    assert torch.equal(scaled(image.contiguous()[:, ::2], *size), scaled(image[:, ::2], *size))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_images_of_numbers(dtype: torch.dtype) -> None:
    """Images of floating-point numbers are framed too and keep their type."""
    image = _image(40, 60)
    framing = Framing((20, 20), flip=True, crop=Crop((0.5, 0.5), (1, 1), (0.5,) * DRAWS))
    out = frame(image.to(dtype), framing)
    assert out.dtype == dtype
    assert (out.float() - frame(image, framing).float()).abs().max() <= 1.5


def test_framing_an_image() -> None:
    """An image is cropped first, then scaled, then mirrored; one that is not changed is given as it is."""
    image = _image(40, 60)
    crop = Crop((0.25, 0.25), (1.5, 1.5), (0.5,) * DRAWS)
    top, left, h, w = crop.box(40, 60)
    part = image[:, top : top + h, left : left + w]
    assert frame(image, Framing()) is image
    assert torch.equal(frame(image, Framing(crop=crop)), part)
    assert torch.equal(frame(image, Framing((8, 9), crop=crop)), scaled(part, 8, 9))
    assert torch.equal(frame(image, Framing((8, 9), crop=crop, flip=True)), scaled(part, 8, 9).flip(-1))
    assert torch.equal(frame(image, Framing(longest=10, crop=crop)), shrink(part, 10))
