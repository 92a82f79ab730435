"""Bytes of samples: from mapped local shards, or by ranges from everywhere else.

>>> fetcher = Fetcher(open_catalog("/data/cc3m"))
>>> sample = fetcher.fetch(SampleRefs(np.array([0]), np.array([17])))[0]
>>> sample.key, {name: len(data) for name, data in sample.fields.items()}
('000000017', {'jpg': 22140, 'txt': 41})
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import RLock
from typing import Any, Final, NamedTuple

import numpy as np

from shardwriter.errors import ShardError, StoreError
from shardwriter.table import ShardTable

from .access import Access
from .cache.memory import CLOSED, Memory, settle
from .cache.tiers import Loaded, Tiers
from .catalog import Catalog
from .chunks import Chunks
from .cut import Cut, Ints, RawSample, Rows, sliceable
from .keeping import Keeping
from .opening import OpenShard, open_shard, spot_check
from .own_threads import OURS
from .plan import SampleRefs
from .stats import Counters
from .transfers import PART, Transfers

OPEN_SHARDS: Final = 256
"""Shards that one reader keeps open: each local one holds a file descriptor, of which a process often has 1,024."""
OPENINGS: Final = 8
"""Shards that are opened at a time."""
GAP: Final = 64 << 10
"""Unwanted bytes between two wanted ranges that are read through rather than asked for around."""


def _all(names: Sequence[str]) -> Sequence[str]:
    return names


def _none(what: object) -> bool:  # noqa: ARG001
    return False


class Fetcher:
    """Reads samples by reference; safe to share between threads.  Close it, or use it in a `with`."""

    def __init__(
        self,
        catalog: Catalog,
        wanted: Callable[[Sequence[str]], Sequence[str]] | None = None,
        viewed: Callable[[str], bool] | None = None,
        *,
        access: Access | None = None,
        tiers: Tiers | None = None,
        memory: Memory | None = None,
        keeping: Keeping | None = None,
        counters: Counters | None = None,
    ) -> None:
        """`wanted` says which of a shard's fields to read (default: all), `viewed` which of them to give as views of
        the shard's memory rather than as bytes (default: none); `access` how shards that are not mapped are read,
        `tiers` what caches them, `memory` what holds their chunks, `keeping` what the next epoch needs of them.
        """
        self._catalog = catalog
        self._wanted = wanted or _all
        self._viewed = viewed or _none
        self._access = access or Access()
        self._tiers = tiers.enter() if tiers is not None else None
        self._memory = memory or Memory(self._access.bound, self._access.keep)
        self._keeping = keeping
        self._counters = counters or Counters()
        self._transfers = Transfers(self._counters)
        self._shards: OrderedDict[int, OpenShard] = OrderedDict()
        self._opening: dict[int, Future[OpenShard]] = {}
        self._resting = False
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
                parts.append((at, self._rows(shard, refs.indices[at], scattered=refs.scattered)))
            except ShardError as error:
                raise error.at(shard=self._catalog.url(shard)) from error.__cause__
        return Cut.of(parts)

    @property
    def local(self) -> bool:
        """Whether all shards are mapped files of this machine."""
        return self._catalog.local and not self._access.cached

    def prepare(self, refs: SampleRefs) -> None:
        """Begin to open the shards of samples that will be wanted."""
        for shard in np.unique(refs.shards).tolist():
            with self._lock:
                if shard not in self._shards and shard not in self._opening and not self._resting:
                    self._begin_to_open(shard)

    def ask(self, refs: SampleRefs) -> None:
        """Begin to load what samples need, as soon as there is room; `cut` takes it.

        What fails here fails there again, where the error has its turn.
        """
        for shard in np.unique(refs.shards).tolist():
            try:
                opened = self._open(shard)
            except ShardError:
                continue
            if opened.chunks is not None:
                chunks = opened.chunks
                numbers = set(chunks.numbers[refs.indices[refs.shards == shard]].tolist())
                for chunk in sorted(numbers - self._loose(shard, opened, chunks, numbers, refs.scattered)):
                    load = partial(self._load, shard, opened, chunks, chunk)
                    self._memory.ask((shard, chunk), *chunks.measure(chunk), load)

    def fields_of(self, shard: int, index: int) -> list[str]:
        """All fields of a sample, also those that are not read."""
        return list(self._open(shard).table.spans(index))

    def _rows(self, shard: int, indices: Ints, *, scattered: bool) -> Rows:
        opened = self._open(shard)
        table = opened.table
        offsets = table.field_offsets[indices][:, opened.columns].astype(np.int64)
        lows = np.where(offsets > 0, table.starts[indices].astype(np.int64)[:, None] + offsets, -1)
        highs = lows + table.field_sizes[indices][:, opened.columns].astype(np.int64)
        sources: list[Any]
        if opened.data is not None:
            owner = sliceable(opened.data)
            sources = [opened.data if viewed else owner for viewed in opened.viewed]
        elif opened.chunks is not None:
            sources, begins = self._pieces(shard, opened, opened.chunks, indices, lows, highs, scattered)
            lows, highs = np.where(lows < 0, lows, lows - begins), highs - begins
        else:
            sources, begins = self._ranges(opened, lows, highs)
            lows, highs = np.where(lows < 0, lows, lows - begins), highs - begins
        return Rows(shard, opened.url, opened.fields, indices, _keys(table, indices), sources, lows, highs)

    def _pieces(
        self, shard: int, opened: OpenShard, chunks: Chunks, indices: Ints, lows: Ints, highs: Ints, scattered: bool
    ) -> tuple[list[Any], Ints]:
        """What holds each span, chunks or ranges, and where in the shard that begins."""
        numbers, sizes = chunks.numbers[indices], (highs - lows).sum(axis=1)
        loose = self._loose(shard, opened, chunks, set(numbers.tolist()), scattered)
        if not loose:
            return self._chunked(shard, opened, chunks, numbers, sizes)
        apart = np.isin(numbers, list(loose))
        if apart.all():
            return self._ranges(opened, lows, highs)
        sources: list[list[Any]] = [[b""] * len(indices) for _ in opened.fields]
        begins = np.zeros(lows.shape, np.int64)
        for rows, (found, starts) in (
            (~apart, self._chunked(shard, opened, chunks, numbers[~apart], sizes[~apart])),
            (apart, self._ranges(opened, lows[apart], highs[apart])),
        ):
            begins[rows] = starts
            for column, values in zip(sources, found, strict=True):
                for row, value in zip(np.flatnonzero(rows).tolist(), values, strict=True):
                    column[row] = value
        return sources, begins

    def _loose(self, shard: int, opened: OpenShard, chunks: Chunks, numbers: set[int], scattered: bool) -> set[int]:
        """Chunks not to be fetched whole: there is no room for them in memory, or other readers need most of what is
        in them; and the disk does not store them, from where all would have them.
        """
        tiers = self._tiers
        if not (scattered or self._access.tight):
            return set()

        def held(chunk: int) -> bool:
            if self._memory.holds((shard, chunk)):
                return True
            low, high = chunks.span(chunk)
            return tiers is not None and tiers.stores(opened.name.path(low, high), high - low)

        return {chunk for chunk in numbers if not held(chunk)}

    def _chunked(
        self, shard: int, opened: OpenShard, chunks: Chunks, numbers: Ints, sizes: Ints
    ) -> tuple[list[Any], Ints]:
        """What holds each span, a chunk by number, and [n, 1] where that begins; `sizes` are the bytes wanted."""
        places = numbers.tolist()
        wanted: dict[int, list[int]] = {}  # few samples of few chunks: a dict is quicker than numpy here
        for chunk, size in zip(places, sizes.tolist(), strict=True):
            wanted.setdefault(chunk, []).append(size)
        pieces: dict[int, memoryview] = {}
        keep = partial(self._keep, shard)
        for chunk, each in wanted.items():
            load = partial(self._load, shard, opened, chunks, chunk)
            loaded = self._memory.take((shard, chunk), *chunks.measure(chunk), len(each), load, keep=keep)
            self._counters.add(f"from_{loaded.tier}", sum(each))
            pieces[chunk] = loaded.data
        cutters = {} if all(opened.viewed) else {chunk: sliceable(piece) for chunk, piece in pieces.items()}
        sources = [[(pieces if viewed else cutters)[chunk] for chunk in places] for viewed in opened.viewed]
        return sources, chunks.lows[numbers][:, np.newaxis]

    def _keep(self, shard: int) -> bool:
        return self._keeping is not None and self._keeping.mine(shard)

    def _load(self, shard: int, opened: OpenShard, chunks: Chunks, chunk: int) -> Loaded:
        """A chunk, from the nearest tier that has it."""
        low, high = chunks.span(chunk)

        def check(data: memoryview) -> None:
            inside = np.flatnonzero(chunks.numbers == chunk)
            spot_check(data, opened.table, {int(inside[0]), int(inside[-1])}, low)

        return self._piece(shard, opened, low, high, check)

    def _piece(
        self, shard: int, opened: OpenShard, low: int, high: int, check: Callable[[memoryview], object] = _none
    ) -> Loaded:
        """The bytes [low, high) of a shard, from the nearest tier that has them; checked where they come from the
        origin.
        """
        origin = opened.origin

        def fetch() -> memoryview:
            data = self._transfers.read(origin.store, origin.name, low, high, origin.version)
            check(data)
            return data

        try:
            if self._tiers is None:
                return Loaded(fetch(), "origin")
            spare = None if self._keeping is None else self._keeping.spare(shard)
            return self._tiers.load(opened.name.path(low, high), high - low, fetch, label=origin.store.url, spare=spare)
        except ShardError as error:
            raise error.at(shard=opened.url, offset=low) from error.__cause__

    def _ranges(self, opened: OpenShard, lows: Ints, highs: Ints) -> tuple[list[Any], Ints]:
        """What holds each span, and where that begins: replies to requests for ranges, several of them in flight."""
        origin, version = opened.origin, opened.origin.version
        requests = join_spans(lows.reshape(-1), highs.reshape(-1))
        parts = [self._transfers.ask(origin.store, origin.name, r.low, r.high, version) for r in requests]
        sources: list[list[Any]] = [[b""] * len(lows) for _ in opened.fields]
        begins = np.zeros(lows.shape, np.int64)
        for request, part in zip(requests, parts, strict=True):
            view = self._transfers.wait(part)
            body = sliceable(view)
            for member in request.members:
                i, j = divmod(member, len(opened.fields))
                sources[j][i] = view if opened.viewed[j] else body
            begins.reshape(-1)[request.members] = request.low
        self._counters.add("from_origin", int((highs - lows).sum()))
        return sources, begins

    def _open(self, shard: int) -> OpenShard:
        with self._lock:
            found = self._shards.get(shard)
            if found is not None:
                self._shards.move_to_end(shard)
                return found
            pending = None if self.local else self._opening.get(shard) or self._begin_to_open(shard)
        try:
            opened = self._opened(shard) if pending is None else pending.result()
        finally:
            with self._lock:
                self._opening.pop(shard, None)
        with self._lock:
            kept = self._shards.setdefault(shard, opened)
            # An evicted map is unmapped when the last thread that reads from it lets go.
            while len(self._shards) > OPEN_SHARDS:
                self._shards.popitem(last=False)
        return kept

    def _begin_to_open(self, shard: int) -> Future[OpenShard]:
        """Open a shard in another thread, so that who waits for it can be told to wait no longer; locked."""
        if self._resting:
            raise StoreError(CLOSED)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(OPENINGS, thread_name_prefix=f"{OURS}open")
        future: Future[OpenShard] = Future()
        self._opening[shard] = future
        self._pool.submit(self._settle, shard, future)
        return future

    def _settle(self, shard: int, future: Future[OpenShard]) -> None:
        try:
            opened = self._opened(shard)
        except BaseException as error:  # noqa: BLE001  (raised to whoever waits for it)
            settle(future, error)
        else:
            settle(future, opened)

    def _opened(self, shard: int) -> OpenShard:
        def read(opened: OpenShard, low: int, high: int) -> memoryview:
            loaded = self._piece(shard, opened, low, high)
            self._counters.add(f"from_{loaded.tier}", high - low)
            return loaded.data

        return open_shard(self._catalog, shard, self._wanted, self._viewed, self._access, read)

    def begin(self) -> None:
        """Read again, behind rest."""
        with self._lock:
            self._transfers = Transfers(self._counters)
            self._resting = False
        self._memory.begin()

    def rest(self) -> None:
        """Between passes: stop what is under way; whoever waits for it gets a StoreError, until `begin`."""
        with self._lock:
            pool, self._pool = self._pool, None
            opening, self._opening = self._opening, {}
            self._resting = True
        for future in opening.values():
            settle(future, StoreError(CLOSED))
        self._transfers.stop()
        self._memory.rest()
        self._transfers.close()
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)  # a sidecar that does not come is nobody's concern now

    def close(self) -> None:
        """Let go of all shards and end the threads."""
        self.rest()
        with self._lock:
            self._shards.clear()
            tiers, self._tiers = self._tiers, None
        if tiers is not None:
            tiers.leave()

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


def _keys(table: ShardTable, indices: Ints) -> list[str]:
    lows, highs = table.key_offsets[indices].tolist(), table.key_offsets[indices + 1].tolist()
    raw = table.key_bytes.data
    return [str(raw[a:b], "utf-8", "surrogatepass") for a, b in zip(lows, highs, strict=True)]
