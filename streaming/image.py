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

A JPEG of which at most half the height and width is wanted is decoded at 1/2, 1/4 or 1/8 of its size, never below what
is wanted, and scaled from there.  That follows from the sizes in its header, so it is the same in every run.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shardwriter.errors import DecodeError
from shardwriter.headers import jpeg_header
from shardwriter.probe import REFUSALS, orientation

from .copying import write
from .framing import Box, Framing, reduced, reduction
from .resize import cover, scale_into, shrink
from .wide import Turn, WidePixels

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Framing", "cover", "decode_image", "shrink"]

Pixels = NDArray[np.uint8]

_TURNS: Final[dict[int, Turn]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a.swapaxes(0, 1)[:, ::-1],
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: a.swapaxes(0, 1)[::-1],
}
"""EXIF orientation -> what makes stored pixels [height, width, ...] upright (EXIF 2.32, tag 0x0112)."""
_AS_IT_IS: Final = Framing()
_HUGE: Final = 178_956_970
"""Pixels above which Pillow, which decides then, refuses an image, unless the user allows more."""
_WIDE_PAYS: Final = 3
"""So many pixels may be decoded to four bytes, instead of three, for each that is then split into planes."""


def decode_image(
    data: bytes | memoryview, framing: Framing | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """uint8 [3, height, width], in the image's own size or as `framing` says; its layout in memory is left open.

    JPEGs are read where `data` lies, without a copy.  `out` is a uint8 tensor [3, height, width] of `framing.size`,
    contiguous or channels-last: the same pixels are written there, once the image is known to be whole, and `out` is
    returned.  Raises DecodeError for bytes that are no whole image, ValueError for another `out`.
    """
    framing = framing or _AS_IT_IS
    if out is not None and (framing.size is None or out.shape != (3, *framing.size) or out.dtype != torch.uint8):
        raise ValueError(f"out is {out.dtype} {list(out.shape)}, the framing gives uint8 of the size {framing.size}")
    image = _plain_jpeg(data, framing, out)
    if image is not None:
        return image
    pixels = np.ascontiguousarray(_with_pillow(data))
    box = framing.box(*pixels.shape[:2])
    return _framed(pixels, box, framing.shape(*box[2:]), framing.flip, out)


class _Way(NamedTuple):
    """What is decoded of a JPEG, and taken of that, worked out from the sizes in its header."""

    by: int
    """It is decoded at 1/by of its size ..."""
    height: int
    width: int
    """... which, as it is stored, is this."""
    box: Box
    """The part that is taken, once it is upright."""
    shape: tuple[int, int]
    """(height, width) to which that is scaled."""


def _way(height: int, width: int, turn: int, framing: Framing) -> _Way:
    box = framing.box(width, height) if turn > 4 else framing.box(height, width)  # orientations 5 to 8 swap the sides
    shape = framing.shape(*box[2:])
    by = reduction(*box[2:], *shape)
    if by > 1:
        height, width = -(-height // by), -(-width // by)
        box = reduced(box, by, width, height) if turn > 4 else reduced(box, by, height, width)
    return _Way(by, height, width, box, shape)


def _plain_jpeg(data: bytes | memoryview, framing: Framing, out: torch.Tensor | None) -> torch.Tensor | None:
    """The image of a three-component or grey JPEG that is beyond doubt, else None."""
    header = jpeg_header(data)
    if header is None:
        return None
    import simplejpeg

    turn = header.orientation
    wide: WidePixels | None = None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if colours not in ("YCbCr", "Gray", "RGB") or height * width > _HUGE:
            return None
        way = _way(height, width, turn, framing)
        least = {"min_height": way.height, "min_width": way.width, "min_factor": way.by} if way.by > 1 else {}
        if turn == 1 and not _wide_pays(way, framing.flip, out):
            pixels = simplejpeg.decode_jpeg(data, "RGB", strict=True, **least)
        else:
            wide = WidePixels(way.height, way.width)
            simplejpeg.decode_jpeg(data, "RGBX", strict=True, buffer=wide.bytes, **least)
    except (ValueError, MemoryError):  # Pillow knows what to say of sizes that no memory holds
        return None
    if wide is None:
        return _framed(pixels, way.box, way.shape, framing.flip, out)
    box: Box | None = way.box
    if turn > 1:
        wide, box = wide.turned(_TURNS[turn], way.box), None
    if out is None:
        out = torch.empty((3, *way.shape), dtype=torch.uint8)
    wide.scale_into(out, box)
    return _mirrored(out) if framing.flip else out


def _wide_pays(way: _Way, flip: bool, out: torch.Tensor | None) -> bool:
    """Whether decoding to four bytes a pixel is worth it: where planes are filled, and not from much larger images."""
    if out is None and not flip and way.box[2:] == way.shape == (way.height, way.width):
        return False
    planes = out is None or out.is_contiguous()
    return planes and way.height * way.width <= _WIDE_PAYS * way.shape[0] * way.shape[1]


def _framed(pixels: Pixels, box: Box, shape: tuple[int, int], flip: bool, out: torch.Tensor | None) -> torch.Tensor:
    """The box of upright pixels [height, width, 3], scaled and mirrored; without a copy where that changes nothing."""
    top, left, h, w = box
    whole = (h, w) == pixels.shape[:2]
    if out is None:
        if whole and shape == (h, w) and not flip:
            return torch.from_numpy(pixels).permute(2, 0, 1)
        out = torch.empty((3, *shape), dtype=torch.uint8)
    scale_into(pixels if whole else pixels[top : top + h, left : left + w], out)
    return _mirrored(out) if flip else out


def _mirrored(image: torch.Tensor) -> torch.Tensor:
    write(image, image.flip(-1))
    return image


def _with_pillow(data: bytes | memoryview) -> Pixels:
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
