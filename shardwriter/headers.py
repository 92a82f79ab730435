"""Sizes out of the first bytes of JPEG, PNG and WAV files, without decoding them.

>>> import io, wave
>>> with wave.open(file := io.BytesIO(), "wb") as out:
...     out.setparams((1, 2, 16000, 4, "NONE", ""))
...     out.writeframes(bytes(8))
>>> layout = wav_layout(file.getvalue())
>>> layout.frames, layout.rate, layout.offset
(4, 16000, 44)

Each function answers only when it is sure and returns None otherwise; a whole decoder then has the last word.
`width` and `height` are those of the pixels as stored: orientations 5 to 8 swap them when the image is turned upright.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final

from .format import Buffer

_U16: Final = struct.Struct(">H").unpack_from
_FRAME: Final = struct.Struct(">BHH").unpack_from
_XMP_ORIENTATION: Final = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
_EXIF: Final = b"Exif\0\0"
_XMP: Final = b"http://ns.adobe.com/xap/1.0/\0"
_NO_FRAME: Final = frozenset((0xC4, 0xC8, 0xCC))
"""Markers among C0 to CF that start no frame: Huffman tables, a reserved one, arithmetic conditioning."""
_BARE: Final = frozenset((0x01, *range(0xD0, 0xD9)))
"""JPEG markers without a length."""


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Size of an image as stored, and its EXIF orientation (1 to 8; 1 where there is none)."""

    width: int
    height: int
    orientation: int

    @property
    def upright(self) -> tuple[int, int]:
        """(width, height) once the image is turned as its orientation says."""
        return (self.height, self.width) if 5 <= self.orientation <= 8 else (self.width, self.height)


def jpeg_header(data: Buffer) -> ImageHeader | None:
    """Size and orientation of a JPEG (of the first picture of an MPO), or None where this is not plain."""
    view = memoryview(data)
    at, end = 2, len(view) - 8
    size: tuple[int, int] | None = None
    exif: memoryview | None = None
    xmp: memoryview | None = None
    if end < 0 or bytes(view[:2]) != b"\xff\xd8":
        return None
    while at < end:
        marker = view[at + 1]
        if view[at] != 0xFF:
            return None
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker in _BARE:
            at += 2
            continue
        if marker == 0xDA:
            break
        (length,) = _U16(view, at + 2)
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            if size is not None:
                return None
            _, height, width = _FRAME(view, at + 4)
            size = width, height
        elif marker == 0xE1:
            segment = view[at + 4 : at + 2 + length]
            head = bytes(segment[: len(_XMP)])
            if head.startswith(_EXIF):
                if exif is not None:
                    return None
                exif = segment[6:]
            elif head == _XMP:
                xmp = segment[len(_XMP) :]
        at += 2 + length
    else:
        return None
    if size is None or 0 in size:
        return None
    return _header(size, exif, xmp)


def png_header(data: Buffer) -> ImageHeader | None:
    """Size and orientation of a PNG whose chunks are all there, or None."""
    view = memoryview(data)
    if bytes(view[:16]) != b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR":
        return None
    at = 8
    exif: memoryview | None = None
    xmp: memoryview | None = None
    while at + 12 <= len(view):
        length, kind = int.from_bytes(view[at : at + 4], "big"), bytes(view[at + 4 : at + 8])
        chunk = view[at + 8 : at + 8 + length]
        if kind == b"eXIf":
            exif = chunk[6:] if bytes(chunk[:6]) == _EXIF else chunk
        elif kind in (b"iTXt", b"tEXt", b"zTXt"):
            head = bytes(chunk[:19])
            if head.startswith(b"Raw profile type"):
                return None
            if head.startswith(b"XML:com.adobe.xmp\0"):
                if kind != b"iTXt" or head[18:] != b"\0":
                    return None  # a compressed one
                xmp = chunk[18:]
        elif kind == b"IEND":
            size = int.from_bytes(view[16:20], "big"), int.from_bytes(view[20:24], "big")
            return None if 0 in size else _header(size, exif, xmp)
        at += 12 + length
    return None


def _header(size: tuple[int, int], exif: memoryview | None, xmp: memoryview | None) -> ImageHeader | None:
    orientation = 0
    if exif is not None:
        found = _exif_orientation(exif)
        if found is None:
            return None
        orientation = found
    if not orientation and xmp is not None and (match := _XMP_ORIENTATION.search(xmp)):
        orientation = int(match[1])
    return ImageHeader(*size, orientation if 1 <= orientation <= 8 else 1)


def _exif_orientation(tiff: memoryview) -> int | None:
    """The orientation tag of the first directory; 0 where it has none, None where the directory is not plain."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(tiff[:4]))
    if order is None or len(tiff) < 10:
        return None
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    if start + 2 > len(tiff):
        return None
    (count,) = struct.unpack_from(order + "H", tiff, start)
    if start + 2 + 12 * count > len(tiff):
        return None
    mark = struct.pack(order + "H", 0x0112)
    for at in range(start + 2, start + 2 + 12 * count, 12):
        if tiff[at : at + 2] == mark:
            kind, n, value = struct.unpack_from(order + "HIH", tiff, at + 2)
            return int(value) or 1 if (kind, n) == (3, 1) else None
    return 0


@dataclass(frozen=True, slots=True)
class WavLayout:
    """Where the samples of a WAV lie, [offset, offset + frames * block) of the file, and what they are.

    `code` is 1 for integers, 3 for floats, 6 and 7 for A-law and mu-law; `block` is the bytes of one frame (one sample
    of each channel); `bits` the bits of one sample.
    """

    code: int
    channels: int
    rate: int
    bits: int
    block: int
    offset: int
    frames: int


def wav_layout(data: Buffer) -> WavLayout | None:
    """The layout of a RIFF WAV that is not compressed, or None.

    A WAV that was written to a pipe has a size of 0, of ffffffff or close to 7fffffff; its data goes to the end of the
    file.  One that is shorter than its header says is refused.
    """
    view = memoryview(data)
    if len(view) < 44 or bytes(view[:4]) != b"RIFF" or bytes(view[8:12]) != b"WAVE":
        return None
    riff = int.from_bytes(view[4:8], "little")
    at, form = 12, None
    while at + 8 <= len(view):
        kind, size = bytes(view[at : at + 4]), int.from_bytes(view[at + 4 : at + 8], "little")
        at += 8
        if kind == b"fmt " and 16 <= size <= len(view) - at:
            form = struct.unpack_from("<HHIIHH", view, at)
            if form[0] == 0xFFFE and size >= 40:
                form = (int.from_bytes(view[at + 24 : at + 26], "little"), *form[1:])
        elif kind == b"data":
            held = _held(len(view) - at, size, streamed=riff + 8 < len(view) or _is_open(riff))
            return None if form is None or held is None else _layout(form, at, held)
        at += size + size % 2
    return None


def _is_open(size: int) -> bool:
    """Whether a size stands for "not known yet"."""
    return size == 0 or size == 0xFFFFFFFF or 0x7FFF0000 <= size <= 0x80000000


def _held(rest: int, size: int, *, streamed: bool) -> int | None:
    if size > rest:
        return rest if _is_open(size) else None
    return rest if size == 0 and streamed else size


def _layout(form: tuple[int, ...], offset: int, size: int) -> WavLayout | None:
    code, channels, rate, _, block, bits = form
    if code not in (1, 3, 6, 7) or not channels or not rate or block != channels * ((bits + 7) // 8) or not block:
        return None
    return WavLayout(code, channels, rate, bits, block, offset, size // block)
