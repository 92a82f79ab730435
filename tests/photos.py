"""Pictures for tests of decoding and resizing."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]


def photo(height: int, width: int, seed: int = 0) -> Pixels:
    """A smooth picture with some noise: it keeps its look in a JPEG, and no two of its corners are alike."""
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([255 * x / width, 255 * y / height, 127 + 127 * np.sin(x / 9 + y / 7)], axis=-1)
    noise = np.random.default_rng(seed).normal(0, 6, base.shape)
    return np.clip(base + noise, 0, 255).astype(np.uint8)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The picture as a file of this kind."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def jpeg(height: int, width: int, *, orientation: int = 1, grey: bool = False, **options: Any) -> bytes:
    """A photo of height x width, as stored, as a JPEG."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(photo(height, width))
    return saved(image.convert("L") if grey else image, "JPEG", **{"quality": 90, "exif": exif, **options})


def to_pixels(image: torch.Tensor) -> Pixels:
    """An image tensor [3, height, width] as an array [height, width, 3]."""
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy())
