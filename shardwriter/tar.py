"""Tar headers, both ways: 512-byte blocks out of a name and a size, and names, sizes and offsets out of bytes.

>>> block = header_blocks("000017.jpg", 5)
>>> [m] = walk(block + b"12345" + padding(5) + END)
>>> m
Member(name='000017.jpg', start=0, offset=512, size=5)

The numbers in errors are rules of FORMAT.md.  Offsets are bytes from the start of the (unpacked) tar.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from .errors import HeaderError, TrailingData, TruncatedShard, UnsupportedShard
from .format import Buffer, Member, split_name

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)
"""The end mark: two blocks of zeros."""

_MAX_EXTENSION: Final = 1 << 20
"""Longest PAX or GNU long-name record (rule T6): names are at most 4,096 bytes, so a megabyte is absurd already."""
_REGULAR: Final = frozenset(b"0\0" + b"7")
_NAMES: Final = {
    0x31: "hard link",
    0x32: "symbolic link",
    0x33: "character device",
    0x34: "block device",
    0x36: "FIFO",
    0x44: "GNU directory listing",
    0x56: "volume label",
}
_ZERO: Final = bytes(BLOCK)


def padding(size: int) -> bytes:
    """Zeros that fill `size` bytes of data up to a whole block."""
    return bytes(-size % BLOCK)


def header_blocks(name: str, size: int) -> bytes:
    """The header of a regular file: one block where the name allows, else a PAX record before it (rules W1 to W3).

    Names are UTF-8.  The bytes depend on name and size only: mode 0644, owner 0, time 0.
    """
    raw = name.encode("utf-8")
    if len(raw) <= 100:
        return _block(raw, b"", size, b"0")
    cut = raw.rfind(b"/", 0, 156)
    if 0 < cut <= 155 and 0 < len(raw) - cut - 1 <= 100:
        return _block(raw[cut + 1 :], raw[:cut], size, b"0")
    record = _pax_record(b"path", raw)
    return (
        _block(b"././@PaxHeader", b"", len(record), b"x")
        + record
        + padding(len(record))
        + _block(raw[-100:], b"", size, b"0")
    )


def _pax_record(key: bytes, value: bytes) -> bytes:
    body = b" " + key + b"=" + value + b"\n"
    length = len(body)
    while length != len(body) + len(str(length)):
        length = len(body) + len(str(length))
    return str(length).encode() + body


_OWNER: Final = b"0000644\0" + b"0000000\0" + b"0000000\0"
_TIME: Final = b"00000000000\0"
_TAIL: Final = bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" + b"0000000\0"
_FIXED_SUM: Final = sum(_OWNER) + sum(_TIME) + sum(_TAIL) + 8 * 0x20
"""The part of the checksum that is the same in every header; its own field counts as blanks."""


def _block(name: bytes, prefix: bytes, size: int, kind: bytes) -> bytes:
    length = b"%011o\0" % size if size < 1 << 33 else b"\x80" + size.to_bytes(11, "big")
    total = _FIXED_SUM + sum(name) + sum(length) + sum(kind) + sum(prefix)
    head = name.ljust(100, b"\0") + _OWNER + length + _TIME + b"%06o\0 " % total
    return head + kind + _TAIL + prefix.ljust(167, b"\0")


def walk(buffer: Buffer, *, skipped: Callable[[str, str, int], None] | None = None) -> Iterator[Member]:
    """Every regular file of a tar, in order, by its headers alone; the data is not touched.

    `buffer` is the whole tar.  Folders are passed over; for each link, device or other entry that holds no data of its
    own, `skipped(name, kind, offset)` is called (rule T5).  Ends normally only at an end mark that is followed by
    nothing but zeros.  Raises HeaderError, TruncatedShard, TrailingData or UnsupportedShard at the first damage; what
    was yielded before is whole.
    """
    view = memoryview(buffer)
    total = len(view)
    _refuse_other_kinds(view)
    at = start = 0
    extended: dict[str, Any] = {}
    pending = False
    while True:
        block = bytes(view[at : at + BLOCK])
        if len(block) < BLOCK:
            raise TruncatedShard(
                f"the shard ends at byte {total} without an end mark",
                offset=at,
                rule="T2",
                hint="write or copy it again",
            )
        if block == _ZERO:
            if pending:
                raise TruncatedShard("an extension header is followed by the end mark", offset=start, rule="T2")
            _check_end(view, at)
            return
        kind = block[156]
        size = _check_header(block, at)
        data = at + BLOCK
        if kind in b"xgLK":
            if size > _MAX_EXTENSION:
                raise HeaderError(f"an extension header claims {size} bytes", offset=at, rule="T6")
            record = bytes(view[data : data + size])
            if len(record) < size:
                raise TruncatedShard("the shard ends inside an extension header", offset=at, rule="T2")
            _extend(extended, kind, record, at)
            pending = pending or kind != 0x67  # a global header needs no member after it
            at = data + size + -size % BLOCK
            continue
        size = extended.get("size", size)
        name = extended.get("path") or _name(block)
        holds_data = kind in _REGULAR
        if kind == 0x53 or "sparse" in extended or kind == 0x4D:
            raise UnsupportedShard(
                f"member {name!r} is a sparse or split file",
                offset=start,
                rule="T5",
                hint="make the tar without --sparse",
            )
        if kind in b"123456":
            size = 0
        if data + size > total:
            fact = f"member {name!r} has {size} bytes, of which the shard holds {max(0, total - data)}"
            key = (split_name(name) or (None,))[0]
            raise TruncatedShard(fact, key=key, offset=start, rule="T2", hint="write or copy it again")
        if holds_data and not name.endswith("/"):
            yield Member(name, start, data, size)
        elif kind != 0x35 and not holds_data and skipped is not None:
            skipped(name, _NAMES.get(kind, f"entry of type {chr(kind)!r}"), start)
        at = start = data + size + -size % BLOCK
        extended, pending = {}, False


def header_before(buffer: Buffer, offset: int) -> tuple[str, int]:
    """Name and size that the header block right before a member's bytes gives; for spot checks of an index.

    The name is cut where it lies in an extension header.  Raises HeaderError where there is no header.
    """
    block = bytes(memoryview(buffer)[max(0, offset - BLOCK) : offset])
    if len(block) < BLOCK or block == _ZERO:
        raise HeaderError("no header stands before this member", offset=offset, rule="T3")
    return _name(block), _check_header(block, offset - BLOCK)


def _refuse_other_kinds(view: memoryview) -> None:
    if len(view) == 0:
        raise TruncatedShard(
            "the shard is empty: not even an end mark", offset=0, rule="T1", hint="write or copy it again"
        )
    head = bytes(view[:6])
    for magic, kind in (
        (b"\x1f\x8b", "gzip"),
        (b"BZh", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"PK\x03\x04", "zip"),
    ):
        if head.startswith(magic):
            raise UnsupportedShard(f"this is {kind} data, not a tar", offset=0, rule="T7", hint="unpack it first")


def _check_header(block: bytes, at: int) -> int:
    """The size that a header gives, once its checksum is known to hold (rules T3 and T4)."""
    try:
        stored = _number(block[148:156])
    except ValueError:
        stored = -1
    # Old tars summed signed bytes; they agree except where the header has bytes above 127.
    total = _sum(block) - sum(block[148:156]) + 8 * 0x20
    if stored != total and stored != total - 256 * sum(b > 127 for b in block[:148] + block[156:]):
        hint = "the shard is damaged here" if at else "is this a tar?"
        raise HeaderError("the checksum of a header does not hold", offset=at, rule="T3", hint=hint)
    try:
        size = _number(block[124:136])
    except ValueError:
        raise HeaderError(f"the size {block[124:136]!r} is no number", offset=at, rule="T4") from None
    if size < 0 or size >= 1 << 62:
        raise HeaderError(f"a header claims {size} bytes", offset=at, rule="T4")
    return size


def _sum(block: bytes) -> int:
    # The low half of Adler-32 is 1 plus the sum of the bytes modulo 65,521, which 256 bytes don't reach: this is
    # sum(block), ten times as fast.
    return (zlib.adler32(block[:256]) & 0xFFFF) + (zlib.adler32(block[256:]) & 0xFFFF) - 2


def _number(raw: bytes) -> int:
    if raw[0] & 0x80:
        value = int.from_bytes(raw, "big", signed=False) & ~(0x80 << 8 * (len(raw) - 1))
        return value - (1 << (8 * len(raw) - 1)) if raw[0] & 0x40 else value
    text = raw.partition(b"\0")[0].strip()
    if not text:
        return 0
    if not text.isdigit():
        raise ValueError(raw)
    return int(text, 8)


def _text(raw: bytes) -> str:
    # Bytes that are not UTF-8 become \xNN, so that names stay printable and JSON-able (rule N8).
    return raw.decode("utf-8", "backslashreplace")


def _name(block: bytes) -> str:
    name = block[:100].partition(b"\0")[0]
    # The bytes at 345 are a prefix only in POSIX headers; GNU's ("ustar  ") keep times there.
    if block[257:263] == b"ustar\0" and block[345]:
        name = block[345:500].partition(b"\0")[0] + b"/" + name
    return _text(name)


def _extend(extended: dict[str, Any], kind: int, record: bytes, at: int) -> None:
    if kind == 0x4C:
        extended["path"] = _text(record.partition(b"\0")[0])
    elif kind == 0x78:
        for key, value in _pax(record, at):
            if key == b"path":
                extended["path"] = _text(value)
            elif key == b"size":
                if not value.isdigit() or len(value) > 19 or int(value) >= 1 << 62:
                    raise HeaderError(f"a PAX record gives the size {value[:40]!r}", offset=at, rule="T6")
                extended["size"] = int(value)
            elif key.startswith(b"GNU.sparse."):
                extended["sparse"] = True
    elif kind == 0x67:
        for key, _ in _pax(record, at):
            if key in (b"path", b"size"):
                raise UnsupportedShard("a global PAX header sets path or size for all members", offset=at, rule="T6")


def _pax(record: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of each record "length key=value\\n"; the length counts the whole record."""
    while record.strip(b"\0"):
        digits, space, _ = record.partition(b" ")
        if not space or not digits.isdigit() or len(digits) > 8:
            raise HeaderError("a PAX record has no length", offset=at, rule="T6")
        length = int(digits)
        body = record[len(digits) + 1 : length]
        key, equals, value = body[:-1].partition(b"=")
        if length > len(record) or not equals or body[-1:] != b"\n":
            raise HeaderError("a PAX record is damaged", offset=at, rule="T6")
        yield key, value
        record = record[length:]


def _check_end(view: memoryview, at: int) -> None:
    after = at + BLOCK
    if after < len(view) and bytes(view[after : after + BLOCK]).strip(b"\0"):
        raise TrailingData(
            "a single block of zeros stands before more data", offset=at, rule="T8", hint="the shard is damaged here"
        )
    step = 1 << 20
    for low in range(after, len(view), step):
        chunk = bytes(view[low : low + step])
        if chunk.count(0) != len(chunk):
            where = low + len(chunk) - len(chunk.lstrip(b"\0"))
            raise TrailingData(
                "bytes that are not zero follow the end mark",
                offset=where, rule="T8", hint="if two tars were joined with cat, join them with tar --concatenate",
            )  # fmt: skip
