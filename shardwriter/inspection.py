"""What a dataset holds, out of its index: the numbers behind `shardstream inspect`.

>>> print(describe("/data/cc3m"))
>>> print(describe_sample("/data/cc3m", "000000017"))
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .errors import DecodeError, ShardError
from .fields import INTEGER_FIELDS, JSON_FIELDS, TEXT_FIELDS, decode
from .open import load_manifest, load_table
from .store import Store, open_store
from .table import Manifest, ShardTable

_SHOWN: Final = 200
"""Longest value that is read and shown, in bytes."""
_READABLE: Final = frozenset(TEXT_FIELDS + INTEGER_FIELDS + JSON_FIELDS)


@dataclass(frozen=True, slots=True)
class SampleView:
    """One sample: where it is, the bytes of each field, its numbers, and the short texts among its values."""

    key: str
    shard: str
    fields: Mapping[str, int]
    numbers: Mapping[str, float]
    values: Mapping[str, Any]

    def __str__(self) -> str:
        parts = [f"{name} {size:,} B" for name, size in self.fields.items()]
        parts += [f"{name}={value:g}" for name, value in self.numbers.items()]
        lines = [f"{self.key}  ({self.shard})  {', '.join(parts)}"]
        return "\n".join([*lines, *(f"    {name}: {value!r}" for name, value in self.values.items())])


@dataclass(frozen=True, slots=True)
class DatasetView:
    """A dataset: its size, how many samples have each field, (least, mean, greatest) of each column, first samples."""

    url: str
    shards: int
    samples: int
    bytes: int
    digest: str
    fields: Mapping[str, int]
    columns: Mapping[str, tuple[float, float, float]]
    skipped: Mapping[str, int]
    first: Sequence[SampleView]

    def __str__(self) -> str:
        held = f"{self.samples:,} samples in {self.shards:,} shards, {self.bytes:,} bytes"
        lines = [
            f"{self.url}: {held}, digest {self.digest}",
            "fields (samples that have them): " + ", ".join(f"{name} {n:,}" for name, n in self.fields.items()),
        ]
        lines += [
            f"column {name}: least {low:g}, mean {mean:g}, greatest {high:g}"
            for name, (low, mean, high) in self.columns.items()
        ]
        if self.skipped:
            lines.append(
                "left out by indexing: " + ", ".join(f"{n:,} x {reason}" for reason, n in self.skipped.items())
            )
        return "\n".join([*lines, *map(str, self.first)])


def describe(
    url: str | os.PathLike[str],
    *,
    index: str | os.PathLike[str] | None = None,
    first: int = 3,
    storage_options: Mapping[str, Any] | None = None,
) -> DatasetView:
    """The dataset at `url` with its `first` samples; `index` is the place of its index (None: beside the shards).

    Raises ObjectNotFound where there is no index, IndexFormatError, IndexMismatch, StoreError.
    """
    place, shards, manifest = _open(url, index, storage_options)
    total = int(manifest.samples.sum())
    columns = {}
    for name, totals in manifest.totals.items():
        used = totals[manifest.samples > 0]
        if len(used):
            low, high = float(used[:, 1].min()), float(used[:, 2].max())
            columns[name] = (low, float(used[:, 0].sum()) / total, high)
    shown: list[SampleView] = []
    for i in range(len(manifest)):
        if len(shown) >= first:
            break
        table = load_table(place, manifest, i)
        shown += [_view(shards, manifest.name(i), table, j) for j in range(min(len(table), first - len(shown)))]
    return DatasetView(
        str(url), len(manifest), total, int(manifest.sizes.sum()), manifest.digest(),
        manifest.meta.get("fields", {}), columns, manifest.meta.get("skipped", {}), shown,
    )  # fmt: skip


def describe_sample(
    url: str | os.PathLike[str],
    key: str,
    *,
    index: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> SampleView:
    """The first sample with this key.  Raises as `describe`, and ShardError where there is no such sample."""
    place, shards, manifest = _open(url, index, storage_options)
    wanted = key.encode("utf-8", "surrogatepass")
    for i in range(len(manifest)):
        table = load_table(place, manifest, i)
        # Keys lie end to end: most shards are ruled out by one search over their bytes.
        if wanted in table.key_bytes.tobytes():
            for j in range(len(table)):
                if table.key(j) == key:
                    return _view(shards, manifest.name(i), table, j)
    raise ShardError(f"no sample has the key {key!r}", shard=str(url), hint="keys are names up to their first dot")


def _open(
    url: str | os.PathLike[str], index: str | os.PathLike[str] | None, options: Mapping[str, Any] | None
) -> tuple[Store, Store, Manifest]:
    """(store of the index, store of the shards, manifest)."""
    place = open_store(url if index is None else index, options)
    manifest = load_manifest(place)
    if index is not None:
        return place, open_store(url, options), manifest
    return place, place if manifest.base is None else open_store(manifest.base, options), manifest


def _view(shards: Store, name: str, table: ShardTable, i: int) -> SampleView:
    spans = table.spans(i)
    values: dict[str, Any] = {}
    for field, span in spans.items():
        if span.size <= _SHOWN and field.rpartition(".")[2] in _READABLE and not table.gzipped:
            raw = shards.read_range(name, span.offset, span.offset + span.size)
            try:
                values[field] = decode(field, raw)
            except DecodeError as error:
                values[field] = str(error)
    sizes = {field: span.size for field, span in spans.items()}
    numbers = {column: array[i].item() for column, array in table.columns.items()}
    return SampleView(table.key(i), name, sizes, numbers, values)
