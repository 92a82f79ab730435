"""Shards as they are opened for reading: mapped, in chunks, or by ranges; and checked against their index.

>>> opened = open_shard(catalog, 3, fields=lambda names: names, viewed=lambda field: False, access=Access())
>>> opened.data                                        # a local shard is mapped; others are fetched piece by piece
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Final

import numpy as np

from shardwriter.errors import HeaderError, ObjectChanged
from shardwriter.format import split_name
from shardwriter.gzipped import unpacked
from shardwriter.store import Store, contents
from shardwriter.table import ShardTable
from shardwriter.tar import header_before

from .access import DENSE, Access
from .catalog import Catalog
from .chunks import Chunks, ShardName

LONG_NAME: Final = 90
"""Names from here on may be cut in the header, with the rest in an extension header."""
_REINDEX: Final = "it was replaced or changed since; make the index again with `shardstream index`"


class Origin:
    """A shard where it comes from.  It is asked for its size and version when a first piece of it is fetched, so that
    nothing is asked where a cache has all; from then on the version is pinned.
    """

    def __init__(self, store: Store, name: str, size: int) -> None:
        self.store = store
        self.name = name
        self.size = size
        self._lock = Lock()
        self._version: tuple[str | None] | None = None

    @property
    def version(self) -> str | None:
        """The version that all pieces must have.  Raises ObjectChanged where the size is not that of the index."""
        with self._lock:
            if self._version is None:
                info = self.store.info(self.name)
                check_size(info.size, self.size)
                self._version = (info.version,)
            return self._version[0]


@dataclass(frozen=True, slots=True)
class OpenShard:
    """An open shard: the fields to read with their columns in the table and whether they are given as views; the
    mapped bytes (`data`), or the `chunks` in which it is fetched, or neither: then samples are asked for by ranges.
    """

    url: str
    table: ShardTable
    fields: tuple[str, ...]
    columns: list[int]
    viewed: list[bool]
    origin: Origin
    name: ShardName
    data: memoryview | None = None
    chunks: Chunks | None = None


def open_shard(
    catalog: Catalog,
    shard: int,
    fields: Callable[[Sequence[str]], Sequence[str]],
    viewed: Callable[[str], bool],
    access: Access,
    read: Callable[[OpenShard, int, int], memoryview] | None = None,
) -> OpenShard:
    """Open a shard and check that it is the one that the index describes, as far as that costs nothing yet.

    What is not mapped where it lies but needed whole, gzip, is had by `read(shard, low, high)`.

    Raises StoreError, ObjectChanged, IndexMismatch.
    """
    table, url = catalog.table(shard), catalog.url(shard)
    store, name = catalog.locate(shard)
    wanted = fields(table.fields)
    names = tuple(field for field in wanted if field in table.fields)
    columns = [table.fields.index(field) for field in names]
    size = int(table.meta["bytes"])
    opened = OpenShard(
        url,
        table,
        names,
        columns,
        [viewed(field) for field in names],
        Origin(store, name, size),
        catalog.shard_name(shard),
    )
    mapped = store.path is not None and not access.cached
    if table.gzipped or mapped:
        return replace(opened, data=_whole(opened, None if mapped or read is None else partial(read, opened)))
    asked = int(table.field_sizes[:, columns].sum(dtype=np.int64))
    if access.whole and asked * access.chosen >= DENSE * size:
        return replace(opened, chunks=Chunks.of(table))
    return opened


def _whole(opened: OpenShard, read: Callable[[int, int], memoryview] | None) -> memoryview:
    """All bytes of a tar, unpacked."""
    origin, table, n = opened.origin, opened.table, len(opened.table)
    some = {0, n // 2, n - 1} if n else set[int]()
    # The slices outlive the blocks: they keep the maps alive, and the files behind them have no name or are closed.
    with contents(origin.store, origin.name, size=origin.size, read=read) as whole:
        check_size(len(whole), origin.size)
        if not table.gzipped:
            spot_check(whole, table, some)
            return whole[:]
        # Damage was met, and reported or refused, when the shard was indexed.
        with unpacked(whole, []) as (tar, _):
            check_size(len(tar), table.content_bytes)
            spot_check(tar, table, some)
            return tar[:]


def check_size(found: int, expected: int) -> None:
    """Raise ObjectChanged for a shard of another size than its index says."""
    if found != expected:
        raise ObjectChanged(f"the shard has {found:,} bytes, its index says {expected:,}", hint=_REINDEX)


def spot_check(data: memoryview, table: ShardTable, samples: Iterable[int], base: int = 0) -> None:
    """Raise ObjectChanged unless some samples lie where the index says; `data` are the bytes from `base` on."""
    for i in sorted(samples):
        for field, span in table.spans(i).items():
            try:
                name, size = header_before(data, span.offset - base)
            except HeaderError:
                name, size = "", -1
            same = split_name(name) == (table.key(i), field) or len(name.encode()) >= LONG_NAME
            if size != span.size or not same:
                raise ObjectChanged(
                    f"the index says that {field!r} of {table.key(i)!r} lies here", offset=span.offset, hint=_REINDEX
                )
