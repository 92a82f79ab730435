"""Boxes, sizes and scales, in whole pixels."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.framing import DRAWS, TRIES, Crop, Framing, covering, reduced, reduction

SIDE = st.integers(1, 3000)
DRAW = st.floats(0, 1, exclude_max=True)
DRAWN = st.lists(DRAW, min_size=DRAWS, max_size=DRAWS).map(tuple)
AREA = st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(lambda pair: (min(pair), max(pair)))
RATIO = st.tuples(st.floats(0.2, 5), st.floats(0.2, 5)).map(lambda pair: (min(pair), max(pair)))


@settings(deadline=None)
@given(SIDE, SIDE, AREA, RATIO, DRAWN)
def test_random_boxes_lie_inside(
    h: int, w: int, area: tuple[float, float], ratio: tuple[float, float], draws: tuple[float, ...]
) -> None:
    """A random box lies inside the image, has at least a pixel, and its mirror image is that of the mirrored crop."""
    top, left, box_h, box_w = Crop(area, ratio, draws).box(h, w)
    assert 0 <= top <= top + box_h <= h
    assert 0 <= left <= left + box_w <= w
    assert min(box_h, box_w) >= 1
    mirrored = Crop(area, ratio, draws, mirrored=True).box(h, w)
    if any(_fits(i, h, w, area, ratio, draws) for i in range(TRIES)):
        assert mirrored == (top, w - left - box_w, box_h, box_w)
    else:
        assert mirrored == (top, left, box_h, box_w)


def _fits(
    i: int, h: int, w: int, area: tuple[float, float], ratio: tuple[float, float], draws: tuple[float, ...]
) -> bool:
    pixels = h * w * (area[0] + (area[1] - area[0]) * draws[2 * i])
    shape = math.exp(math.log(ratio[0]) + math.log(ratio[1] / ratio[0]) * draws[2 * i + 1])
    return 0 < round(math.sqrt(pixels * shape)) <= w and 0 < round(math.sqrt(pixels / shape)) <= h


def test_random_boxes_are_spread_evenly() -> None:
    """Areas are uniform, shapes are in their logarithm, and so are places: each tenth gets its share."""
    draws = np.random.default_rng(0).random((20_000, DRAWS))
    boxes = np.array([Crop((0.1, 0.4), (0.5, 2.0), tuple(d)).box(3000, 3000) for d in draws.tolist()])
    top, left, h, w = boxes.T
    parts = {
        "area": (h * w / 9e6 - 0.1) / 0.3,
        "ratio": (np.log2(w / h) + 1) / 2,
        "top": top / (3001 - h),
        "left": left / (3001 - w),
    }
    for name, part in parts.items():
        counts, _ = np.histogram(part, bins=10, range=(-0.001, 1.001))
        assert counts.sum() == 20_000, name
        assert (np.abs(counts - 2000) < 250).all(), name  # six standard deviations


def test_where_no_box_fits() -> None:
    """Images too long for every try give their middle, in the allowed shape that is nearest to theirs."""
    half = (0.5,) * DRAWS
    assert Crop((1, 1), (0.5, 2), half).box(100, 1000) == (0, 400, 100, 200)
    assert Crop((1, 1), (0.5, 2), half).box(1000, 100) == (400, 0, 200, 100)
    assert Crop((1, 1), (3, 4), half).box(100, 100) == (33, 0, 33, 100)
    assert Crop((0.001, 0.001), (1, 1), half).box(2, 2) == (0, 0, 2, 2), "boxes without a pixel"


def test_a_later_try() -> None:
    """The first of ten tries that fits is taken."""
    draws = [0.999] * DRAWS
    draws[6:8] = [0.0, 0.5]
    assert Crop((0.25, 1), (0.25, 4), tuple(draws)).box(100, 100) == (50, 50, 50, 50)


@settings(max_examples=300, deadline=None)
@given(SIDE, SIDE, SIDE, SIDE, DRAW, DRAW)
def test_covering_boxes(h: int, w: int, height: int, width: int, down: float, across: float) -> None:
    """A covering box spans the image in one direction, lies inside, and has the wanted shape to within a pixel."""
    top, left, box_h, box_w = covering(h, w, height, width, at=(down, across))
    assert 0 <= top <= top + box_h <= h
    assert 0 <= left <= left + box_w <= w
    assert box_h == h or box_w == w
    scale = min(h / height, w / width)
    assert abs(box_h - height * scale) <= 1
    assert abs(box_w - width * scale) <= 1


@settings(max_examples=500, deadline=None)
@given(st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 700), st.integers(1, 700), DRAW, DRAW)
def test_smaller_decoding_is_never_too_small(
    h: int, w: int, height: int, width: int, down: float, across: float
) -> None:
    """The box in the smaller image lies inside it, is no smaller than what is wanted, and is the same part to within a
    pixel of the smaller image.
    """
    box = covering(h, w, height, width, at=(down, across))
    by = reduction(*box[2:], height, width)
    assert by == 1 or (box[2] >= by * height and box[3] >= by * width)
    assert by == 8 or max(box[2:]) < 8 or box[2] < 2 * by * height or box[3] < 2 * by * width
    small_h, small_w = -(-h // by), -(-w // by)
    top, left, box_h, box_w = reduced(box, by, small_h, small_w)
    assert 0 <= top <= top + box_h <= small_h
    assert 0 <= left <= left + box_w <= small_w
    if by > 1:
        assert box_h >= height
        assert box_w >= width
    for ours, theirs in zip((top, left, box_h, box_w), box, strict=True):
        assert abs(ours - theirs / by) <= 1


def test_framings_say_size_and_place() -> None:
    """A framing without anything keeps an image; `longest` scales it down; `crop` goes before what covers `size`."""
    crop = Crop((0.25, 0.25), (1, 1), (0.5,) * DRAWS)
    assert Framing().box(30, 40) == (0, 0, 30, 40)
    assert Framing().shape(30, 40) == (30, 40)
    assert Framing(longest=20).shape(30, 40) == (15, 20)
    assert Framing(longest=50).shape(30, 40) == (30, 40)
    assert Framing((10, 10)).box(30, 40) == (0, 5, 30, 30)
    assert Framing((10, 10), at=(0, 0)).box(30, 40) == (0, 0, 30, 30)
    assert Framing((10, 20), crop=crop).box(40, 40) == (10, 10, 20, 20)
    assert Framing((10, 20), crop=crop).shape(20, 20) == (10, 20)
