"""Index files out of a store: mapped where the store is a folder, so that opening one costs no memory and no copy.

>>> store = open_store("/data/cc3m")
>>> manifest = load_manifest(store)
>>> load_table(store, manifest, 0).key(0)
'000000'
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from .errors import FormatError, IndexMismatch, ObjectNotFound, ShardError
from .format import INDEX_SUFFIX, MANIFEST, PARTIAL, Buffer
from .store import Store, join_url
from .table import Manifest, ShardTable

_PIECE: Final = 4 << 20


def load_manifest(store: Store) -> Manifest:
    """The manifest of the dataset in `store`, with lazy arrays.

    Raises ObjectNotFound where there is none, saying whether the dataset is unfinished or just has no index, and
    IndexFormatError for one that is damaged.
    """
    try:
        buffer = _buffer(store, MANIFEST)
        return Manifest.from_bytes(buffer, checksum=_checksum(buffer))
    except ObjectNotFound as error:
        raise _no_manifest(store) from error.__cause__
    except FormatError as error:
        raise error.at(shard=join_url(store.url, MANIFEST), hint="make the index again (shardstream index)") from None


def load_table(
    store: Store, manifest: Manifest, i: int, *, read: Callable[[Store, str], Buffer] | None = None
) -> ShardTable:
    """The table of shard `i` of the manifest, from its sidecar in `store` (the store that holds the manifest).

    `read` has the bytes of the sidecar, where they may lie somewhere nearer; by default they are mapped or fetched.

    Raises ObjectNotFound, IndexFormatError, and IndexMismatch where the sidecar is of another version of the shard than
    the manifest, with both numbers.
    """
    name = manifest.name(i)
    url = join_url(store.url, name + INDEX_SUFFIX)
    try:
        table = ShardTable.from_bytes((read or _buffer)(store, name + INDEX_SUFFIX))
    except ShardError as error:
        raise error.at(shard=url, hint="make the index again (shardstream index)") from error.__cause__
    problem = disagreement(table, int(manifest.samples[i]), int(manifest.sizes[i]), manifest.digests[i].tobytes())
    if problem:
        raise IndexMismatch(problem, shard=url, rule="I9", hint="make the index again (shardstream index)")
    return table


def disagreement(table: ShardTable, samples: int, size: int, digest: bytes) -> str | None:
    """How a sidecar differs from what the manifest says of its shard, or None."""
    found = table.meta["sha256"]
    if len(table) != samples:
        return f"the manifest promises {samples} samples, the sidecar has {len(table)}"
    if table.meta["bytes"] != size:
        return f"the manifest promises a shard of {size} bytes, the sidecar was made of {table.meta['bytes']}"
    if found != digest.hex():
        return f"the manifest promises a shard with digest {digest.hex()[:16]}, the sidecar has {found[:16]}"
    return None


def _buffer(store: Store, name: str) -> Buffer:
    if store.path is None:
        return store.read(name)
    # The store's own checks and errors first: the name, and what is absent or no regular file.
    return _mapped(store.path / name) if store.info(name).size else b""


def _mapped(path: Path) -> memoryview:
    with open(path, "rb") as file:
        # Arrays that are views of the map keep it open, and it ends with the last of them.
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _checksum(buffer: Buffer) -> Callable[[memoryview], int]:
    """CRC-32 of the last bytes of `buffer`, a piece at a time.

    Of a mapped file, each piece is let go once it is read, so that checking a manifest of many shards holds no memory.
    """

    def checksum(data: memoryview) -> int:
        mapped = buffer.obj if isinstance(buffer, memoryview) else None
        first, total = len(buffer) - len(data), 0
        for low in range(0, len(data), _PIECE):
            total = zlib.crc32(data[low : low + _PIECE], total)
            if isinstance(mapped, mmap.mmap):
                start = (first + low) // mmap.PAGESIZE * mmap.PAGESIZE
                mapped.madvise(mmap.MADV_DONTNEED, start, min(_PIECE, len(buffer) - start))
        return total

    return checksum


def _no_manifest(store: Store) -> ObjectNotFound:
    try:
        store.info(PARTIAL)
    except ObjectNotFound:
        return ObjectNotFound(
            f"there is no {MANIFEST}, so the shards here have no index",
            shard=store.url,
            hint="make it with: shardstream index URL",
        )
    return ObjectNotFound(
        f"the dataset was never finished: {PARTIAL} is here and no {MANIFEST}",
        shard=store.url,
        hint="finish it with: shardstream write ... --resume",
    )
