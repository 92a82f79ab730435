"""From a source to shards, by as many processes as wanted, with the same bytes whatever their number."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

from .destination import Destination
from .errors import ShardError, SourceError
from .fields import encode
from .format import check_field, check_key
from .pool import WorkerPool
from .shard import Limits, ShardBuilder, ShardSummary, SourceDigest, pack_sample, publish, sample_size, temporary_path
from .sources import FileRef, Record, Source
from .store import Store, open_store
from .writer import DEFAULT_BYTES, Report


def convert(
    source: Source | Iterable[Record],
    url: str | os.PathLike[str],
    *,
    workers: int | None = None,
    max_bytes: int = DEFAULT_BYTES,
    max_samples: int | None = None,
    prefix: str = "shard",
    resume: bool = False,
    progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Report:
    """Write a source as shards with an index.

    >>> convert(sources.folder("photos"), "s3://bucket/photos", workers=16)

    Where each shard begins and ends depends on the source and on `max_bytes` and `max_samples` alone (see
    ShardWriter), so any number of `workers` (processes; None: one for each CPU) gives the same bytes.  The manifest
    comes after the last shard; an error, or a kill, leaves no manifest.  `resume=True` then goes on: shards that are
    whole, and hold samples of the same keys, fields and sizes, are kept.  `progress` shows a bar (None: on terminals).

    Raises SourceError for a source that is not as described, also where a file changes while it is converted;
    NameRefused and EncodeError for its names and values; DestinationError for a place that holds a dataset already or,
    on resuming, another one; StoreError; ShardError where a worker process dies.
    """
    since = time.perf_counter()
    workers = len(os.sched_getaffinity(0)) if workers is None else workers
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    limits = Limits(max_bytes, max_samples)
    described = isinstance(source, Source)
    place = Destination(
        open_store(url, storage_options), prefix, limits, source=repr(source) if described else None, resume=resume
    )
    skipped: Counter[str] = Counter()
    records = source.records(skipped) if isinstance(source, Source) else iter(source)
    done: dict[int, ShardSummary] = {}
    try:
        with ExitStack() as stack:
            bar = stack.enter_context(_bar(progress))
            jobs = _jobs(records, place, limits, done)
            if workers == 1:
                results: Iterator[tuple[int, ShardSummary]] = map(write_shard, jobs)
            else:
                results = stack.enter_context(WorkerPool(workers)).map(write_shard, jobs)
            for index, shard in results:
                done[index] = shard
                bar.update(shard.entry.samples)
    except BaseException:
        place.remove_temporaries()  # of workers that were killed; all have ended now
        raise
    shards = [done[index] for index in range(len(done))]
    place.finish(shards)
    return Report.of(shards, since, skipped)


def _bar(progress: bool | None) -> Any:
    from tqdm import tqdm

    return tqdm(desc="writing", unit=" samples", unit_scale=True, disable=None if progress is None else not progress)


class _Planned(NamedTuple):
    """A record whose sizes are known: (field, path or bytes, size) in the order of the tar, and its size there."""

    key: str
    fields: list[tuple[str, str | bytes, int]]
    columns: Mapping[str, int | float]
    where: str
    size: int


@dataclass(frozen=True, slots=True)
class ShardJob:
    """One shard to write: all that a worker process needs."""

    store: Store
    index: int
    name: str
    records: list[_Planned]


def write_shard(job: ShardJob) -> tuple[int, ShardSummary]:
    """Write and publish one shard; (its index, its summary)."""
    builder = ShardBuilder(temporary_path(job.store))
    try:
        for record in job.records:
            try:
                fields = {name: _bytes(value, size) for name, value, size in record.fields}
                builder.add(pack_sample(record.key, fields, record.columns))
            except ShardError as error:
                raise _located(error, record.key, record.where).at(shard=job.name) from None
        return job.index, publish(job.store, job.name, builder.path, builder.finish())
    except BaseException:
        builder.abort()
        raise


def _bytes(value: str | bytes, size: int) -> bytes:
    return value if isinstance(value, bytes) else FileRef(value).read(size)


def _jobs(
    records: Iterator[Record], place: Destination, limits: Limits, done: dict[int, ShardSummary]
) -> Iterator[ShardJob]:
    """Cut the records into shards; those that are there already go into `done`, the others are jobs."""
    for index, (planned, digest) in enumerate(_cut(records, limits)):
        table = place.kept(index)
        if table is None:
            yield ShardJob(place.store, index, place.shard_name(index), planned)
        elif table.meta.get("source") == digest:
            done[index] = ShardSummary.of(place.shard_name(index), table)
        else:
            raise place.differs(index, "holds other samples (by keys, fields, sizes or columns)")


def _cut(records: Iterator[Record], limits: Limits) -> Iterator[tuple[list[_Planned], str]]:
    """Shards as (records, digest of the source)."""
    shard: list[_Planned] = []
    held = 0
    digest = SourceDigest()
    for record in records:
        try:
            planned = _plan(record)
        except ShardError as error:
            raise _located(error, record.key, record.where) from None
        if limits.passed(len(shard), held, planned.size):
            yield shard, digest.hexdigest()
            shard, held, digest = [], 0, SourceDigest()
        digest.add(planned.key, [(field, size) for field, _, size in planned.fields], planned.columns)
        shard.append(planned)
        held += planned.size
    if shard:
        yield shard, digest.hexdigest()


def _plan(record: Record) -> _Planned:
    check_key(record.key)
    if not record.fields:
        raise SourceError("the sample has no field")
    fields: list[tuple[str, str | bytes, int]] = []
    for name, value in sorted(record.fields.items()):
        check_field(name)
        if isinstance(value, FileRef):
            fields.append((name, value.path, value.size()))
        else:
            data = encode(name, value)
            fields.append((name, data, len(data)))
    size = sample_size(record.key, {name: size for name, _, size in fields})
    return _Planned(record.key, fields, record.columns, record.where, size)


def _located(error: ShardError, key: str, where: str) -> ShardError:
    if where and not error.fact.startswith(where):
        error.fact = f"{where}: {error.fact}"
    return error.at(key=key)
