"""Shards in gzip, told by their content: unpacked once into a file without a name, then read like any other tar.

>>> import gzip
>>> with unpacked(memoryview(gzip.compress(bytes(1024)))) as (tar, size):
...     len(tar), size
(1024, 1024)
>>> with unpacked(memoryview(bytes(1024))) as (tar, size):
...     len(tar), size
(1024, None)
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import zlib
from collections.abc import Iterator
from typing import Final

from .errors import FormatError, TrailingData, TruncatedShard

MAGIC: Final = b"\x1f\x8b"
_STEP: Final = 1 << 20
_ZLIB_GZIP: Final = 31
_AGAIN: Final = "write or copy it again"


@contextlib.contextmanager
def unpacked(data: memoryview, damage: list[FormatError] | None = None) -> Iterator[tuple[memoryview, int | None]]:
    """The tar that `data` holds, and its size where `data` is gzip, else `data` itself and None (rule T9).

    The view ends with the block.  Raises TruncatedShard, TrailingData or FormatError for damage of the gzip layer.
    With a list as `damage` the error goes there, and the view holds what could be unpacked before a cut, but nothing
    where the checksum fails: bytes that no checksum vouches for may be anything.
    """
    if bytes(data[:2]) != MAGIC:
        yield data, None
        return
    with tempfile.TemporaryFile() as file:
        try:
            _unpack(data, file.fileno())
        except FormatError as error:
            if damage is None:
                raise
            damage.append(error)
            if not isinstance(error, TruncatedShard | TrailingData):
                os.ftruncate(file.fileno(), 0)
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            yield memoryview(b""), 0
            return
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        view = memoryview(mapped)
        try:
            yield view, size
        finally:
            # Views that outlive the block keep the map open until they are collected.
            with contextlib.suppress(BufferError):
                view.release()
                mapped.close()


def _unpack(data: memoryview, fd: int) -> None:
    """Write what the gzip members in `data` hold to `fd`, a megabyte at a time."""
    at = 0
    while at < len(data):
        if bytes(data[at : at + 2]) != MAGIC:
            _check_rest(data, at)
            return
        at = _member(data, at, fd)


def _member(data: memoryview, at: int, fd: int) -> int:
    """Unpack the gzip member that starts at `at`; where it ends."""
    start = at
    stream = zlib.decompressobj(_ZLIB_GZIP)
    feed = b""
    while not stream.eof:
        if not feed:
            feed = bytes(data[at : at + _STEP])
            at += len(feed)
        try:
            out = stream.decompress(feed, _STEP)
        except zlib.error as error:
            raise FormatError(f"the gzip data is damaged ({error})", offset=start, rule="T9", hint=_AGAIN) from None
        if not feed and not out and not stream.eof:
            raise TruncatedShard("the gzip data ends early", offset=len(data), rule="T9", hint=_AGAIN)
        feed = stream.unconsumed_tail
        _write(fd, out)
    return at - len(stream.unused_data)


def _write(fd: int, out: bytes) -> None:
    view = memoryview(out)
    while view:
        view = view[os.write(fd, view) :]


def _check_rest(data: memoryview, at: int) -> None:
    for low in range(at, len(data), _STEP):
        chunk = bytes(data[low : low + _STEP])
        if chunk.count(0) != len(chunk):
            where = low + len(chunk) - len(chunk.lstrip(b"\0"))
            raise TrailingData("bytes that are no gzip follow the gzip data", offset=where, rule="T9", hint=_AGAIN)
