"""Which fields hold images and which hold audio: the last part of the field name decides.

>>> kind_of("left.jpg"), kind_of("flac"), kind_of("jpg.gz"), kind_of("txt")
('image', 'audio', None, None)
"""

from __future__ import annotations

from typing import Final, Literal

IMAGE_FIELDS: Final = frozenset((
    "jpg", "jpeg", "jpe", "jfif", "mpo", "png", "apng", "webp", "gif", "bmp", "dib", "tif", "tiff", "ppm", "pgm",
    "pbm", "pnm", "jp2", "j2k", "avif", "tga", "ico", "img", "image",
))  # fmt: skip
"""Last parts of field names whose bytes are an image, of whatever format."""

AUDIO_FIELDS: Final = frozenset(
    {"wav", "flac", "ogg", "oga", "opus", "mp3", "aif", "aiff", "au", "w64", "caf", "audio"}
)
"""Last parts of field names whose bytes are audio, of whatever format."""


def kind_of(field: str) -> Literal["image", "audio"] | None:
    """What the field holds, or None where its numbers are not taken from its bytes."""
    last = field.rpartition(".")[2]
    if last in IMAGE_FIELDS:
        return "image"
    return "audio" if last in AUDIO_FIELDS else None
