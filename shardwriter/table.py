"""What the index says: of one shard (its sidecar, ShardTable) and of a dataset (its manifest, Manifest).

>>> sample = SampleSpans("a", 0, 1024, {"txt": Span(512, 5)})
>>> table = ShardTable.build([sample], {}, {"bytes": 2048, "sha256": "00" * 32})
>>> again = ShardTable.from_bytes(table.to_bytes())
>>> again.key(0), again.spans(0)
('a', {'txt': Span(offset=512, size=5)})

Both are frozen, and both map to arrays without parsing: a table of a million samples opens as fast as one of ten.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from .aggregate import MAX_SHIFT, SIZE, Aggregates, HistogramTable, combine
from .errors import FormatError, IndexFormatError
from .format import Buffer, SampleSpans, Span, narrow, pack, pack_strings, unpack, unpack_string

MAX_FIELDS: Final = 4096
"""Distinct field names in one shard (rule S6)."""


@dataclass(frozen=True, slots=True)
class ShardTable:
    """Where each field of each sample of one shard lies, and the sample's numbers.

    starts [n]: first byte of each sample's first header; field_offsets, field_sizes [n, fields]: where the bytes of a
    field lie, counted from the sample's start (offset 0: the sample lacks the field); columns: name -> [n].
    `meta` holds at least `bytes` (size of the file), `sha256` (of the file) and, for gzip, `unpacked_bytes`.
    """

    fields: tuple[str, ...]
    starts: NDArray[Any]
    field_offsets: NDArray[Any]
    field_sizes: NDArray[Any]
    key_offsets: NDArray[Any]
    key_bytes: NDArray[Any]
    columns: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def gzipped(self) -> bool:
        """Whether the shard is gzip: the spans then count in the unpacked tar."""
        return "unpacked_bytes" in self.meta

    @property
    def content_bytes(self) -> int:
        """Size of the tar that the spans count in."""
        return int(self.meta.get("unpacked_bytes", self.meta["bytes"]))

    def key(self, i: int) -> str:
        """Key of sample i."""
        return unpack_string(self.key_offsets, self.key_bytes, i)

    def spans(self, i: int) -> dict[str, Span]:
        """Field -> span in the shard, in the order of `fields`, for the fields that sample i has."""
        start = int(self.starts[i])
        row = zip(self.fields, self.field_offsets[i].tolist(), self.field_sizes[i].tolist(), strict=True)
        return {name: Span(start + offset, size) for name, offset, size in row if offset}

    @classmethod
    def build(
        cls, samples: Sequence[SampleSpans], columns: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
    ) -> Self:
        """The table of a shard with these samples, in this order.  Raises FormatError above MAX_FIELDS."""
        names: dict[str, int] = {}
        for sample in samples:
            for name in sample.fields:
                names.setdefault(name, len(names))
        if len(names) > MAX_FIELDS:
            raise FormatError(
                f"the shard has {len(names)} different field names, at most {MAX_FIELDS} are allowed",
                rule="S6",
                hint="a field name starts at the first dot of the file name; rename files whose key has dots",
            )
        offsets = np.zeros((len(samples), len(names)), "<u8")
        sizes = np.zeros((len(samples), len(names)), "<u8")
        for i, sample in enumerate(samples):
            for name, span in sample.fields.items():
                offsets[i, names[name]] = span.offset - sample.start
                sizes[i, names[name]] = span.size
        key_offsets, key_bytes = pack_strings([s.key for s in samples])
        starts = np.array([s.start for s in samples], "<u8")
        return cls(
            tuple(names), starts, narrow(offsets), narrow(sizes), key_offsets, key_bytes, dict(columns), dict(meta)
        )

    def to_bytes(self) -> bytes:
        """The sidecar file."""
        arrays = {
            "starts": self.starts,
            "field_offsets": self.field_offsets,
            "field_sizes": self.field_sizes,
            "key_offsets": self.key_offsets,
            "key_bytes": self.key_bytes,
        }
        arrays |= {f"column/{name}": column for name, column in self.columns.items()}
        return pack("shard", {**self.meta, "fields": list(self.fields)}, arrays)

    @classmethod
    def from_bytes(cls, buffer: Buffer) -> Self:
        """Read a sidecar; arrays are views of `buffer`.  Raises IndexFormatError where its parts don't fit."""
        kind, meta, arrays = unpack(buffer)
        try:
            fields = tuple(meta.pop("fields"))
            columns = {name.removeprefix("column/"): a for name, a in arrays.items() if name.startswith("column/")}
            table = cls(
                fields, arrays["starts"], arrays["field_offsets"], arrays["field_sizes"],
                arrays["key_offsets"], arrays["key_bytes"], columns, meta,
            )  # fmt: skip
            n = len(table)
            fits = kind == "shard" and table.field_offsets.shape == table.field_sizes.shape == (n, len(fields))
            fits = fits and table.key_offsets.shape == (n + 1,) and all(c.shape == (n,) for c in columns.values())
            fits = fits and table.starts.shape == (n,) and table.key_bytes.shape == (int(table.key_offsets[-1]),)
            spans = (table.starts, table.field_offsets, table.field_sizes, table.key_offsets)
            fits = fits and all(array.dtype.kind == "u" for array in spans)
            fits = fits and isinstance(meta["bytes"], int) and len(bytes.fromhex(meta["sha256"])) == 32
        except (KeyError, TypeError, ValueError) as error:
            raise IndexFormatError(f"this is no complete sidecar ({error})", rule="I5") from None
        if not fits:
            raise IndexFormatError("the parts of the sidecar do not fit together", rule="I5")
        return table


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """What the manifest keeps of one shard."""

    name: str
    size: int
    samples: int
    sha256: bytes
    aggregates: Aggregates = field(default_factory=lambda: Aggregates({}, {}))


