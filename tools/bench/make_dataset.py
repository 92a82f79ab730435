"""Make a dataset of photo-like JPEGs with captions, as shards with an index, for peers.py and budgets.py.

    python tools/bench/make_dataset.py bench-data/cc3m
    python tools/bench/make_dataset.py bench-data/imagenet --kind imagenet --samples 2000

Pictures are noise with the spectrum of photographs (amplitude falls as 1/frequency) over soft shapes with sharp edges,
so that they take about as many bytes, and about as long to decode, as photographs do at the same size and quality.  A
few are drawn; each sample is a crop of one at another place, turned and toned differently, so no two files are equal.
The same arguments give the same bytes with the same versions of numpy and Pillow.
"""

from __future__ import annotations

import argparse
import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shardwriter import ShardWriter

Pixels = NDArray[np.uint8]
DRAWN = 32
SIDE = 640
WORDS = "a the two of red old small wooden young dog cat man woman street river house boat tree table sky near on"


@dataclass(frozen=True)
class Kind:
    """Sides [low, high] of the pictures in pixels, their JPEG quality, and how strong their texture is."""

    width: tuple[int, int]
    height: tuple[int, int]
    quality: int
    texture: float


KINDS = {
    "cc3m": Kind((192, 320), (192, 320), 90, 16.0),
    "imagenet": Kind((500, 500), (333, 417), 95, 22.0),
    "imagenet-q85": Kind((500, 500), (333, 417), 85, 20.0),
}


def draw(rng: np.random.Generator, texture: float) -> Pixels:
    """One picture, uint8 [SIDE, SIDE, 3]."""
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32) / SIDE
    picture = np.empty((SIDE, SIDE, 3), np.float32)
    picture[:] = rng.uniform(60, 190, 3)
    picture += (x * rng.uniform(-60, 60) + y * rng.uniform(-60, 60))[..., None]
    for _ in range(12):
        cx, cy, rx, ry = *rng.uniform(0, 1, 2), *rng.uniform(0.03, 0.25, 2)
        inside = ((x - cx) / rx) ** 2 + ((y - cy) / ry) ** 2 < 1
        picture[inside] += rng.uniform(-70, 70, 3).astype(np.float32)
    grey, hue = noise(rng), noise(rng)
    for channel in range(3):
        picture[..., channel] += texture * (grey + 0.25 * np.roll(hue, 200 * channel, axis=0))
    return np.clip(picture, 0, 255).astype(np.uint8)


def noise(rng: np.random.Generator) -> NDArray[np.float32]:
    """[SIDE, SIDE], mean 0 and deviation 1, its amplitude falling as 1/frequency."""
    white = np.fft.rfft2(rng.standard_normal((SIDE, SIDE), dtype=np.float32))
    frequency = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE)[None])
    frequency[0, 0] = np.inf
    field = np.fft.irfft2(white / frequency, s=(SIDE, SIDE))
    return np.asarray(field / field.std(), np.float32)


def sample(i: int, drawn: list[Pixels], kind: Kind, seed: int) -> dict[str, Any]:
    """Sample number i: a crop of a picture, mirrored or not, with a tone and a caption of its own."""
    rng = np.random.default_rng([seed, 1, i])
    width, height = (int(rng.integers(low, high + 1)) for low, high in (kind.width, kind.height))
    left, top = int(rng.integers(SIDE - width + 1)), int(rng.integers(SIDE - height + 1))
    crop = drawn[int(rng.integers(len(drawn)))][top : top + height, left : left + width]
    if rng.random() < 0.5:
        crop = crop[:, ::-1]
    tone = np.clip(np.arange(256) * rng.uniform(0.85, 1.15) + rng.uniform(-15, 15), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(tone[crop]).save(file, "JPEG", quality=kind.quality)
    words = rng.choice(WORDS.split(), int(rng.integers(5, 14)))
    return {"__key__": f"{i:09d}", "jpg": file.getvalue(), "txt": " ".join(words)}


def in_order(make: Callable[[int], Any], numbers: Iterable[int], threads: int) -> Iterator[Any]:
    """make(i) for each number, by threads, a few ahead (Pillow encodes without the GIL)."""
    waiting: deque[Future[Any]] = deque()
    numbers = iter(numbers)
    with ThreadPoolExecutor(threads) as pool:
        waiting.extend(pool.submit(make, i) for i in islice(numbers, 64))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(make, i) for i in islice(numbers, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", help="folder or URL; it must not hold a dataset yet")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--kind", choices=sorted(KINDS), default="cc3m")
    parser.add_argument("--per-shard", type=int, default=1000, help="samples of a shard (default: 1000)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    kind, threads = KINDS[args.kind], len(os.sched_getaffinity(0))
    pictures = in_order(
        lambda i: draw(np.random.default_rng([args.seed, 0, i]), kind.texture),
        range(min(DRAWN, args.samples)),
        threads,
    )
    drawn = list(pictures)
    images = 0
    with ShardWriter(args.out, max_samples=args.per_shard, max_bytes=1 << 40) as writer:
        for made in in_order(lambda i: sample(i, drawn, kind, args.seed), range(args.samples), threads):
            images += len(made["jpg"])
            writer.write(made)
    mean = images / max(1, args.samples)
    print(f"{args.out}: {writer.report}; {args.kind}, {mean / 1000:.1f} kB an image on average")


if __name__ == "__main__":
    main()
