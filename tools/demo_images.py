"""Photo-like images with captions: coloured shapes over smooth noise.

>>> make_images(Path("images"), 2000, seed=7)      # images/captions.tsv and images/000000.jpg ...
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

SMALLEST: Final = 160
LARGEST: Final = 320
COLOURS: Final = {
    "red": (208, 44, 40),
    "orange": (236, 140, 36),
    "yellow": (238, 214, 60),
    "green": (52, 150, 70),
    "blue": (44, 84, 190),
    "purple": (130, 60, 160),
    "white": (236, 236, 232),
    "black": (26, 26, 30),
}
SHAPES: Final = {"circle": 0, "triangle": 3, "square": 4, "hexagon": 6}
"""Shape -> corners; 0: round."""


def make_images(folder: Path, count: int, *, seed: int) -> None:
    """Write `count` JPEG images of SMALLEST to LARGEST pixels a side, and captions.tsv (caption, tab, file)."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    names, shapes = list(COLOURS), list(SHAPES)
    grain = 5 * rng.standard_normal((2 * LARGEST, 2 * LARGEST, 3), dtype=np.float32)
    lines = []
    for number in range(count):
        colour, ground = (names[i] for i in rng.choice(len(names), size=2, replace=False))
        shape = shapes[rng.integers(len(shapes))]
        width, height = (int(side) for side in rng.integers(SMALLEST, LARGEST + 1, size=2))
        file = f"{number:06d}.jpg"
        picture = draw(rng, (width, height), (COLOURS[colour], COLOURS[ground]), shape, grain)
        picture.save(folder / file, quality=int(rng.integers(80, 93)))
        lines.append(f"{article(colour)} {colour} {shape} on {article(ground)} {ground} field\t{file}\n")
    (folder / "captions.tsv").write_text("".join(lines), encoding="utf-8")


def draw(
    rng: np.random.Generator,
    size: tuple[int, int],
    colours: tuple[tuple[int, ...], tuple[int, ...]],
    shape: str,
    grain: NDArray[np.float32],
) -> Image.Image:
    """One picture of `size` = (width, height) in the colours of shape and field; `grain` [h, w, 3] lies over it."""
    front, back = np.asarray(colours, dtype=np.float32)
    light = 1.0 + 0.3 * smooth_noise(rng, size)
    mask = np.asarray(outline(rng, size, shape), dtype=np.float32)[..., None] / 255
    top, left = rng.integers(0, LARGEST, size=2)
    pixels = (back + mask * (front - back)) * light + grain[top : top + size[1], left : left + size[0]]
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def outline(rng: np.random.Generator, size: tuple[int, int], shape: str) -> Image.Image:
    """A mask [height, width] with the shape somewhere in it, white on black."""
    mask = Image.new("L", size)
    radius = float(rng.uniform(0.2, 0.35) * min(size))
    x, y = (float(rng.uniform(radius, side - radius)) for side in size)
    pen = ImageDraw.Draw(mask)
    corners = SHAPES[shape]
    if corners:
        pen.regular_polygon((x, y, radius), corners, rotation=float(rng.uniform(0, 360)), fill=255)
    else:
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    return mask


def smooth_noise(rng: np.random.Generator, size: tuple[int, int]) -> NDArray[np.float32]:
    """[height, width, 1] of about -1 to 1, without edges."""
    small = Image.fromarray(rng.integers(0, 256, (5, 5), dtype=np.uint8))
    return np.asarray(small.resize(size, Image.Resampling.BICUBIC), dtype=np.float32)[..., None] / 127.5 - 1.0


def article(word: str) -> str:
    """a or an."""
    return "an" if word[0] in "aeiou" else "a"
