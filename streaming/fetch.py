"""Bytes of samples: from mapped local shards, or by ranges from everywhere else.

>>> fetcher = Fetcher(open_catalog("/data/cc3m"))
>>> sample = fetcher.fetch(SampleRefs(np.array([0]), np.array([17])))[0]
>>> sample.key, {name: len(data) for name, data in sample.fields.items()}
('000000017', {'jpg': 22140, 'txt': 41})
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import HeaderError, ObjectChanged, ShardError
from shardwriter.format import split_name
from shardwriter.gzipped import unpacked
from shardwriter.store import Store, contents
from shardwriter.table import ShardTable
from shardwriter.tar import header_before

from .catalog import Catalog
from .plan import SampleRefs

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

Ints = NDArray[Any]


@dataclass(slots=True)
class RawSample:
    """One sample as bytes: its place, and the bytes of each field that was asked for, in the order of the shard.

    Bytes are bytes objects, or memoryviews for fields that may be given as views.
    """

    shard: int
    index: int
    url: str
    key: str
    fields: dict[str, Any]


class _Open(NamedTuple):
    """An open shard: its URL, its table, the fields to read with their columns in the table and whether they are given
    as views, and its mapped bytes, or None and the ETag where ranges are asked for.
    """

    url: str
    table: ShardTable
    fields: list[str]
    columns: list[int]
    viewed: list[bool]
    data: memoryview | None
    version: str | None


@dataclass(slots=True)
class _Rows:
    """Samples of one shard whose bytes are at hand and not cut out yet: field j of row i is
    sources[k][lows[k] : highs[k]] with k = i * len(names) + j, or absent where lows[k] is negative.
    """

    shard: int
    url: str
    names: list[str]
    indices: list[int]
    keys: list[str]
    sources: list[Any]
    lows: list[int]
    highs: list[int]
    whole: bool
    """Whether no field of any of them is absent."""

    def sample(self, i: int) -> RawSample:
        """Row i."""
        width = len(self.names)
        fields, k = {}, i * width
        if self.whole:
            for name in self.names:
                fields[name] = self.sources[k][self.lows[k] : self.highs[k]]
                k += 1
        else:
            for name in self.names:
                if self.lows[k] >= 0:
                    fields[name] = self.sources[k][self.lows[k] : self.highs[k]]
                k += 1
        return RawSample(self.shard, self.indices[i], self.url, self.keys[i], fields)

    def column(self, j: int) -> list[Any]:
        """Field j of all rows; none may be absent."""
        width = len(self.names)
        spans = zip(self.sources[j::width], self.lows[j::width], self.highs[j::width], strict=True)
        return [source[low:high] for source, low, high in spans]


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
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None

    def fetch(self, refs: SampleRefs) -> list[RawSample]:
        """The samples of `refs`, in that order.

        Raises StoreError, ObjectChanged, IndexMismatch with the shard's URL.
        """
        return list(self.cut(refs))

    def cut(self, refs: SampleRefs) -> Iterator[RawSample]:
        """As fetch, but bytes that are mapped or fetched are cut out only when their sample's turn comes.

        So they are still in the processor's cache when they are used, and memory for one sample serves all.
        """
        found = self._by_shard(refs)
        if len(found) == 1:
            return map(found[0][1].sample, range(len(refs)))
        order = np.empty((len(refs), 2), np.int64)
        for number, (at, _) in enumerate(found):
            order[at, 0], order[at, 1] = number, np.arange(len(at))
        return (found[number][1].sample(i) for number, i in order.tolist())

    def columns(self, refs: SampleRefs) -> tuple[list[str], dict[str, list[Any]]] | None:
        """Keys and, field by field, bytes of the samples of `refs`; None where they do not all have the same fields.

        Raises as fetch.
        """
        found = self._by_shard(refs)
        names = found[0][1].names if found else []
        if any(rows.names != names or not rows.whole for _, rows in found):
            return None
        if len(found) == 1:
            return found[0][1].keys, {name: found[0][1].column(j) for j, name in enumerate(names)}
        keys: list[Any] = [None] * len(refs)
        columns: dict[str, list[Any]] = {name: [None] * len(refs) for name in names}
        for at, rows in found:
            places = at.tolist()
            for values, of_shard in ((keys, rows.keys), *((columns[n], rows.column(j)) for j, n in enumerate(names))):
                for place, value in zip(places, of_shard, strict=True):
                    values[place] = value
        return keys, columns

    def _by_shard(self, refs: SampleRefs) -> list[tuple[Ints, _Rows]]:
        """For each shard: which of the samples are in it, and these."""
        found = []
        for shard in np.unique(refs.shards).tolist():
            at = np.flatnonzero(refs.shards == shard)
            try:
                found.append((at, self._rows(shard, refs.indices[at])))
            except ShardError as error:
                raise error.at(shard=self._catalog.url(shard)) from None
        return found

    @property
    def local(self) -> bool:
        """Whether all shards are files of this machine."""
        return self._catalog.local

    def fields_of(self, shard: int, index: int) -> list[str]:
        """All fields of a sample, also those that are not read."""
        return list(self._open(shard).table.spans(index))

    def _rows(self, shard: int, indices: Ints) -> _Rows:
        opened = self._open(shard)
        table = opened.table
        offsets = table.field_offsets[indices][:, opened.columns].astype(np.int64)
        lows = np.where(offsets > 0, table.starts[indices].astype(np.int64)[:, None] + offsets, -1)
        highs = lows + table.field_sizes[indices][:, opened.columns].astype(np.int64)
        if opened.data is None:
            sources, lows, highs = self._ranges(shard, opened, lows, highs)
        else:
            owner = _sliceable(opened.data)
            sources = [opened.data if viewed else owner for viewed in opened.viewed] * len(indices)
        return _Rows(
            shard,
            opened.url,
            opened.fields,
            indices.tolist(),
            _keys(table, indices),
            sources,
            lows.reshape(-1).tolist(),
            highs.reshape(-1).tolist(),
            not lows.size or int(lows.min()) >= 0,
        )

    def _ranges(self, shard: int, opened: _Open, lows: Ints, highs: Ints) -> tuple[list[Any], Ints, Ints]:
        """What holds each span of a remote shard, and where in it: neighbours are joined, several requests are in
        flight.
        """
        store, name = self._catalog.locate(shard)
        requests = join_spans(lows.reshape(-1), highs.reshape(-1))
        bodies = self._requests().map(lambda r: store.read_range(name, r.low, r.high, version=opened.version), requests)
        sources: list[Any] = [b""] * lows.size
        begins = np.zeros(lows.size, np.int64)
        for request, body in zip(requests, bodies, strict=True):
            view = memoryview(body)
            for i in request.members:
                sources[i] = view if opened.viewed[i % len(opened.viewed)] else body
            begins[request.members] = request.low
        return sources, lows - begins.reshape(lows.shape), highs - begins.reshape(lows.shape)

    def _requests(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(REQUESTS, thread_name_prefix="shardstream-read")
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
        fields = [field for field in wanted if field in table.fields]
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
            pool.shutdown(cancel_futures=True)

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


def _sliceable(data: memoryview) -> Any:
    """What gives bytes when it is sliced: the mapped file itself copies in half the time that a view of it takes."""
    owner = data.obj
    return owner if isinstance(owner, mmap.mmap | bytes) and len(owner) == len(data) else _Copying(data)


class _Copying:
    """Slices of a view, as bytes."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def __getitem__(self, span: slice) -> bytes:
        return bytes(self._data[span])


def _keys(table: ShardTable, indices: Ints) -> list[str]:
    lows, highs = table.key_offsets[indices].tolist(), table.key_offsets[indices + 1].tolist()
    raw = table.key_bytes.data
    return [str(raw[a:b], "utf-8", "surrogatepass") for a, b in zip(lows, highs, strict=True)]
