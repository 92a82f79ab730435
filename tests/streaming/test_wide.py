"""Pixels of four bytes, against what numpy makes of single bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.resize import scaled
from streaming.wide import WidePixels

SIDE = st.integers(1, 40)


def _pixels(height: int, width: int) -> tuple[WidePixels, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    """Pixels, and their bytes [height, width, 4]."""
    pixels = WidePixels(height, width)
    values = np.random.default_rng(height * width).integers(0, 256, (height, width, 4), dtype=np.uint8)
    pixels.bytes[: values.size] = values.ravel()
    return pixels, values


@settings(deadline=None)
@given(SIDE, SIDE, st.data())
def test_unpacking_any_box(h: int, w: int, data: st.DataObject) -> None:
    """Red, green and blue of any box come as planes, or in whatever layout the tensor has, and nothing beside it is
    written.
    """
    pixels, values = _pixels(h, w)
    top, left = data.draw(st.integers(0, h - 1)), data.draw(st.integers(0, w - 1))
    box_h, box_w = data.draw(st.integers(1, h - top)), data.draw(st.integers(1, w - left))
    expected = torch.from_numpy(values[top : top + box_h, left : left + box_w, :3]).permute(2, 0, 1)
    batch = torch.full((3, 3, box_h, box_w), 7, dtype=torch.uint8)
    for slots in (batch, batch.contiguous(memory_format=torch.channels_last)):
        pixels.unpack(slots[1], (top, left, box_h, box_w))
        assert torch.equal(slots[1], expected)
        assert (slots[::2] == 7).all()
    whole = torch.empty((3, h, w), dtype=torch.uint8)
    pixels.unpack(whole)
    assert torch.equal(whole, torch.from_numpy(values[..., :3]).permute(2, 0, 1))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_scaling(layout: torch.memory_format) -> None:
    """Scaled pixels are those that three channels alone give, from all or from a part."""
    pixels, values = _pixels(50, 70)
    image = torch.from_numpy(values[..., :3].copy()).permute(2, 0, 1)
    for size in ((30, 40), (50, 70), (80, 20), (1, 1)):
        out = torch.zeros((2, 3, *size), dtype=torch.uint8).contiguous(memory_format=layout)
        pixels.scale_into(out[1])
        assert torch.equal(out[1], scaled(image, *size))
        pixels.scale_into(out[1], (3, 5, 30, 40))
        assert torch.equal(out[1], scaled(image[:, 3:33, 5:45], *size))
        assert not out[0].any()


def test_turning() -> None:
    """A turned copy of a box is that of single bytes, and has its own memory."""
    pixels, values = _pixels(5, 9)
    turned = pixels.turned(lambda a: a.swapaxes(0, 1)[:, ::-1], (2, 1, 6, 3))
    expected = values.transpose(1, 0, 2)[:, ::-1][2:8, 1:4]
    pixels.bytes[:] = 0
    assert np.array_equal(turned.image()[0].permute(1, 2, 0).numpy(), expected)
    assert turned.words.shape == (6, 3)
