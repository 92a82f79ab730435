"""Bytes of samples: from mapped local shards, or by ranges from everywhere else.

>>> fetcher = Fetcher(open_catalog("/data/cc3m"))
>>> sample = fetcher.fetch(SampleRefs(np.array([0]), np.array([17])))[0]
>>> sample.key, {name: len(data) for name, data in sample.fields.items()}
('000000017', {'jpg': 22140, 'txt': 41})
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import RLock
from typing import Any, Final, NamedTuple

import numpy as np

from shardwriter.errors import HeaderError, ObjectChanged, ShardError
from shardwriter.format import split_name
from shardwriter.gzipped import unpacked
from shardwriter.store import Store, contents
from shardwriter.table import ShardTable
from shardwriter.tar import header_before

from .catalog import Catalog
from .cut import Cut, Ints, RawSample, Rows, sliceable
from .plan import SampleRefs
from .readahead import OURS, may_wait

OPEN_SHARDS: Final = 256
"""Shards that one reader keeps open: each local one holds a file descriptor, of which a process often has 1,024."""
GAP: Final = 64 << 10
"""Unwanted bytes between two wanted ranges that are read through rather than asked for around."""
PART: Final = 8 << 20
"""Largest range of one request."""
REQUESTS: Final = 16
"""Requests in flight for one reader."""
LONG_NAME: Final = 90
"""Names from here on may be cut in the header, with the rest in an extension header."""
_REINDEX: Final = "it was replaced or changed since; make the index again with `shardstream index`"


class _Open(NamedTuple):
    """An open shard: its URL, its table, the fields to read with their columns in the table and whether they are given
    as views, and its mapped bytes, or None and the ETag where ranges are asked for.
    """

    url: str
    table: ShardTable
    fields: tuple[str, ...]
    columns: list[int]
    viewed: list[bool]
    data: memoryview | None
    version: str | None


class Fetcher:
    """Reads samples by reference; safe to share between threads.  Close it, or use it in a `with`."""

    def __init__(
        self,
        catalog: Catalog,
        wanted: Callable[[Sequence[str]], Sequence[str]] | None = None,
        viewed: Callable[[str], bool] | None = None,
    ) -> None:
        """`wanted` says which of a shard's fields to read (default: all), `viewed` which of them to give as views of
        the shard's memory rather than as bytes (default: none).
        """
        self._catalog = catalog
        self._wanted = wanted
        self._viewed = viewed
        self._shards: OrderedDict[int, _Open] = OrderedDict()
        self._lock = RLock()  # an iterator that is collected closes this, in whatever thread and at whatever moment
        self._pool: ThreadPoolExecutor | None = None

    def fetch(self, refs: SampleRefs) -> list[RawSample]:
        """The samples of `refs`, in that order.

        Raises StoreError, ObjectChanged, IndexMismatch with the shard's URL.
        """
        return list(self.cut(refs).raw())

    def cut(self, refs: SampleRefs) -> Cut:
        """The samples of `refs`, whose bytes are at hand and not cut out yet.  Raises as fetch."""
        parts = []
        for shard in np.unique(refs.shards).tolist():
            at = np.flatnonzero(refs.shards == shard)
            try:
                parts.append((at, self._rows(shard, refs.indices[at])))
            except ShardError as error:
                raise error.at(shard=self._catalog.url(shard)) from None
        return Cut.of(parts)

    @property
    def local(self) -> bool:
        """Whether all shards are files of this machine."""
        return self._catalog.local

    def fields_of(self, shard: int, index: int) -> list[str]:
        """All fields of a sample, also those that are not read."""
        return list(self._open(shard).table.spans(index))

    def _rows(self, shard: int, indices: Ints) -> Rows:
        opened = self._open(shard)
        table = opened.table
        offsets = table.field_offsets[indices][:, opened.columns].astype(np.int64)
        lows = np.where(offsets > 0, table.starts[indices].astype(np.int64)[:, None] + offsets, -1)
        highs = lows + table.field_sizes[indices][:, opened.columns].astype(np.int64)
        if opened.data is None:
            sources, lows, highs = self._ranges(shard, opened, lows, highs)
        else:
            owner = sliceable(opened.data)
            sources = [opened.data if viewed else owner for viewed in opened.viewed]
        return Rows(shard, opened.url, opened.fields, indices, _keys(table, indices), sources, lows, highs)

    def _ranges(self, shard: int, opened: _Open, lows: Ints, highs: Ints) -> tuple[list[Any], Ints, Ints]:
        """What holds each span of a remote shard, and where in it: neighbours are joined, several requests are in
        flight.
        """
        store, name = self._catalog.locate(shard)
        requests = join_spans(lows.reshape(-1), highs.reshape(-1))
        bodies = self._requests().map(lambda r: store.read_range(name, r.low, r.high, version=opened.version), requests)
        sources: list[list[Any]] = [[b""] * len(lows) for _ in opened.fields]
        begins = np.zeros(lows.shape, np.int64)
        for request, body in zip(requests, bodies, strict=True):
            view = memoryview(body)
            for member in request.members:
                i, j = divmod(member, len(opened.fields))
                sources[j][i] = view if opened.viewed[j] else body
            begins.reshape(-1)[request.members] = request.low
        return sources, lows - begins, highs - begins

    def _requests(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(REQUESTS, thread_name_prefix=f"{OURS}read")
            return self._pool

    def _open(self, shard: int) -> _Open:
        with self._lock:
            found = self._shards.get(shard)
            if found is not None:
                self._shards.move_to_end(shard)
                return found
        opened = self._opened(shard)
        with self._lock:
            kept = self._shards.setdefault(shard, opened)
            # An evicted map is unmapped when the last thread that reads from it lets go.
            while len(self._shards) > OPEN_SHARDS:
                self._shards.popitem(last=False)
        return kept

    def _opened(self, shard: int) -> _Open:
        """Open a shard and check that it is the one that the index describes."""
        table, url = self._catalog.table(shard), self._catalog.url(shard)
        store, name = self._catalog.locate(shard)
        wanted = table.fields if self._wanted is None else self._wanted(table.fields)
        fields = tuple(field for field in wanted if field in table.fields)
        columns = [table.fields.index(field) for field in fields]
        viewed = [self._viewed is not None and self._viewed(field) for field in fields]
        if store.path is None and not table.gzipped:
            info = store.info(name)
            _check_size(info.size, int(table.meta["bytes"]))
            return _Open(url, table, fields, columns, viewed, None, info.version)
        data = _whole(store, name, table)
        _spot_check(data, table)
        return _Open(url, table, fields, columns, viewed, data, None)

    def close(self) -> None:
        """Let go of all shards and end the threads."""
        with self._lock:
            pool, self._pool = self._pool, None
            self._shards.clear()
        if pool is not None:
            pool.shutdown(wait=may_wait(), cancel_futures=True)

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Request(NamedTuple):
    """One range to ask for, [low, high), and which of the wanted spans lie in it."""

    low: int
    high: int
    members: list[int]


def join_spans(lows: Ints, highs: Ints) -> list[Request]:
    """Few requests that cover all spans [lows[i], highs[i]); spans with a negative low are not wanted.

    >>> join_spans(np.array([600_000, 100, -1, 0]), np.array([600_010, 200, -1, 50]))
    [Request(low=0, high=200, members=[3, 1]), Request(low=600000, high=600010, members=[0])]
    """
    requests: list[Request] = []
    for i in np.argsort(lows, kind="stable").tolist():
        low, high = int(lows[i]), int(highs[i])
        last = requests[-1] if requests else None
        if low < 0:
            continue
        if last is not None and low - last.high <= GAP and high - last.low <= PART:
            requests[-1] = Request(last.low, max(high, last.high), [*last.members, i])
        else:
            requests.append(Request(low, high, [i]))
    return requests


def _whole(store: Store, name: str, table: ShardTable) -> memoryview:
    """All bytes of a tar, unpacked."""
    # The slices outlive the blocks: they keep the maps alive, and the files behind them have no name or are closed.
    with contents(store, name) as whole:
        _check_size(len(whole), int(table.meta["bytes"]))
        if not table.gzipped:
            return whole[:]
        # Damage was met, and reported or refused, when the shard was indexed.
        with unpacked(whole, []) as (tar, _):
            _check_size(len(tar), table.content_bytes)
            return tar[:]


def _check_size(found: int, expected: int) -> None:
    if found != expected:
        raise ObjectChanged(f"the shard has {found:,} bytes, its index says {expected:,}", hint=_REINDEX)


def _spot_check(data: memoryview, table: ShardTable) -> None:
    """Raise ObjectChanged unless the first, the middle and the last sample lie where the index says."""
    n = len(table)
    for i in sorted({0, n // 2, n - 1}) if n else ():
        for field, span in table.spans(i).items():
            try:
                name, size = header_before(data, span.offset)
            except HeaderError:
                name, size = "", -1
            same = split_name(name) == (table.key(i), field) or len(name.encode()) >= LONG_NAME
            if size != span.size or not same:
                raise ObjectChanged(
                    f"the index says that {field!r} of {table.key(i)!r} lies here", offset=span.offset, hint=_REINDEX
                )


def _keys(table: ShardTable, indices: Ints) -> list[str]:
    lows, highs = table.key_offsets[indices].tolist(), table.key_offsets[indices + 1].tolist()
    raw = table.key_bytes.data
    return [str(raw[a:b], "utf-8", "surrogatepass") for a, b in zip(lows, highs, strict=True)]
