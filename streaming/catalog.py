"""Opens a dataset: which shards, how many samples in each, and where each sample's fields lie.

>>> catalog = open_catalog("/data/cc3m")
>>> len(catalog), catalog.counts.sum()
(332, 3318333)

Only manifests are read here; the table of a shard is read when a sample of it is wanted.  A dataset without an index is
indexed first: beside its shards where the user named a local folder that can be written, else in the user's cache
folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.aggregate import SIZE, HistogramTable, derived, stack
from shardwriter.errors import ObjectNotFound
from shardwriter.format import PARTIAL, SHARD_SUFFIXES, Buffer
from shardwriter.index import build_index
from shardwriter.open import load_manifest, load_table
from shardwriter.store import Store, join_url, open_store
from shardwriter.table import Manifest, ShardTable

from .cache.tiers import Tiers
from .chunks import ShardName
from .errors import DatasetNotFound
from .plan.recent import Recent
from .source import Listing, Source, list_shards, shards_below

log = logging.getLogger("shardstream")
FETCHED: Final = 32 << 20
"""Bytes, about, of fetched sidecars that stay in memory."""


@dataclass(frozen=True)
class Part:
    """Some rows of one manifest: the shards, and the stores that hold them and their sidecars."""

    shards: Store
    index: Store
    manifest: Manifest
    rows: NDArray[np.int64]


class _Fetched:
    """Tables that were fetched last; safe to share between threads."""

    def __init__(self) -> None:
        self._tables: Recent[int, ShardTable] = Recent(1, spare=FETCHED)
        self._lock = Lock()

    def get(self, shard: int, fetch: Callable[[], ShardTable]) -> ShardTable:
        """The table of a shard, fetched where it is not there."""
        with self._lock:
            found = self._tables.get(shard)
        if found is None:
            found = fetch()
            with self._lock:
                self._tables.put(shard, found, weight=found.starts.nbytes * (2 + 2 * len(found.fields)))
        return found

    def __reduce__(self) -> tuple[type[_Fetched], tuple[()]]:
        return _Fetched, ()


class Catalog:
    """The shards of a dataset, numbered 0 ... len - 1 in reading order.  Picklable; holds no open file."""

    def __init__(self, parts: Sequence[Part], tiers: Tiers | None = None) -> None:
        """`tiers` keep the sidecars that are fetched."""
        self._parts = tuple(parts)
        self._tiers = tiers
        self._starts = np.cumsum([0, *(len(p.rows) for p in parts)])
        self.counts: NDArray[np.int64] = np.concatenate(
            [p.manifest.samples[p.rows].astype(np.int64) for p in parts] or [np.zeros(0, np.int64)]
        )
        """[shards]: samples of each shard."""
        self.column_names = sorted({name for p in parts for name in p.manifest.totals})
        """Columns that any shard has."""
        self._fetched = _Fetched()

    def __len__(self) -> int:
        return len(self.counts)

    @classmethod
    def joined(cls, catalogs: Sequence[Catalog]) -> Catalog:
        """The shards of several datasets, one dataset after the other."""
        tiers = catalogs[0]._tiers if catalogs else None
        return cls([part for catalog in catalogs for part in catalog._parts], tiers)

    @property
    def bytes(self) -> int:
        """Size of all shards."""
        return sum(int(p.manifest.sizes[p.rows].sum()) for p in self._parts)

    @property
    def local(self) -> bool:
        """Whether all shards are files of this machine."""
        return all(part.shards.path is not None for part in self._parts)

    def digest(self) -> str:
        """A short name for the content: it changes with the bytes or the order of any shard, not with their place."""
        state = hashlib.sha256()
        for part in self._parts:
            state.update(part.manifest.digests[part.rows].tobytes())
        state.update(self.counts.astype("<i8").tobytes())
        return state.hexdigest()[:24]

    def histogram(self, name: str) -> HistogramTable | None:
        """The histogram `size`, or that of a column, over all shards; None where no shard has it."""
        tables = [(p.manifest.histograms.get(name), p.rows) for p in self._parts]
        if all(table is None for table, _ in tables):
            return None
        first, rows = tables[0]
        if len(tables) == 1 and first is not None and np.array_equal(rows, np.arange(len(first.counts))):
            return first  # as it lies in the manifest, unread
        return stack([(table, rows) for table, rows in tables], sizes=name == SIZE)

    def sums(self, name: str) -> NDArray[np.float64]:
        """[shards]: sum of a column over the samples of each shard."""
        parts = []
        for p in self._parts:
            totals = p.manifest.totals.get(name)
            parts.append(np.zeros(len(p.rows)) if totals is None else totals[p.rows, 0].astype(np.float64))
        return np.concatenate(parts or [np.zeros(0)])

    def columns(self, shard: int) -> dict[str, NDArray[Any]]:
        """Columns of one shard, [samples] each, with those that follow from others; zeros for those of other shards."""
        table = self.table(shard)
        found = {**table.columns, **derived(table.columns)}
        return {name: np.zeros(len(table), np.int32) for name in self.column_names if name not in found} | found

    def __getstate__(self) -> dict[str, Any]:
        # Sums and histograms are for planning; worker processes, which get a copy of the catalog, do not plan.
        lean = [replace(p, manifest=replace(p.manifest, totals={}, histograms={})) for p in self._parts]
        return self.__dict__ | {"_parts": tuple(lean), "_fetched": _Fetched()}

    def _find(self, shard: int) -> tuple[Part, int]:
        which = int(np.searchsorted(self._starts, shard, side="right")) - 1
        part = self._parts[which]
        return part, int(part.rows[shard - int(self._starts[which])])

    def locate(self, shard: int) -> tuple[Store, str]:
        """The store that holds a shard, and its name there."""
        part, row = self._find(shard)
        return part.shards, part.manifest.name(row)

    def url(self, shard: int) -> str:
        """Where a shard is, for people to read."""
        store, name = self.locate(shard)
        return join_url(store.url, name)

    def table(self, shard: int) -> ShardTable:
        """The sidecar of a shard.  Raises IndexMismatch where it does not fit the manifest, naming both numbers."""
        part, row = self._find(shard)
        if part.index.path is not None:
            return load_table(part.index, part.manifest, row)
        # Plans and readers ask for the same ones; a mapped file needs no second reading, one from afar does.
        return self._fetched.get(
            shard, lambda: load_table(part.index, part.manifest, row, read=self._cached(part, row))
        )

    def shard_name(self, shard: int) -> ShardName:
        """What a shard is called in caches."""
        return _shard_name(*self._find(shard))

    def _cached(self, part: Part, row: int) -> Callable[[Store, str], Buffer] | None:
        """What reads a sidecar through the cache."""
        if self._tiers is None:
            return None
        tiers, store, name = self._tiers, part.shards, _shard_name(part, row)

        def read(index: Store, sidecar: str) -> Buffer:
            with tiers:
                found = tiers.find(name.index, store.url)
                if found is not None:
                    return found
                return tiers.keep(name.index, memoryview(index.read(sidecar)), store.url)

        return read


def _shard_name(part: Part, row: int) -> ShardName:
    manifest = part.manifest
    digest = manifest.digests[row].tobytes().hex()
    return ShardName.of(part.shards.url, manifest.name(row), int(manifest.sizes[row]), digest)


def open_mix(
    sources: Sequence[Source],
    *,
    index: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    salvage: bool = False,
    tiers: Tiers | None = None,
) -> tuple[Catalog, list[int]]:
    """The shards of several sources as one dataset, and how many each has; `index` holds source-0, source-1, ..."""
    places = [None if index is None else join_url(os.fspath(index), f"source-{i}") for i in range(len(sources))]
    catalogs = [
        open_catalog(source, index=place, options=options, salvage=salvage, tiers=tiers)
        for source, place in zip(sources, places, strict=True)
    ]
    return Catalog.joined(catalogs), [len(catalog) for catalog in catalogs]


def open_catalog(
    source: Source | Sequence[Source],
    *,
    index: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    salvage: bool = False,
    workers: int | None = None,
    tiers: Tiers | None = None,
) -> Catalog:
    """Find the shards of `source` and their index; make the index where there is none, and say so in the log.

    `index` is the folder or URL of the index where it is not beside the shards.  `salvage` indexes the whole samples of
    damaged shards instead of raising.  `tiers` keep the sidecars that are fetched.
    """
    listings = list_shards(source, options)
    places = [
        index if len(listings) == 1 or index is None else join_url(os.fspath(index), f"part-{i}")
        for i in range(len(listings))
    ]
    return Catalog(
        [
            _open_part(x, place, options, salvage=salvage, workers=workers)
            for x, place in zip(listings, places, strict=True)
        ],
        tiers,
    )


def _open_part(
    listing: Listing,
    index: str | os.PathLike[str] | None,
    options: Mapping[str, Any] | None,
    *,
    salvage: bool,
    workers: int | None,
) -> Part:
    shards = open_store(listing.root, options)
    place = shards if index is None else open_store(index, options)
    part = _indexed(listing, shards, place, options)
    if part is not None:
        return part
    if listing.whole and _exists(shards, PARTIAL):
        raise DatasetNotFound(
            f"{shards.url!r} is still being written, or writing it was interrupted ({PARTIAL} is there)",
            hint="run the conversion again with resume=True",
        )
    names = list(listing.names) or shards_below(listing.root, options)
    identity = _identity(shards, names)
    if index is None and not (listing.whole and shards.path is not None and shards.writable()):
        place = open_store(_cache() / "index" / identity)
    with _lock(_cache() / "locks" / f"{identity}.lock"):
        part = _indexed(Listing(listing.root, tuple(names), listing.whole), shards, place, options)
        if part is not None:
            return part
        report = build_index(shards, names, place, on_error="salvage" if salvage else "raise", workers=workers)
        log.warning("%s had no index; made one in %s: %s", shards.url, place.url, report)
    return Part(shards, place, load_manifest(place), np.arange(len(names)))


def _indexed(listing: Listing, shards: Store, place: Store, options: Mapping[str, Any] | None) -> Part | None:
    """The part, if the manifest at `place` lists all the shards; None where there is no manifest or not all are in
    it.
    """
    try:
        manifest = load_manifest(place)
    except ObjectNotFound:
        return None
    if manifest.base is not None:
        shards = open_store(manifest.base, options)
    if listing.whole:
        _tell_unlisted(shards, manifest)
        return Part(shards, place, manifest, np.arange(len(manifest)))
    rows = {name: i for i, name in enumerate(manifest.names())}
    if not all(name in rows for name in listing.names):
        return None
    return Part(shards, place, manifest, np.array([rows[name] for name in listing.names], np.int64))


def _tell_unlisted(shards: Store, manifest: Manifest) -> None:
    """Say in the log that a local folder holds shards that its manifest does not list; listing a bucket costs too
    much.
    """
    if shards.path is None or not shards.path.is_dir():
        return
    with os.scandir(shards.path) as entries:
        names = [e.name for e in entries if e.name.endswith(SHARD_SUFFIXES) and not e.name.startswith(".")]
    unlisted = sorted(set(names).difference(manifest.names()) if names else ())
    if unlisted:
        found = f"{len(unlisted):,} shards that its index does not list, such as {unlisted[0]}"
        log.warning("%s holds %s: they are not read until it is indexed again", shards.url, found)


def _exists(store: Store, name: str) -> bool:
    try:
        store.info(name)
    except ObjectNotFound:
        return False
    return True


def _identity(shards: Store, names: Sequence[str]) -> str:
    """A name for exactly these shards in this state: it changes when one is added or replaced by another size."""
    infos = [shards.info(name) for name in names]
    root = os.path.abspath(shards.path) if shards.path is not None else shards.url
    stated = [root, *((i.name, i.size, i.version) for i in infos)]
    return hashlib.sha256(json.dumps(stated).encode()).hexdigest()[:32]


def _cache() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("shardstream")


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One process of this machine at a time; the lock dies with its holder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