@dataclass(frozen=True, slots=True)
class Manifest:
    """The shards of a dataset, as arrays: sizes [s], samples [s], digests [s, 32], totals of each column [s, 3].

    `meta`: `fields` (field -> number of samples that have it), `base` (URL of the folder that the shard names are
    relative to, or None for the manifest's own folder), and `skipped` (what indexing left out, by reason).
    """

    name_offsets: NDArray[Any]
    name_bytes: NDArray[Any]
    sizes: NDArray[Any]
    samples: NDArray[Any]
    digests: NDArray[Any]
    totals: Mapping[str, NDArray[Any]]
    histograms: Mapping[str, HistogramTable]
    meta: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.samples)

    def name(self, i: int) -> str:
        """Name of shard i, relative to the base."""
        return unpack_string(self.name_offsets, self.name_bytes, i)

    def names(self) -> list[str]:
        """Names of all shards."""
        raw, ends = self.name_bytes.tobytes(), self.name_offsets.tolist()
        return [raw[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(ends)]

    @property
    def base(self) -> str | None:
        """URL of the folder that holds the shards, where it is not the manifest's own."""
        base = self.meta.get("base")
        return base if isinstance(base, str) else None

    def digest(self) -> str:
        """A short name for the content: it changes with the bytes or the order of any shard, not with their place."""
        return hashlib.sha256(self.digests.tobytes() + self.samples.astype("<u8").tobytes()).hexdigest()[:24]

    @classmethod
    def build(cls, shards: Sequence[ShardEntry], meta: Mapping[str, Any]) -> Self:
        """The manifest of these shards, in this order."""
        name_offsets, name_bytes = pack_strings([s.name for s in shards])
        columns = sorted({name for s in shards for name in s.aggregates.totals})
        totals = {
            name: np.array([s.aggregates.totals.get(name, (0.0, 0.0, 0.0)) for s in shards], "<f8").reshape(
                len(shards), 3
            )
            for name in columns
        }
        names = sorted({name for s in shards for name in s.aggregates.histograms})
        histograms = {
            name: combine([s.aggregates.histograms.get(name) for s in shards], sizes=name == SIZE) for name in names
        }
        digests = np.frombuffer(b"".join(s.sha256 for s in shards), np.uint8).reshape(len(shards), 32)
        sizes = np.array([s.size for s in shards], "<u8")
        samples = np.array([s.samples for s in shards], "<u8")
        return cls(name_offsets, name_bytes, sizes, samples, digests, totals, histograms, dict(meta))

    def to_bytes(self) -> bytes:
        """The manifest file."""
        arrays = {
            "name_offsets": self.name_offsets,
            "name_bytes": self.name_bytes,
            "sizes": self.sizes,
            "samples": self.samples,
            "digests": self.digests,
        }
        arrays |= {f"total/{name}": values for name, values in self.totals.items()}
        for name, h in self.histograms.items():
            arrays |= {f"cells/{name}": h.cells, f"counts/{name}": h.counts, f"bounds/{name}": h.bounds}
        shifts = {name: h.shift for name, h in self.histograms.items() if h.shift}
        return pack("dataset", {**self.meta, "shifts": shifts}, arrays)

    @classmethod
    def from_bytes(cls, buffer: Buffer, *, checksum: Callable[[memoryview], int] = zlib.crc32) -> Self:
        """Read a manifest; arrays are views of `buffer`.  Raises IndexFormatError where its parts do not fit."""
        kind, meta, arrays = unpack(buffer, checksum=checksum)
        try:
            part = {prefix: _named(arrays, prefix) for prefix in ("total", "cells", "counts", "bounds")}
            shifts = meta.pop("shifts", {})
            histograms = {
                n: HistogramTable(c, part["counts"][n], part["bounds"][n], int(shifts.get(n, 0)))
                for n, c in part["cells"].items()
            }
            manifest = cls(
                arrays["name_offsets"], arrays["name_bytes"], arrays["sizes"], arrays["samples"], arrays["digests"],
                part["total"], histograms, meta,
            )  # fmt: skip
            s = len(manifest)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise IndexFormatError(f"this is no complete manifest ({error})", rule="I6") from None
        fits = kind == "dataset" and manifest.name_offsets.shape == (s + 1,) and manifest.sizes.shape == (s,)
        fits = fits and manifest.name_offsets.dtype.kind == manifest.sizes.dtype.kind == "u"
        fits = fits and manifest.samples.dtype.kind == "u" and manifest.samples.shape == (s,)
        fits = fits and manifest.name_bytes.shape == (int(manifest.name_offsets[-1]),)
        fits = fits and manifest.digests.shape == (s, 32) and all(t.shape == (s, 3) for t in manifest.totals.values())
        fits = fits and all(_whole(h, s, 2 if name == SIZE else 1) for name, h in histograms.items())
        if not fits:
            raise IndexFormatError("the parts of the manifest do not fit together", rule="I6")
        return manifest


def _whole(histogram: HistogramTable, shards: int, columns: int) -> bool:
    cells, counts, bounds, shift = histogram
    fits = cells.dtype.kind == counts.dtype.kind == "u" and cells.ndim == 1 and 0 <= shift <= MAX_SHIFT
    return fits and counts.shape == (shards, len(cells)) and bounds.shape == (len(cells), 2, columns)


def _named(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.partition("/")[2]: a for name, a in arrays.items() if name.startswith(prefix + "/")}


def count_fields(tables: Iterable[ShardTable]) -> dict[str, int]:
    """Field -> number of samples that have it, over some shards."""
    counts: dict[str, int] = {}
    for table in tables:
        present = (table.field_offsets > 0).sum(axis=0).tolist()
        for name, n in zip(table.fields, present, strict=True):
            counts[name] = counts.get(name, 0) + n
    return dict(sorted(counts.items()))
