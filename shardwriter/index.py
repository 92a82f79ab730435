"""An index for shards that are there already: one pass over each, a sidecar beside it, and at last the manifest.

>>> print(index_shards("s3://bucket/laion"))
indexed 331 shards: 3,310,000 samples, 96.4 GB in 212.0 s
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from .errors import DestinationError, FormatError, ObjectNotFound, SourceError
from .format import INDEX_SUFFIX, MANIFEST, PARTIAL, SHARD_SUFFIXES
from .jobs import run_jobs, shown_bytes
from .measure import measure_shard
from .shard import ShardSummary
from .store import ObjectInfo, Store, join_url, open_store
from .table import Manifest, ShardTable

OnError = Literal["raise", "salvage"]
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What was indexed.  `skipped`: members (and, salvaging, samples) left out, by reason; `damaged`: the errors met.

    `bytes` are those of the shard files, `empty` counts shards without samples, `unreadable` images and audio whose
    size or length is not known.
    """

    shards: int
    samples: int
    bytes: int
    seconds: float
    skipped: Mapping[str, int]
    damaged: Sequence[str]
    empty: int
    unreadable: int

    def __str__(self) -> str:
        size = f"{shown_bytes(self.bytes)} in {self.seconds:.1f} s"
        lines = [f"indexed {self.shards:,} shards: {self.samples:,} samples, {size}"]
        if self.skipped:
            lines.append("left out: " + ", ".join(f"{n:,} x {reason}" for reason, n in self.skipped.items()))
        if self.empty:
            lines.append(f"shards without samples: {self.empty:,}")
        if self.unreadable:
            lines.append(f"images and audio whose size can't be read: {self.unreadable:,}")
        if self.damaged:
            lines.append(f"damage, salvaged around: {len(self.damaged):,}")
            lines += [f"  {text}" for text in self.damaged[:_SHOWN]]
        return "\n".join(lines)


