"""The shard format as types and bytes: names, samples, and the container that index files are stored in.

Nothing here reads or writes files.  FORMAT.md states the rules; the rule numbers in the errors are its numbers.

>>> split_name("train/000017.seg.png")
('train/000017', 'seg.png')
>>> kind, meta, arrays = unpack(pack("shard", {"bytes": 512}, {"start": np.array([0], "<u8")}))
>>> kind, meta, arrays["start"].tolist()
('shard', {'bytes': 512}, [0])
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .errors import IndexFormatError, NameRefused

Buffer = bytes | bytearray | memoryview

INDEX_SUFFIX: Final = ".ssx"
"""A shard's sidecar is the shard's name plus this."""
MANIFEST: Final = "manifest.ssx"
"""Name of the file that lists the shards of a dataset."""
PARTIAL: Final = "manifest.ssx.partial"
"""Present while a dataset is being written; a folder that holds it is not a dataset yet."""
SHARD_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz")

MAGIC: Final = b"SHRDSTRM"
VERSION: Final = 1
ALIGN: Final = 64
MAX_HEADER: Final = 64 << 20
_AGAIN: Final = "make the index again"
_DTYPES: Final = frozenset({"|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8"})

_KEY_BAD: Final = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_FIELD: Final = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
MAX_NAME: Final = 4096
"""Longest member name, in bytes of UTF-8 (rule N7)."""


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file of a tar: its name, where its first header starts, and its bytes [offset, offset + size)."""

    name: str
    start: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open byte range [offset, offset + size) of a shard."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SampleSpans:
    """One sample as it lies in a shard: fields in the order of the tar; its headers and data fill [start, end)."""

    key: str
    start: int
    end: int
    fields: Mapping[str, Span]


def split_name(name: str) -> tuple[str, str] | None:
    """Key and field of a member, or None for a member that belongs to no sample (rules N1 to N4).

    >>> split_name("./v1.5/a.Left.PNG")
    ('v1.5/a', 'left.png')
    >>> [split_name(n) for n in ("README", ".DS_Store", "d/._a.jpg", "__meta__/a.json", "a.")]
    [None, None, None, None, None]
    """
    while name.startswith("./"):
        name = name[2:].lstrip("/")
    folder, slash, base = name.rpartition("/")
    stem, dot, field = base.partition(".")
    if not dot or not stem or not field:
        return None
    first = name.partition("/")[0]
    if first.startswith("__") and first.endswith("__") and len(first) > 4:
        return None
    return folder + slash + stem, field.lower()


def check_key(key: str) -> str:
    """Return `key` if every reader of tar shards reads it back as it is, else raise NameRefused (rule N5)."""
    if not isinstance(key, str) or not key:
        raise NameRefused(f"a key must be text that is not empty, not {key!r}", rule="N5")
    problem = None
    base = key.rpartition("/")[2]
    if "." in base:
        problem = "has a dot in its last part, where readers look for the field name"
    elif _KEY_BAD.search(key):
        problem = "holds a control character, a backslash, or bytes that are not UTF-8"
    elif key.startswith("/") or "//" in key or key.endswith("/"):
        problem = "starts or ends with a slash, or has an empty part"
    elif any(part in (".", "..") for part in key.split("/")):
        problem = "has a part '.' or '..'"
    elif split_name(key + ".x") != (key, "x"):
        problem = "is of the form that readers skip (__name__)"
    if problem:
        raise NameRefused(f"key {key!r} {problem}", rule="N5", hint="rename the sample, for example with an underscore")
    return key


def check_field(field: str) -> str:
    """Return `field` if every reader reads it back as it is, else raise NameRefused (rule N6)."""
    if not isinstance(field, str) or not _FIELD.fullmatch(field) or field.startswith("__"):
        raise NameRefused(
            f"field {field!r} is not of the form a-z, 0-9, _ and -, in parts joined by dots",
            rule="N6",
            hint="use a lower-case extension such as 'jpg' or 'seg.png'",
        )
    return field


def member_name(key: str, field: str) -> str:
    """The name under which a field of a sample is stored; the inverse of split_name for checked names."""
    name = f"{key}.{field}"
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME:
        raise NameRefused(f"member name is longer than {MAX_NAME} bytes", key=key[:80], field=field[:80], rule="N7")
    return name


