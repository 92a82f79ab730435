"""The numbers of a field, from the header of its bytes: nothing is decoded where a header says it all.

>>> probe("left.png", open("cat.png", "rb").read())         # doctest: +SKIP
{'width': 320, 'height': 240}
>>> probe("jpg", b"<html>"), probe("txt", b"hello")
({}, {})

The field name says only whether to look for an image or for audio; the content decides the format.
"""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Final

from .format import Buffer
from .headers import jpeg_header, png_header, wav_layout
from .kinds import kind_of

if TYPE_CHECKING:
    from PIL.Image import Image

REFUSALS: Final = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, OSError, RuntimeError, SyntaxError,
    TypeError, ValueError, Warning, struct.error, MemoryError,
)  # fmt: skip
"""What Pillow and soundfile raise for damaged files, depending on the format; warnings where they are errors."""
_ORIENTATION: Final = 0x0112


def probe(field: str, data: Buffer) -> dict[str, int]:
    """{"width", "height"} of an image as decoding yields it, upright; {"frames", "rate"} of audio; {} for all else.

    Pixels; frames (one sample of each channel) and frames a second.  {} also for bytes that can't be read as what the
    field says.  An orientation that can't be read counts as upright.  Of several pictures in a file the first counts.
    """
    kind = kind_of(field)
    if kind == "image":
        size = _image_size(data)
        return {} if size is None else {"width": size[0], "height": size[1]}
    if kind == "audio":
        length = _audio_length(data)
        return {} if length is None else {"frames": length[0], "rate": length[1]}
    return {}


def _image_size(data: Buffer) -> tuple[int, int] | None:
    header = jpeg_header(data) or png_header(data)
    return header.upright if header else _pillow_size(data)


def _pillow_size(data: Buffer) -> tuple[int, int] | None:
    if not len(data):
        return None
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data)) as image:
            if orientation(image) < 5:
                return image.size
            if image.format == "TIFF":  # turned by Pillow itself, in some versions only once it is loaded
                return ImageOps.exif_transpose(image).size
            return image.height, image.width
    except (*REFUSALS, Image.DecompressionBombError):
        return None


def orientation(image: Image) -> int:
    """The orientation of an image that Pillow opened, 1 to 8; 1 where it has none that can be read."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except REFUSALS:
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _audio_length(data: Buffer) -> tuple[int, int] | None:
    wav = wav_layout(data)
    if wav is not None:
        return wav.frames, wav.rate
    if not len(data):
        return None
    import soundfile

    try:
        info = soundfile.info(io.BytesIO(data))
    except REFUSALS:
        return None
    # libsndfile gives the largest integer where it can't tell.
    return (info.frames, info.samplerate) if 0 <= info.frames < 1 << 48 and info.samplerate > 0 else None
