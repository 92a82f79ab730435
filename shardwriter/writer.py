"""ShardWriter: samples in, a dataset of tar shards with its index out."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from .destination import Destination
from .errors import EncodeError, NameRefused, ShardError
from .fields import encode
from .format import check_field
from .shard import Limits, PackedSample, ShardBuilder, ShardSummary, pack_sample, publish, temporary_path
from .store import open_store
from .table import ShardTable

DEFAULT_BYTES: Final = 128 << 20
"""Size of a shard unless asked otherwise: long sequential reads, and enough shards to deal out."""
_FROM_READERS: Final = frozenset({"__key__", "__url__", "__local_path__", "__repeat__"})


@dataclass(frozen=True, slots=True)
class Report:
    """What was written: shards, samples, bytes of the tars, seconds; and what a source passed over, by reason."""

    shards: int
    samples: int
    bytes: int
    seconds: float
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        rate = f"{self.samples / self.seconds:,.0f} samples/s" if self.seconds else ""
        shards = f"{self.shards:,} shard{'' if self.shards == 1 else 's'}"
        text = f"{self.samples:,} samples in {shards}, {self.bytes:,} bytes, {self.seconds:.1f} s, {rate}"
        if not self.samples:
            text = "no samples: an empty dataset of 0 shards"
        skipped = ", ".join(f"{n:,} {reason}" for reason, n in self.skipped.items())
        return f"{text}; passed over: {skipped}" if skipped else text

    @classmethod
    def of(cls, shards: Sequence[ShardSummary], since: float, skipped: Mapping[str, int] | None = None) -> Self:
        """The report of these shards; `since` is the value of time.perf_counter() at the start."""
        return cls(
            len(shards),
            sum(shard.entry.samples for shard in shards),
            sum(shard.entry.size for shard in shards),
            time.perf_counter() - since,
            dict(skipped or {}),
        )


class ShardWriter:
    """Writes samples as WebDataset shards, with an index, to a folder or to object storage.

    >>> with ShardWriter("s3://bucket/cc3m", max_bytes=128 << 20) as writer:
    ...     writer.write({"__key__": "000017", "jpg": jpeg_bytes, "txt": "a cat"}, columns={"tokens": 3})
    >>> writer.report.samples
    1

    A sample is a mapping of `__key__` to text and of field names to values.  Bytes are stored as they are, other values
    as the field's name says (see shardwriter.fields).  `__url__`, `__local_path__` and `__repeat__`, which readers add,
    are left out.  `columns` are numbers to keep in the index, the same names in each sample of a shard.

    A shard is full before the sample with which its file would pass `max_bytes`, or after `max_samples`; a sample that
    is larger than `max_bytes` gets a shard of its own.  Shards are named `<prefix>-000000.tar` and so on, and appear
    under that name only when whole; the manifest comes last.  An exception inside the `with` block publishes none.

    `resume=True` goes on where an earlier run ended: offer the same samples again from the first one; shards that are
    whole are compared (key, fields, sizes, columns) and kept.  `storage_options` go to the store (see open_store).

    Raises DestinationError for a place that holds a dataset already or, on resuming, another one.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        max_bytes: int = DEFAULT_BYTES,
        max_samples: int | None = None,
        prefix: str = "shard",
        resume: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._since = time.perf_counter()
        self._limits = Limits(max_bytes, max_samples)
        self._place = Destination(open_store(url, storage_options), prefix, self._limits, resume=resume)
        self._done: list[ShardSummary] = []
        self._shard: ShardBuilder | _KeptShard | None = None
        self._report: Report | None = None
        self._failed = False
        self._given_up = False

    def write(self, sample: Mapping[str, object], columns: Mapping[str, int | float] | None = None) -> None:
        """Add one sample.

        Raises NameRefused for a key or a field name, EncodeError for a value or a column; the sample is then not
        written, and the writer can go on.  Raises DestinationError for a sample that is not the one that the place
        holds, and StoreError; the writer is of no use after these.
        """
        self._check_open()
        packed = _packed(sample, columns)
        try:
            self._add(packed)
        except (NameRefused, EncodeError) as error:
            raise error.at(key=packed.key) from None
        except BaseException:
            self._fail()
            raise

    def close(self) -> Report:
        """Finish the last shard and publish the manifest.  Calling it again does no more."""
        if self._report is not None:
            return self._report
        self._check_open()
        try:
            self._finish_shard()
            self._place.finish(self._done)
        except BaseException:
            self._fail()
            raise
        self._report = Report.of(self._done, self._since)
        return self._report

    def abort(self) -> None:
        """Give up: drop the shard in the making.  Whole shards stay, without a manifest, for `resume=True`."""
        self._given_up = True
        self._fail()

    @property
    def report(self) -> Report:
        """What was written, once the writer is closed."""
        if self._report is None:
            raise ShardError("there is no report before the writer is closed", shard=self._place.store.url)
        return self._report

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._fail()
        elif not self._given_up:
            self.close()  # raises where a failure of `write` was caught and forgotten: the dataset is not complete

    def _add(self, sample: PackedSample) -> None:
        shard = self._shard
        if shard is not None and self._limits.passed(shard.samples, shard.bytes, sample.size):
            self._finish_shard()
        if self._shard is None:
            table = self._place.kept(len(self._done))
            if table is None:
                self._shard = ShardBuilder(temporary_path(self._place.store))
            else:
                self._shard = _KeptShard(self._place, len(self._done), table)
        self._shard.add(sample)

    def _finish_shard(self) -> None:
        shard = self._shard
        if shard is None or shard.samples == 0:
            self._shard = None
            if isinstance(shard, ShardBuilder):
                shard.abort()
            return
        name = self._place.shard_name(len(self._done))
        table = shard.finish()
        if isinstance(shard, ShardBuilder):
            self._done.append(publish(self._place.store, name, shard.path, table))
        else:
            self._done.append(ShardSummary.of(name, table))
        self._shard = None

    def _fail(self) -> None:
        self._failed = True
        if isinstance(self._shard, ShardBuilder):
            self._shard.abort()
        self._shard = None

    def _check_open(self) -> None:
        if self._failed or self._report is not None:
            raise ShardError(
                f"the writer is {'closed' if self._report is not None else 'of no use after an error'}",
                shard=self._place.store.url,
                hint=None if self._report is not None else "open the place again with resume=True",
            )