def pack_strings(values: list[str]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Strings as (offsets [n + 1], UTF-8 bytes); string i is bytes[offsets[i] : offsets[i + 1]]."""
    encoded = [value.encode("utf-8", "surrogatepass") for value in values]
    offsets = np.zeros(len(values) + 1, dtype="<u8")
    np.cumsum([len(e) for e in encoded], out=offsets[1:])
    return narrow(offsets), np.frombuffer(b"".join(encoded), dtype=np.uint8)


def unpack_string(offsets: NDArray[Any], data: NDArray[Any], i: int) -> str:
    """String i of pack_strings."""
    return data[int(offsets[i]) : int(offsets[i + 1])].tobytes().decode("utf-8", "surrogatepass")


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Unsigned integers in 4 bytes where they all fit, else in 8."""
    small = values.size == 0 or int(values.max()) < 1 << 32
    return values.astype("<u4" if small else "<u8")


def pack(kind: str, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of an index file (rules I1 to I4): magic, length and checksum of the header, JSON header, arrays."""
    entries: dict[str, Any] = {}
    parts: list[bytes] = []
    at = 0
    for name, array in arrays.items():
        stored = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        if stored.dtype.str not in _DTYPES:
            raise TypeError(f"array {name!r} has dtype {stored.dtype}, which the index can't hold")
        raw = stored.tobytes()
        entries[name] = {"dtype": stored.dtype.str, "shape": list(array.shape), "span": [at, at + len(raw)]}
        gap = -(at + len(raw)) % ALIGN
        parts += [raw, bytes(gap)]
        at += len(raw) + gap
    data = b"".join(parts)
    header = {"kind": kind, "version": VERSION, "meta": dict(meta), "arrays": entries, "crc32": zlib.crc32(data)}
    text = json.dumps(header, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-(len(MAGIC) + 8 + len(text)) % ALIGN)
    return MAGIC + len(text).to_bytes(4, "little") + zlib.crc32(text).to_bytes(4, "little") + text + data


def unpack(
    buffer: Buffer, *, checksum: Callable[[memoryview], int] = zlib.crc32
) -> tuple[str, dict[str, Any], dict[str, NDArray[Any]]]:
    """(kind, meta, arrays) of an index file; the arrays are read-only views of `buffer`, nothing is copied.

    `checksum` computes the CRC-32 of the data, for callers that can do so at less cost in memory.
    Raises IndexFormatError for a file that is cut, damaged, or of a version that this release does not know.
    """
    view = memoryview(buffer).toreadonly()
    header, data = _header(view)
    if checksum(data) != header["crc32"]:
        raise IndexFormatError("the checksum of the index does not match", rule="I4", hint=_AGAIN)
    arrays: dict[str, NDArray[Any]] = {}
    at = 0
    for name, entry in sorted(header["arrays"].items(), key=lambda item: item[1]["span"]):
        dtype, shape, (low, high) = entry["dtype"], entry["shape"], entry["span"]
        if dtype not in _DTYPES:
            raise IndexFormatError(f"array {name!r} has the unknown type {dtype!r}", rule="I3")
        if low != at or high - low != math.prod(shape) * np.dtype(dtype).itemsize or high > len(data):
            raise IndexFormatError(f"array {name!r} does not lie where it should", rule="I3")
        arrays[name] = np.frombuffer(data[low:high], dtype=dtype).reshape(shape)
        at = high + -high % ALIGN
    if at != len(data):
        raise IndexFormatError("the index has bytes that belong to no array, or was cut", rule="I3")
    return header["kind"], header["meta"], arrays


def _header(view: memoryview) -> tuple[dict[str, Any], memoryview]:
    if len(view) < len(MAGIC) + 8 or bytes(view[: len(MAGIC)]) != MAGIC:
        raise IndexFormatError("not an index file: it does not start with SHRDSTRM", rule="I1", hint=_AGAIN)
    length, checksum = int.from_bytes(view[8:12], "little"), int.from_bytes(view[12:16], "little")
    if length > MAX_HEADER or 16 + length > len(view):
        raise IndexFormatError(f"the index was cut, or its header length {length} is absurd", rule="I1", hint=_AGAIN)
    text = bytes(view[16 : 16 + length])
    if zlib.crc32(text) != checksum:
        raise IndexFormatError("the checksum of the index's header does not match", rule="I1", hint=_AGAIN)
    try:
        header = json.loads(text)
        version = header["version"]
        if version != VERSION:
            raise IndexFormatError(f"index version {version!r}; this release reads version {VERSION}", rule="I2")
        known = isinstance(header["kind"], str) and isinstance(header["meta"], dict)
        known = known and isinstance(header["crc32"], int) and all(map(_is_entry, header["arrays"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, IndexFormatError):
            raise
        raise IndexFormatError(f"the header of the index can't be read ({error})", rule="I2", hint=_AGAIN) from None
    if not known:
        raise IndexFormatError("the header of the index lacks a part", rule="I2", hint=_AGAIN)
    return header, view[16 + length :]


def _is_entry(entry: Any) -> bool:
    """Whether this describes an array: dtype, shape and span of the right types."""
    span, shape = entry["span"], entry["shape"]
    numbers = (
        isinstance(span, list) and isinstance(shape, list) and all(type(n) is int and n >= 0 for n in span + shape)
    )
    return numbers and len(span) == 2 and isinstance(entry["dtype"], str)
