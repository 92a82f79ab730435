"""One shard, measured: its samples, their numbers, its digest, and what is wrong with it.

>>> shard = measure_shard(open_store("/data/cc3m"), "x-000000.tar")
>>> len(shard.table), shard.table.meta["bytes"], dict(shard.skipped)
(1000, 31457280, {'hidden file': 2})
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from .columns import ColumnBuilder
from .errors import FormatError, ShardError
from .format import SampleSpans
from .gzipped import unpacked
from .kinds import kind_of
from .scan import Scan, scan
from .store import Store, contents, join_url
from .table import ShardTable

_FIRST: Final = {"image": "width", "audio": "rate"}
"""The number that is never 0 once a field of this kind could be read."""


@dataclass(frozen=True, slots=True)
class MeasuredShard:
    """Table of a shard; what was passed over, as reason -> count; damage that salvaging met; (key, field) of images and
    audio whose size or length can't be read, which the table holds as 0.
    """

    table: ShardTable
    skipped: Mapping[str, int]
    damage: Sequence[FormatError]
    unreadable: Sequence[tuple[str, str]]


def measure_shard(store: Store, name: str, *, salvage: bool = False) -> MeasuredShard:
    """Read a shard from end to end once: scan it, measure its images and audio, digest its bytes.

    Raises the errors of `scan.scan` and `gzipped.unpacked`, with the shard's URL, unless `salvage` is True: then these
    are in `damage` and the table holds what is whole.  Raises StoreError always.
    """
    try:
        with contents(store, name) as data:
            return _measure(data, salvage)
    except ShardError as error:
        raise error.at(shard=join_url(store.url, name)) from error.__cause__


def _measure(data: memoryview, salvage: bool) -> MeasuredShard:
    damage: list[FormatError] = []
    meta: dict[str, Any] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    with unpacked(data, damage if salvage else None) as (tar, unpacked_bytes):
        if unpacked_bytes is not None:
            meta["unpacked_bytes"] = unpacked_bytes
        found = Scan([], {}, []) if damage and not len(tar) else scan(tar, salvage=salvage)
        columns = _columns(found.samples, tar)
    damage += found.damage
    try:
        table = ShardTable.build(found.samples, columns, meta)
    except FormatError as error:
        if not salvage:
            raise
        damage.append(error)
        dropped = {"sample of a shard that was refused": len(found.samples)}
        return MeasuredShard(ShardTable.build([], {}, meta), {**found.skipped, **dropped}, damage, [])
    return MeasuredShard(table, found.skipped, damage, list(_unreadable(found.samples, columns)))


def _columns(samples: Sequence[SampleSpans], tar: memoryview) -> dict[str, NDArray[Any]]:
    builder = ColumnBuilder()
    for sample in samples:
        builder.add(
            (field, tar[span.offset : span.offset + span.size])
            for field, span in sample.fields.items()
            if kind_of(field) is not None
        )
    return builder.arrays()


def _unreadable(samples: Sequence[SampleSpans], columns: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, str]]:
    for i, sample in enumerate(samples):
        taken: set[str] = set()
        for field in sample.fields:
            kind = kind_of(field)
            if kind is not None:
                # The first field of a kind has the plain column; see columns.measure.
                column = columns.get(f"{field}.{_FIRST[kind]}" if kind in taken else _FIRST[kind])
                taken.add(kind)
                if column is None or not column[i]:
                    yield sample.key, field
