"""What becomes of an image's size: which part of it is taken, to what size that is scaled, and whether it is mirrored.

>>> Framing((224, 224)).box(375, 500)                       # what covers 224 x 224 is cut from the middle
(0, 62, 375, 375)
>>> Framing(longest=100).shape(375, 500)
(75, 100)
>>> reduction(1536, 1536, 224, 224)                         # such a part may be decoded at a quarter of its size
4

Pure geometry of whole pixels.  A box is (top, left, height, width).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from .plan.costs import capped

Box = tuple[int, int, int, int]

TRIES: Final = 10
"""Boxes that a random crop tries before it falls back to the middle of the image."""
DRAWS: Final = 2 * TRIES + 2
"""Numbers that a random crop needs: an area and a shape for each try, and a place."""


@dataclass(frozen=True, slots=True)
class Crop:
    """A random part of an image, drawn before the image's size is known.

    `area` is the least and the greatest part of the image's area, `ratio` the same for width / height, `draws` are
    `DRAWS` numbers in [0, 1).  With `mirrored`, the box is drawn on the mirror image.
    """

    area: tuple[float, float]
    ratio: tuple[float, float]
    draws: tuple[float, ...]
    mirrored: bool = False

    def box(self, height: int, width: int) -> Box:
        """Where the part lies in an image of this size: a function of the numbers drawn and nothing else.

        The area is uniform and the logarithm of the ratio is.  Where none of ten tries fits into the image, the largest
        part from the middle is taken whose ratio is allowed.
        """
        for i in range(0, 2 * TRIES, 2):
            area = height * width * _between(self.area, self.draws[i])
            ratio = self.ratio[0] * (self.ratio[1] / self.ratio[0]) ** self.draws[i + 1]
            h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < h <= height and 0 < w <= width:
                top, left = (int(self.draws[-2] * (height - h + 1)), int(self.draws[-1] * (width - w + 1)))
                return top, width - w - left if self.mirrored else left, h, w
        h = max(1, min(height, round(width / self.ratio[0])))
        w = max(1, min(width, round(height * self.ratio[1])))
        return (height - h) // 2, (width - w) // 2, h, w


@dataclass(frozen=True, slots=True)
class Framing:
    """What becomes of an image: scaled to cover `size` = (height, width) and cropped to it, or scaled down so that its
    longer side is `longest` at most.  `at` is where the crop lies, from 0 (left, above) to 1, down and across.

    With `crop` that part of the image is taken instead of all of it, or of what covers `size`; the part is scaled to
    `size` exactly.  With `flip` left and right change places at last.
    """

    size: tuple[int, int] | None = None
    longest: int | None = None
    at: tuple[float, float] = (0.5, 0.5)
    crop: Crop | None = None
    flip: bool = False

    def box(self, height: int, width: int) -> Box:
        """The part that is taken of an image of this size."""
        if self.crop is not None:
            return self.crop.box(height, width)
        if self.size is not None:
            return covering(height, width, *self.size, at=self.at)
        return 0, 0, height, width

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) to which a part of this size is scaled."""
        if self.size is not None:
            return self.size
        if self.longest is None or max(height, width) <= self.longest:
            return height, width
        h, w = capped(np.array([height]), np.array([width]), self.longest)
        return int(h[0]), int(w[0])


def covering(h: int, w: int, height: int, width: int, *, at: tuple[float, float] = (0.5, 0.5)) -> Box:
    """The largest part of an image h x w that has the shape height : width, to whole pixels."""
    scale = min(h / height, w / width)
    box_h, box_w = max(1, min(h, round(height * scale))), max(1, min(w, round(width * scale)))
    return _place(h - box_h, at[0]), _place(w - box_w, at[1]), box_h, box_w


def reduction(h: int, w: int, height: int, width: int) -> int:
    """By how much, 1, 2, 4 or 8, a part h x w can be made smaller as it is decoded and still hold height x width.

    Decoders are asked for the size that results; below 8 pixels several of their scales have the same.
    """
    if h < 2 * height or w < 2 * width or max(h, w) < 8:
        return 1
    return next(by for by in (8, 4, 2) if h >= by * height and w >= by * width)


def reduced(box: Box, by: int, height: int, width: int) -> Box:
    """A box in the image that is `by` times smaller, height x width, to the nearest pixel."""
    top, left, h, w = box
    h, w = min(height, (2 * h + by) // (2 * by)), min(width, (2 * w + by) // (2 * by))
    return min((2 * top + by) // (2 * by), height - h), min((2 * left + by) // (2 * by), width - w), h, w


def _place(room: int, at: float) -> int:
    """Which of the places 0 ... room `at` means, from 0 to 1: each has an equal part of it; of two middle ones the
    first.
    """
    return max(0, math.ceil((room + 1) * at) - 1)


def _between(bounds: tuple[float, float], at: float) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * at