class _KeptShard:
    """A shard that an earlier run finished: takes samples like a ShardBuilder and compares them with the table."""

    def __init__(self, place: Destination, index: int, table: ShardTable) -> None:
        self._place = place
        self._index = index
        self._table = table
        self.samples = 0
        self.bytes = 0

    def add(self, sample: PackedSample) -> None:
        i, table = self.samples, self._table
        if i >= len(table):
            raise self._place.differs(self._index, f"ends before key {sample.key!r}")
        if table.key(i) != sample.key:
            raise self._place.differs(self._index, f"holds key {table.key(i)!r} in the place of {sample.key!r}")
        there = {name: span.size for name, span in table.spans(i).items()}
        offered = {name: len(data) for name, data in sample.fields}
        if there != offered:
            raise self._place.differs(self._index, f"holds key {sample.key!r} with {there} bytes, not {offered}")
        for name, value in sample.columns.items():
            column = table.columns.get(name)
            if column is None or column[i] != np.asarray(value):
                raise self._place.differs(self._index, f"holds key {sample.key!r} with another value of {name!r}")
        self.samples += 1
        self.bytes += sample.size

    def finish(self) -> ShardTable:
        if self.samples != len(self._table):
            raise self._place.differs(self._index, f"holds {len(self._table)} samples, not {self.samples}")
        return self._table


def _packed(sample: Mapping[str, object], columns: Mapping[str, int | float] | None) -> PackedSample:
    key = sample.get("__key__")
    if not isinstance(key, str):
        raise NameRefused(f"a sample needs a __key__ that is text, not {key!r}", rule="N5")
    try:
        fields = {name: encode(check_field(name), value) for name, value in sample.items() if name not in _FROM_READERS}
        return pack_sample(key, fields, columns)
    except ShardError as error:
        raise error.at(key=key) from None
