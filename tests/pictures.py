"""Datasets of small images of all kinds and sizes, with arrays and sound of mixed lengths, and what is in them."""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from shardwriter import ShardWriter

ORIENTATION: Final = 0x0112
KINDS: Final = ("rgb", "grey", "cmyk", "palette", "deep", "turned", "webp")
IMAGE: Final = "jpg;png;webp"
"""The field that holds the image, whatever its format."""
RATE: Final = 8000


@dataclass(frozen=True)
class Entry:
    """One sample as it was written: its image, and numbers [n], features [n, 3] and sound of `frames` frames."""

    field: str
    image: bytes
    height: int
    width: int
    tokens: NDArray[np.int64]
    features: NDArray[np.float32]
    sound: NDArray[np.int16]


def picture(kind: str, height: int, width: int, random: np.random.Generator) -> tuple[str, bytes]:
    """(field, bytes) of an image that decodes to height x width."""
    coarse = random.integers(0, 256, (-(-height // 8), -(-width // 8), 3), dtype=np.uint8)
    pixels = coarse.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]
    pixels = np.bitwise_xor(pixels, random.integers(0, 16, pixels.shape, dtype=np.uint8))
    file = io.BytesIO()
    if kind == "deep":
        Image.fromarray(pixels[..., 0].astype(np.uint16) * 257).save(file, "PNG")
    elif kind == "palette":
        Image.fromarray(pixels).quantize(16).save(file, "PNG")
    elif kind == "webp":
        Image.fromarray(pixels).save(file, "WEBP", quality=90)
    elif kind == "turned":  # stored on its side
        exif = Image.Exif()
        exif[ORIENTATION] = 6
        Image.fromarray(pixels.transpose(1, 0, 2).copy()).save(file, "JPEG", quality=90, exif=exif)
    else:
        mode = {"rgb": "RGB", "grey": "L", "cmyk": "CMYK"}[kind]
        Image.fromarray(pixels).convert(mode).save(file, "JPEG", quality=90)
    return {"deep": "png", "palette": "png", "webp": "webp"}.get(kind, "jpg"), file.getvalue()


def entries(count: int, seed: int = 0, kinds: Sequence[str] = KINDS, sides: tuple[int, int] = (12, 72)) -> list[Entry]:
    """Samples of all kinds, the sides of whose images are mostly near the lower end."""
    random, found = np.random.default_rng(seed), []
    low, high = sides
    for i in range(count):
        height, width = (int(side) for side in low + (high - low) * random.random(2) ** 1.7)
        field, image = picture(kinds[i % len(kinds)], height, width, random)
        n, frames = int(random.integers(1, 40)), int(random.integers(20, 900))
        found.append(
            Entry(
                field, image, height, width,
                random.integers(1, 1000, n),
                random.normal(size=(n, 3)).astype(np.float32) + 10,  # never 0, as padding is
                random.integers(1, 30_000, frames).astype(np.int16),
            )
        )  # fmt: skip
    return found


def write(folder: Path, samples: Sequence[Entry], each: int = 17) -> str:
    """A dataset of shards of `each` samples with fields cls (the number), jpg, png or webp, npy, feat.npy and wav, and
    a column `tokens`.
    """
    with ShardWriter(folder, max_samples=each) as writer:
        for i, entry in enumerate(samples):
            values = {"npy": entry.tokens, "feat.npy": entry.features, "wav": _wav(entry.sound), "cls": i}
            sample = {"__key__": key(i), entry.field: entry.image, **values}
            writer.write(sample, columns={"tokens": len(entry.tokens)})
    return str(folder)


def key(number: int) -> str:
    """Key of a sample."""
    return f"{number:04d}"


def _wav(sound: NDArray[np.int16]) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes(sound.astype("<i2").tobytes())
    return file.getvalue()


def read_wav(data: bytes) -> torch.Tensor:
    """A decoder of sound: int16 [1, frames]."""
    with wave.open(io.BytesIO(data)) as file:
        return torch.frombuffer(bytearray(file.readframes(file.getnframes())), dtype=torch.int16)[None]


# Transforms that worker processes can unpickle.


def enlarge(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Make the image larger than the index says."""
    return sample | {"image": sample["image"].repeat(1, 2, 2)}