def index_shards(
    source: str | os.PathLike[str],
    *,
    index: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    on_error: OnError = "raise",
    reuse: bool = False,
    progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> IndexReport:
    """Index all shards (*.tar, *.tar.gz, *.tgz) below a folder or URL, in the order of their names.

    >>> index_shards("/data/laion", workers=8)
    >>> index_shards("s3://public/laion", index="s3://mine/laion-index")       # where the shards are read-only

    Hidden files and folders are passed over.  `index` is the folder or URL for the index (None: beside the shards).
    `workers` processes (None: one a CPU) read each shard once.  `on_error="salvage"` keeps the whole samples of damaged
    shards and reports the rest; see FORMAT.md, S7.  `reuse` keeps sidecars whose shard still has the size that they
    give.  `progress` shows a bar (None: on terminals).

    Raises FormatError with shard and offset for the first damaged shard, ObjectNotFound where there are no shards,
    DestinationError for a dataset that is still being written, StoreError.  After an error no manifest is written.
    """
    root = open_store(source, storage_options)
    names = [info.name for info in list_shards(root)]
    if not names:
        wanted = ", ".join("*" + suffix for suffix in SHARD_SUFFIXES)
        raise ObjectNotFound(f"no shards ({wanted}) are below this place", shard=root.url, hint="check the path")
    place = root if index is None else open_store(index, storage_options)
    _refuse_unfinished(root)
    return build_index(root, names, place, workers=workers, on_error=on_error, reuse=reuse, progress=progress)


def list_shards(store: Store) -> list[ObjectInfo]:
    """The shards in a store by their names, sorted; what is hidden, or in a hidden folder, is left out."""
    return [
        info
        for info in store.list()
        if info.name.endswith(SHARD_SUFFIXES) and not any(part.startswith(".") for part in info.name.split("/"))
    ]


def build_index(
    root: Store,
    names: Sequence[str],
    place: Store,
    *,
    workers: int | None = None,
    on_error: OnError = "raise",
    reuse: bool = False,
    progress: bool | None = None,
) -> IndexReport:
    """As index_shards, for the shards `names` of `root` in this order; sidecars and manifest go to `place`."""
    since = time.perf_counter()
    if on_error not in ("raise", "salvage"):
        raise ValueError(f"on_error is 'raise' or 'salvage', not {on_error!r}")
    if len(set(names)) != len(names):
        twice = next(name for name, n in Counter(names).items() if n > 1)
        raise SourceError(f"shard {twice!r} is listed twice", shard=root.url, hint="list each shard once")
    _refuse_unfinished(place)
    jobs = [_Job(root, place, name, on_error == "salvage", reuse) for name in names]
    done = run_jobs(_index_shard, jobs, workers=workers, label="indexing", progress=progress)
    skipped = sum((Counter(shard.skipped) for shard in done), Counter[str]())
    fields = sum((Counter(shard.summary.fields) for shard in done), Counter[str]())
    base = None if same_place(root, place) else absolute_url(root)
    meta = {"fields": dict(sorted(fields.items())), "base": base, "skipped": dict(sorted(skipped.items()))}
    manifest = Manifest.build([shard.summary.entry for shard in done], meta)
    place.write(MANIFEST, manifest.to_bytes())
    return IndexReport(
        shards=len(manifest),
        samples=int(manifest.samples.sum()),
        bytes=int(manifest.sizes.sum()),
        seconds=time.perf_counter() - since,
        skipped=dict(sorted(skipped.items())),
        damaged=tuple(text for shard in done for text in shard.damage),
        empty=int((manifest.samples == 0).sum()),
        unreadable=sum(shard.unreadable for shard in done),
    )


def absolute_url(store: Store) -> str:
    """The store's URL in a form that means the same in any folder."""
    return store.url if store.path is None else os.path.abspath(store.path)


def same_place(a: Store, b: Store) -> bool:
    """Whether two stores have the same root."""
    return absolute_url(a) == absolute_url(b)


def _refuse_unfinished(place: Store) -> None:
    try:
        place.info(PARTIAL)
    except ObjectNotFound:
        return
    raise DestinationError(
        f"a dataset is being written here, or writing was interrupted ({PARTIAL})",
        shard=place.url,
        hint="finish it with: shardstream write ... --resume",
    )


@dataclass(frozen=True, slots=True)
class _Job:
    root: Store
    place: Store
    name: str
    salvage: bool
    reuse: bool


@dataclass(frozen=True, slots=True)
class _Indexed:
    """A shard whose sidecar is stored."""

    summary: ShardSummary
    skipped: Mapping[str, int]
    damage: Sequence[str]
    unreadable: int


def _index_shard(job: _Job) -> _Indexed:
    table = _reusable(job) if job.reuse else None
    if table is None:
        shard = measure_shard(job.root, job.name, salvage=job.salvage)
        found: dict[str, Any] = {
            "skipped": dict(shard.skipped),
            "damage": [str(error.at(shard=join_url(job.root.url, job.name))) for error in shard.damage],
            "unreadable": len(shard.unreadable),
        }
        found = {name: value for name, value in found.items() if value}
        table = dataclasses.replace(shard.table, meta={**shard.table.meta, **found})
        job.place.write(job.name + INDEX_SUFFIX, table.to_bytes())
    meta = table.meta
    return _Indexed(
        ShardSummary.of(job.name, table), meta.get("skipped", {}), meta.get("damage", ()), meta.get("unreadable", 0)
    )


def _reusable(job: _Job) -> ShardTable | None:
    """The sidecar that is there, where it is whole and made of a shard of this size."""
    try:
        table = ShardTable.from_bytes(job.place.read(job.name + INDEX_SUFFIX))
    except (ObjectNotFound, FormatError):
        return None
    fits = table.meta["bytes"] == job.root.info(job.name).size
    return table if fits and (job.salvage or not table.meta.get("damage")) else None
