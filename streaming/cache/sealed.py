"""Bytes that tell whether they are whole: data with a footer of length and checksum.

>>> stored = b"data" + seal(b"data")
>>> bytes(unseal(stored, size=4, verify=True))
b'data'
>>> unseal(stored[:-1], size=4, verify=False) is None         # cut short
True
"""

from __future__ import annotations

import mmap
import struct
import zlib
from typing import Final

from shardwriter.format import Buffer

_MAGIC: Final = b"SSXSEAL1"
_HEAD: Final = struct.Struct("<8sQI")
_FOOTER: Final = struct.Struct("<8sQII")
FOOTER_BYTES: Final = _FOOTER.size
"""How much longer than its data a sealed entry is."""


def seal(data: Buffer) -> bytes:
    """The footer of `data`: magic with version, length, CRC-32 of the data, CRC-32 of these three."""
    view = memoryview(data).cast("B")
    head = _HEAD.pack(_MAGIC, len(view), zlib.crc32(view))
    return head + struct.pack("<I", zlib.crc32(head))


def unseal(buffer: Buffer | mmap.mmap, *, size: int | None = None, verify: bool) -> memoryview | None:
    """The data in `buffer` as a view of it, or None where buffer is not data and its footer, and nothing else.

    `size` is the length of the data where that is known.  `verify` compares the checksum of the data too, which reads
    all of it; without it, only footer and length are looked at.
    """
    view = memoryview(buffer).cast("B")
    length = len(view) - FOOTER_BYTES
    if length < 0 or (size is not None and length != size):
        return None
    magic, known, checksum, own = _FOOTER.unpack_from(view, length)
    if magic != _MAGIC or known != length or own != zlib.crc32(view[length : length + _HEAD.size]):
        return None
    data = view[:length].toreadonly()
    return data if not verify or zlib.crc32(data) == checksum else None
