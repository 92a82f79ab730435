"""One shard being written: samples into tar bytes, and the table of where they lie.

>>> sample = pack_sample("000017", {"txt": b"a cat", "cls": b"3"})
>>> [name for name, _ in sample.fields], sample.size
(['cls', 'txt'], 2048)

The bytes of a shard and of its sidecar depend on its samples alone: not on who writes them, when, or in which process.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from .aggregate import aggregate
from .columns import ColumnBuilder
from .errors import NameRefused, StoreError
from .format import INDEX_SUFFIX, SampleSpans, Span, check_field, check_key, member_name
from .store import Store
from .store.base import temporary_name
from .table import ShardEntry, ShardTable, count_fields
from .tar import BLOCK, END, header_blocks, padding

_FLUSH: Final = 4 << 20
"""Bytes that are hashed and written at once."""


class PackedSample(NamedTuple):
    """A checked sample: (field, bytes) in the order of the tar, the header of each, and its size in the tar."""

    key: str
    fields: Sequence[tuple[str, bytes]]
    headers: Sequence[bytes]
    size: int
    columns: Mapping[str, int | float]


def pack_sample(
    key: str, fields: Mapping[str, bytes], columns: Mapping[str, int | float] | None = None
) -> PackedSample:
    """Check the names of a sample and make its headers.  Raises NameRefused."""
    check_key(key)
    if not fields:
        raise NameRefused("a sample needs at least one field", key=key, rule="N6")
    for field in fields:
        check_field(field)
    ordered = sorted(fields.items())
    headers: list[bytes] = []
    total = 0
    for field, data in ordered:
        size = len(data)
        header = header_blocks(member_name(key, field), size)
        headers.append(header)
        total += len(header) + size + -size % BLOCK
    return PackedSample(key, ordered, headers, total, columns or {})


def sample_size(key: str, sizes: Mapping[str, int]) -> int:
    """Bytes in the tar of a sample whose fields have these sizes: what pack_sample says, without the data."""
    total = 0
    for field, size in sizes.items():
        name = member_name(key, field)
        # Only long names need more than one block, and a character is at most four bytes.
        header = BLOCK if len(name) <= 25 or len(name.encode()) <= 100 else len(header_blocks(name, size))
        total += header + size + -size % BLOCK
    return total


@dataclass(frozen=True, slots=True)
class Limits:
    """When a shard is full: `max_bytes` of the whole file, `max_samples` (None: any number)."""

    max_bytes: int
    max_samples: int | None = None

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or (self.max_samples is not None and self.max_samples < 1):
            raise ValueError(f"the limits of a shard must be at least 1, not {self.max_bytes} and {self.max_samples}")

    def passed(self, samples: int, held: int, size: int) -> bool:
        """Whether a sample of `size` bytes must go to a new shard, after `samples` samples of `held` bytes."""
        return samples > 0 and (held + size + len(END) > self.max_bytes or samples == self.max_samples)


class SourceDigest:
    """A digest over key, fields, sizes and the user's columns of a shard's samples: what can be told without reading.

    Kept in the sidecar as `source`, so that an interrupted conversion can tell its own shards from another's.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._lines: list[str] = []

    def add(self, key: str, sizes: Iterable[tuple[str, int]], columns: Mapping[str, int | float]) -> None:
        """Add a sample; `sizes` are in the order of the tar."""
        # Names hold no control characters, so the lines can't be confused.
        self._lines.append(key)
        for field, size in sizes:
            self._lines.append(f"{field}\t{size}")
        for name in sorted(columns):
            self._lines.append(f"{name!r}\t{float(columns[name])!r}")
        self._lines.append("\n")
        if len(self._lines) > 1000:
            self._flush()

    def hexdigest(self) -> str:
        """The digest so far."""
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        self._hash.update("\n".join([*self._lines, ""]).encode())
        self._lines.clear()


