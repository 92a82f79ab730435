"""Tars built block by block, so that tests can break any byte of them."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable
from typing import Any

BLOCK = 512
END = bytes(1024)


def checksummed(block: bytes) -> bytes:
    """A header block with its checksum set."""
    blank = block[:148] + b" " * 8 + block[156:]
    return block[:148] + b"%06o\0 " % sum(blank) + block[156:]


def base256(size: int) -> bytes:
    """A size as GNU tar writes those that octal digits can't hold."""
    return b"\x80" + size.to_bytes(11, "big")


def header(
    name: str | bytes,
    size: int | bytes = 0,
    kind: bytes = b"0",
    *,
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    link: bytes = b"",
) -> bytes:
    """One header block; `size` as bytes is put into the field as it is."""
    raw = name.encode() if isinstance(name, str) else name
    field = size if isinstance(size, bytes) else b"%011o\0" % size
    block = raw[:100].ljust(100, b"\0") + b"0000644\0" + b"0001750\0" * 2 + field.ljust(12, b"\0") + b"14000000000\0"
    block += b" " * 8 + kind + link.ljust(100, b"\0") + magic + bytes(80) + prefix.ljust(155, b"\0") + bytes(12)
    assert len(block) == BLOCK
    return checksummed(block)


def padded(data: bytes) -> bytes:
    """Data filled up with zeros to whole blocks."""
    return data + bytes(-len(data) % BLOCK)


def member(name: str | bytes, data: bytes = b"", kind: bytes = b"0", **parts: Any) -> bytes:
    """A header and its data."""
    return header(name, len(data), kind, **parts) + padded(data)


def record(key: str, value: bytes | str) -> bytes:
    """One PAX record."""
    body = b" " + key.encode() + b"=" + (value.encode() if isinstance(value, str) else value) + b"\n"
    length = len(body)
    while length != len(body) + len(b"%d" % length):
        length = len(body) + len(b"%d" % length)
    return b"%d" % length + body


def pax(records: bytes, kind: bytes = b"x") -> bytes:
    """A PAX extension header with these records."""
    return member("././@PaxHeader", records, kind)


def tar(members: Iterable[tuple[str, bytes]]) -> bytes:
    """A plain tar of (name, data)."""
    return b"".join(member(name, data) for name, data in members) + END


def tarfile_tar(members: Iterable[tuple[str, bytes]], format: int = tarfile.GNU_FORMAT, **info: Any) -> bytes:  # noqa: A002
    """The same by Python's tarfile; `info` sets attributes of each entry."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as file:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            for key, value in info.items():
                setattr(entry, key, value)
            file.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def numbered(count: int, first: int = 0) -> list[tuple[str, bytes]]:
    """Members of `count` samples with fields cls and txt."""
    return [
        part
        for i in range(first, first + count)
        for part in ((f"{i:06d}.cls", b"%d" % i), (f"{i:06d}.txt", b"text %d" % i))
    ]


def zipped(data: bytes) -> bytes:
    """Gzip of data, without a time."""
    return gzip.compress(data, mtime=0)
