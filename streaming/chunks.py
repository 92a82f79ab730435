"""Chunks: the pieces in which shards are fetched and cached.

>>> chunks = Chunks.of(table, size=4 << 20)
>>> len(chunks), chunks.numbers[:3].tolist(), chunks.span(0)
(58, [0, 0, 0], (0, 4184576))

A chunk holds the samples that start in one stretch of CHUNK bytes of the shard, whole: no sample lies across a border,
so one chunk is enough to read it, and a chunk can be longer than the stretch.  Where chunks lie follows from the
sidecar alone, so that all readers of a shard cut it alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from shardwriter.table import ShardTable

Ints = NDArray[Any]
CHUNK: Final = 4 << 20
"""Bytes of a chunk, about: one request each.  Twice as much is hardly faster, and holds twice the memory."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of one shard: lows, highs [c], half-open byte spans; numbers [n], the chunk of each sample; samples
    [c], how many each holds.
    """

    lows: Ints
    highs: Ints
    numbers: Ints
    samples: Ints

    def __len__(self) -> int:
        return len(self.lows)

    @classmethod
    def of(cls, table: ShardTable, size: int | None = None) -> Self:
        """The chunks of a shard whose spans count in the file itself, of about `size` bytes (default: CHUNK)."""
        size = size or CHUNK
        starts = table.starts.astype(np.int64)
        present = table.field_offsets > 0
        reach = np.where(present, table.field_offsets.astype(np.int64) + table.field_sizes.astype(np.int64), 0)
        ends = starts + reach.max(axis=1, initial=0)
        _, numbers, samples = np.unique(starts // size, return_inverse=True, return_counts=True)
        lows = np.full(len(samples), np.iinfo(np.int64).max)
        highs = np.zeros(len(samples), np.int64)
        np.minimum.at(lows, numbers, starts)
        np.maximum.at(highs, numbers, ends)
        return cls(lows, highs, numbers.astype(np.int32), samples)

    def span(self, chunk: int) -> tuple[int, int]:
        """[low, high) of a chunk in the shard."""
        return int(self.lows[chunk]), int(self.highs[chunk])

    def measure(self, chunk: int) -> tuple[int, int]:
        """Bytes and samples of a chunk."""
        return int(self.highs[chunk] - self.lows[chunk]), int(self.samples[chunk])


@dataclass(frozen=True, slots=True)
class ShardName:
    """The name of a shard in a cache: `group` for all shards of one root URL, `shard` for this content of this one.

    >>> ShardName.of("s3://bucket/cc3m", "x-000000.tar", 250_000_000, "9f86d081...").entry(0, 4184576)
    '3c6e0b8a9c15224a8228b9a98ca1531d-0-3fd9c0'

    The digest is that of the index: a shard that is replaced and indexed again has another name.
    """

    group: str
    shard: str

    @classmethod
    def of(cls, root: str, name: str, size: int, digest: str) -> Self:
        """The name of the shard `name` below `root`, as its index describes it."""
        content = "\0".join((root, name, str(size), digest))
        return cls(sha256(root.encode()).hexdigest()[:16], sha256(content.encode()).hexdigest()[:32])

    def path(self, low: int, high: int) -> str:
        """The name, in the whole cache, of the bytes [low, high)."""
        return f"{self.group}/{self.entry(low, high)}"

    def entry(self, low: int, high: int) -> str:
        """The name, within the group, of the bytes [low, high)."""
        return f"{self.shard}-{low:x}-{high:x}"

    @property
    def index(self) -> str:
        """The name, in the whole cache, of the sidecar."""
        return f"{self.group}/{self.shard}-index"