class ShardBuilder:
    """Writes one shard to a local file and keeps its table.

    >>> builder = ShardBuilder(Path("/data/cc3m/.part"))
    >>> builder.add(pack_sample("0", {"txt": b"a cat"}))
    >>> table = builder.finish()
    >>> table.meta["bytes"]
    2048

    Nothing of a sample that `add` refuses is written.  `abort` removes the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.samples = 0
        self.bytes = 0
        """Bytes of the tar so far, without its end mark."""
        try:
            self._file = open(path, "xb")  # noqa: SIM115 - closed by finish and abort
        except OSError as error:
            raise _failed(path, error) from error
        # Hashing and writing leave the GIL to the caller, who makes the next samples meanwhile.
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="shardwriter")
        self._written: Future[None] | None = None
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._hash = hashlib.sha256()
        self._source = SourceDigest()
        self._columns = ColumnBuilder()
        self._spans: list[SampleSpans] = []
        self._keys: set[str] = set()

    def add(self, sample: PackedSample) -> None:
        """Append one sample.  Raises NameRefused for a key that is in the shard, EncodeError for its columns."""
        if sample.key in self._keys:
            raise NameRefused("the key comes twice in this shard", rule="S2", hint="give every sample its own key")
        self._columns.add(sample.fields, sample.columns)
        self._keys.add(sample.key)
        start = at = self.bytes
        spans: dict[str, Span] = {}
        sizes: list[tuple[str, int]] = []
        for (field, data), header in zip(sample.fields, sample.headers, strict=True):
            size = len(data)
            sizes.append((field, size))
            self._pending += (header, data, padding(size))
            at += len(header)
            spans[field] = Span(at, size)
            at += size + -size % BLOCK
        self._source.add(sample.key, sizes, sample.columns)
        self._spans.append(SampleSpans(sample.key, start, at, spans))
        self.samples += 1
        self.bytes = at
        self._pending_bytes += sample.size
        if self._pending_bytes >= _FLUSH:
            self._flush()

    def finish(self) -> ShardTable:
        """Write the end mark and close the file, which is then whole.  Raises StoreError."""
        self._pending.append(END)
        self._flush()
        self._wait()
        self._writing.shutdown()
        try:
            self._file.close()
        except OSError as error:
            raise _failed(self.path, error) from error
        meta = {
            "bytes": self.bytes + len(END),
            "sha256": self._hash.hexdigest(),
            "source": self._source.hexdigest(),
        }
        return ShardTable.build(self._spans, self._columns.arrays(), meta)

    def abort(self) -> None:
        """Close and remove the file; no error where it is gone already."""
        self._writing.shutdown()
        try:
            self._file.close()
        except OSError:
            pass  # what could not be written is not wanted any more
        finally:
            self.path.unlink(missing_ok=True)

    def _flush(self) -> None:
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._wait()
        self._written = self._writing.submit(self._write, data)

    def _wait(self) -> None:
        if self._written is not None:
            self._written.result()

    def _write(self, data: bytes) -> None:
        self._hash.update(data)
        try:
            self._file.write(data)
        except OSError as error:
            raise _failed(self.path, error) from error


def _failed(path: Path, error: OSError) -> StoreError:
    return StoreError(f"the shard can't be written to {path} ({error.strerror or error})", hint="is the disk full?")


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """What the manifest needs of a shard: its entry, and how many of its samples have each field."""

    entry: ShardEntry
    fields: Mapping[str, int]

    @classmethod
    def of(cls, name: str, table: ShardTable) -> ShardSummary:
        """The summary of the shard with this table."""
        meta: Mapping[str, Any] = table.meta
        digest = bytes.fromhex(meta["sha256"])
        entry = ShardEntry(name, int(meta["bytes"]), len(table), digest, aggregate(table.columns))
        return cls(entry, count_fields([table]))


def temporary_path(store: Store) -> Path:
    """A fresh path for a shard in the making: in the store's folder, so that it only needs a new name in the end."""
    return (Path(tempfile.gettempdir()) if store.path is None else store.path) / temporary_name()


def publish(store: Store, name: str, path: Path, table: ShardTable) -> ShardSummary:
    """Hand a finished shard to the store, then its sidecar: a shard with a sidecar is whole.  `path` is gone then."""
    store.write_file(name, path)
    store.write(name + INDEX_SUFFIX, table.to_bytes())
    return ShardSummary.of(name, table)
