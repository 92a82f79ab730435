"""Image bytes to upright RGB pixels.

>>> decode_image(open("photo.jpg", "rb").read()).shape            # doctest: +SKIP
torch.Size([3, 375, 500])
>>> decode_image(open("photo.jpg", "rb").read(), Framing((224, 224))).shape            # doctest: +SKIP
torch.Size([3, 224, 224])

Every image comes out as uint8 [3, height, width], turned as its EXIF orientation says.  Grey is repeated, palettes are
looked up, CMYK is converted, 16-bit samples keep their upper 8 bits, and what is transparent shows white.  Of
animations and multi-picture files the first picture counts.  JPEG goes through simplejpeg in strict mode; whatever it
refuses, and every other format, goes through Pillow, whose word on damage is final: a cut image is an error, never
half a picture.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from shardwriter.errors import DecodeError
from shardwriter.headers import jpeg_header
from shardwriter.probe import REFUSALS, orientation

from .plan.costs import capped

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]

_TURNS: Final[dict[int, Callable[[Pixels], Pixels]]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: a.transpose(1, 0, 2)[:, ::-1],
    7: lambda a: a.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda a: a.transpose(1, 0, 2)[::-1],
}
"""EXIF orientation -> what makes stored pixels [height, width, 3] upright (EXIF 2.32, tag 0x0112)."""


@dataclass(frozen=True, slots=True)
class Framing:
    """What becomes of an image's size: scaled to cover `size` = (height, width) and cropped to it, or scaled down so
    that its longer side is `longest` at most.  `at` is where the crop lies, from 0 (left, above) to 1, down and across.
    """

    size: tuple[int, int] | None = None
    longest: int | None = None
    at: tuple[float, float] = (0.5, 0.5)


def decode_image(data: bytes, framing: Framing | None = None) -> torch.Tensor:
    """uint8 [3, height, width], in the image's own size or as `framing` says.

    Raises DecodeError for bytes that are no whole image.
    """
    pixels = _plain_jpeg(data)
    if pixels is None:
        pixels = _with_pillow(data)
    tensor = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)
    if framing is not None and framing.size is not None:
        return cover(tensor, *framing.size, at=framing.at)
    return tensor if framing is None or framing.longest is None else shrink(tensor, framing.longest)


def shrink(image: torch.Tensor, longest: int) -> torch.Tensor:
    """Scale an image [3, h, w] down so that its longer side is `longest`, as plans count it; small ones stay."""
    h, w = int(image.shape[1]), int(image.shape[2])
    if max(h, w) <= longest:
        return image
    height, width = (int(side[0]) for side in capped(np.array([h]), np.array([w]), longest))
    return interpolate(image[None], size=(height, width), mode="bilinear", antialias=True)[0]


def cover(image: torch.Tensor, height: int, width: int, *, at: tuple[float, float] = (0.5, 0.5)) -> torch.Tensor:
    """Scale an image [3, h, w] so that it covers height x width, and crop it: uint8 [3, height, width].

    The crop lies at the centre, or at another place from 0 to 1 down and across.  It is cut from the source first,
    rounded to whole pixels, then resized once with an antialiased bilinear kernel.
    """
    h, w = int(image.shape[1]), int(image.shape[2])
    scale = min(h / height, w / width)
    crop_h, crop_w = max(1, min(h, round(height * scale))), max(1, min(w, round(width * scale)))
    top, left = _place(h - crop_h, at[0]), _place(w - crop_w, at[1])
    crop = image[:, top : top + crop_h, left : left + crop_w]
    if (crop_h, crop_w) == (height, width):
        return crop
    resized = interpolate(crop[None], size=(height, width), mode="bilinear", antialias=True)
    return resized[0]


def _place(room: int, at: float) -> int:
    """Which of the places 0 ... room `at` means, from 0 to 1: each has an equal part of it; of two middle ones the
    first.
    """
    return max(0, math.ceil((room + 1) * at) - 1)


def _plain_jpeg(data: bytes) -> Pixels | None:
    """The pixels of a three-component or grey JPEG that is beyond doubt, else None."""
    header = jpeg_header(data)
    if header is None:
        return None
    import simplejpeg

    try:
        if simplejpeg.decode_jpeg_header(data)[2] not in ("YCbCr", "Gray", "RGB"):
            return None
        pixels: Pixels = simplejpeg.decode_jpeg(data, colorspace="RGB", strict=True)
    except ValueError:
        return None
    return _TURNS[header.orientation](pixels)


def _with_pillow(data: bytes) -> Pixels:
    if not data:
        raise DecodeError("the image is empty: 0 bytes")
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            # Loading first: Pillow then turns TIFFs itself and drops the tag, and PNGs may hold it behind the pixels.
            image.load()
            turn = _TURNS[orientation(image)]
            pixels = np.array(_rgb(image))
    except UnidentifiedImageError:
        start = bytes(data[:16])
        raise DecodeError(f"this is no image: it starts with {start!r}") from None
    except Image.DecompressionBombError as error:
        raise DecodeError(
            f"the image is too large ({error})", hint="raise PIL.Image.MAX_IMAGE_PIXELS if it is meant"
        ) from None
    except REFUSALS as error:
        raise DecodeError(f"the image is damaged ({error})") from None
    return turn(pixels)


def _rgb(image: Image) -> Image:
    """The first picture as RGB, over white where it is transparent."""
    from PIL import Image as Images

    if image.mode.startswith(("I;16", "I")):
        wide = np.asarray(image)
        # Pillow's own conversion clips at 255 instead of scaling.
        return Images.fromarray(np.clip(wide.astype(np.int64) >> 8, 0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        top = image.convert("RGBA")
        return Images.alpha_composite(Images.new("RGBA", top.size, (255, 255, 255, 255)), top).convert("RGB")
    return image.convert("RGB")
