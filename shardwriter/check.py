"""One shard compared with what its index promises, and the findings that come of it.

>>> print(Finding("x-000000.tar", "samples", "4 promised, 3 found"))
error: samples: x-000000.tar: 4 promised, 3 found
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from .aggregate import SIZE, aggregate, coarse
from .errors import FormatError, ObjectNotFound, ShardError, StoreError
from .format import INDEX_SUFFIX
from .jobs import shown_bytes
from .measure import MeasuredShard, measure_shard
from .open import disagreement
from .store import Store
from .table import Manifest, ShardTable

_SHOWN: Final = 20
"""Errors, and notes, that a report prints."""
_NOTED: Final = 20
"""Unreadable fields of one shard that are listed by name; one more line counts the rest."""
_NO_SAMPLE: Final = frozenset({"hidden file", "metadata", "no field name"})


@dataclass(frozen=True, slots=True)
class Finding:
    """Something found: in which shard (None: the dataset), of which kind, and where in the shard.

    `kind` is the class of a format error ("TruncatedShard"), or one of: storage, missing, unlisted, size, digest,
    samples, spans, numbers, totals, sidecar, manifest, unfinished, leftover, unreadable, empty, passed over.
    A note is worth knowing and no reason to distrust the dataset; only errors count for `ok`.
    """

    shard: str | None
    kind: str
    message: str
    key: str | None = None
    offset: int | None = None
    severity: Literal["error", "note"] = "error"

    def __str__(self) -> str:
        where = [self.shard or "", f"key {self.key}" if self.key else ""]
        where.append("" if self.offset is None else f"offset {self.offset}")
        place = ", ".join(part for part in where if part)
        return f"{self.severity}: {self.kind}: {place + ': ' if place else ''}{self.message}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was read, and what was found; shards are named as in the manifest."""

    shards: int
    samples: int
    bytes: int
    seconds: float
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no error; notes don't count."""
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are errors."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def __str__(self) -> str:
        size, errors = f"{shown_bytes(self.bytes)} in {self.seconds:.1f} s", len(self.errors)
        lines = [f"verified {self.shards:,} shards: {self.samples:,} samples, {size}"]
        lines.append(f"{errors:,} error{'s' if errors != 1 else ''}" if errors else "no errors")
        notes = [finding for finding in self.findings if finding.severity == "note"]
        shown = [*self.errors[:_SHOWN], *notes[:_SHOWN]]
        lines += [f"  {finding}" for finding in shown]
        if len(shown) < len(self.findings):
            lines.append(f"  and {len(self.findings) - len(shown):,} more")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Promise:
    """What the manifest says of one shard; `cells` has the histograms as name -> {cell: count}, `shifts` how
    often the steps of their scales are halved.
    """

    size: int
    samples: int
    digest: bytes
    totals: Mapping[str, tuple[float, ...]]
    cells: Mapping[str, Mapping[int, int]]
    shifts: Mapping[str, int]

    @classmethod
    def of(cls, manifest: Manifest, i: int) -> Promise:
        """What `manifest` says of shard `i`."""
        totals = {name: tuple(rows[i].tolist()) for name, rows in manifest.totals.items()}
        cells = {name: _counted(h.cells, h.counts[i]) for name, h in manifest.histograms.items()}
        shifts = {name: h.shift for name, h in manifest.histograms.items()}
        size, samples = int(manifest.sizes[i]), int(manifest.samples[i])
        return cls(size, samples, manifest.digests[i].tobytes(), totals, cells, shifts)


@dataclass(frozen=True, slots=True)
class CheckJob:
    """A shard to check: where it and its sidecar are, and what is promised (None: it is not in the manifest)."""

    root: Store
    place: Store
    name: str
    promise: Promise | None


@dataclass(frozen=True, slots=True)
class Checked:
    """A shard that was checked; `read` is False where it could not be read at all."""

    read: bool
    samples: int
    bytes: int
    findings: list[Finding]


def check_shard(job: CheckJob) -> Checked:
    """Read one shard and its sidecar, and list all that is wrong."""
    try:
        shard = measure_shard(job.root, job.name, salvage=True)
    except StoreError as error:
        kind = "missing" if isinstance(error, ObjectNotFound) else "storage"
        return Checked(False, 0, 0, [Finding(job.name, kind, error.fact)])
    findings = [_of_error(job.name, error) for error in shard.damage]
    findings += _against_promise(job, shard)
    findings += _against_sidecar(job, shard)
    findings += _notes(job.name, shard)
    return Checked(True, len(shard.table), int(shard.table.meta["bytes"]), findings)


def _of_error(name: str, error: ShardError) -> Finding:
    message = f"{error.fact}: {error.hint}" if error.hint else error.fact
    return Finding(name, type(error).__name__, message, error.key, error.offset)


def _against_promise(job: CheckJob, shard: MeasuredShard) -> Iterator[Finding]:
    if job.promise is None:
        return
    size, samples, digest = shard.table.meta["bytes"], len(shard.table), shard.table.meta["sha256"]
    if size != job.promise.size:
        yield Finding(job.name, "size", f"the manifest promises {job.promise.size} bytes, the shard has {size}")
    elif digest != job.promise.digest.hex():
        promised = job.promise.digest.hex()
        yield Finding(job.name, "digest", f"the manifest promises {promised[:16]}, the shard has {digest[:16]}")
    if samples != job.promise.samples:
        yield Finding(
            job.name, "samples", f"the manifest promises {job.promise.samples} samples, {samples} whole ones were found"
        )


def _against_sidecar(job: CheckJob, shard: MeasuredShard) -> Iterator[Finding]:
    try:
        table = ShardTable.from_bytes(job.place.read(job.name + INDEX_SUFFIX))
    except ObjectNotFound:
        if job.promise is not None:
            yield Finding(job.name, "sidecar", f"there is no {job.name}{INDEX_SUFFIX}")
        return
    except (FormatError, StoreError) as error:
        yield Finding(job.name, "sidecar", error.fact)
        return
    if job.promise is not None:
        problem = disagreement(table, job.promise.samples, job.promise.size, job.promise.digest)
        if problem:
            yield Finding(job.name, "sidecar", problem)
        elif not _adds_up(table, job.promise):
            yield Finding(job.name, "totals", "the sums or histograms in the manifest are not those of the sidecar")
    if len(table) != len(shard.table):
        fact = f"the sidecar promises {len(table)} samples, {len(shard.table)} whole ones were found"
        yield Finding(job.name, "samples", fact)
        return
    yield from _spans(job.name, table, shard.table)
    yield from _numbers(job.name, table, shard.table)


def _spans(name: str, promised: ShardTable, found: ShardTable) -> Iterator[Finding]:
    """The first sample that does not lie where the sidecar says, if there is one."""
    parts = ("starts", "field_offsets", "field_sizes", "key_offsets", "key_bytes")
    if promised.fields == found.fields and all(
        np.array_equal(getattr(promised, part), getattr(found, part)) for part in parts
    ):
        return
    for i in range(len(found)):
        key, start, spans = found.key(i), int(found.starts[i]), found.spans(i)
        if promised.key(i) != key:
            fact = f"sample {i} is {key!r}, the sidecar says {promised.key(i)!r}"
        elif promised.spans(i) != spans:
            fact = f"sample {i} has {_shown(spans)}, the sidecar says {_shown(promised.spans(i))}"
        elif int(promised.starts[i]) != start:
            fact = f"sample {i} starts at byte {start}, the sidecar says {int(promised.starts[i])}"
        else:
            continue
        yield Finding(name, "spans", fact, key, start)
        return


def _shown(spans: Mapping[str, object]) -> str:
    text = ", ".join(f"{field} {span}" for field, span in spans.items())
    return text if len(text) < 200 else text[:200] + "..."


def _numbers(name: str, promised: ShardTable, found: ShardTable) -> Iterator[Finding]:
    """For each measured column, the first sample whose number is not the one in the sidecar."""
    for column, values in found.columns.items():
        if column not in promised.columns:
            yield Finding(name, "numbers", f"the sidecar has no column {column!r}")
            continue
        wrong = np.flatnonzero(promised.columns[column] != values)
        if len(wrong):
            i = int(wrong[0])
            fact = (
                f"{column} is {values[i]}, the sidecar says {promised.columns[column][i]} ({len(wrong)} such samples)"
            )
            yield Finding(name, "numbers", fact, found.key(i))


def _adds_up(table: ShardTable, promise: Promise) -> bool:
    own = aggregate(table.columns)
    nothing = (0.0, 0.0, 0.0)
    totals = {name: own.totals.get(name, nothing) for name in promise.totals}
    cells = {
        name: _counted(coarse(h.cells, promise.shifts.get(name, 0), sizes=name == SIZE), h.counts)
        for name, h in own.histograms.items()
        if len(h.cells)
    }
    return (
        own.totals.keys() <= promise.totals.keys()
        and all(np.allclose(totals[name], promise.totals[name]) for name in totals)
        and cells == {name: counts for name, counts in promise.cells.items() if counts}
    )


def _counted(cells: NDArray[Any], counts: NDArray[Any]) -> dict[int, int]:
    found: dict[int, int] = {}
    for cell, n in zip(cells.tolist(), counts.tolist(), strict=True):
        if n:
            found[cell] = found.get(cell, 0) + n
    return found


def _notes(name: str, shard: MeasuredShard) -> Iterator[Finding]:
    for key, field in shard.unreadable[:_NOTED]:
        fact = f"the size or length of {field!r} can't be read"
        yield Finding(name, "unreadable", fact, key, severity="note")
    if len(shard.unreadable) > _NOTED:
        fact = f"{len(shard.unreadable) - _NOTED} more images or audio can't be read"
        yield Finding(name, "unreadable", fact, severity="note")
    if not len(shard.table) and not shard.damage:
        yield Finding(name, "empty", "the shard holds no samples", severity="note")
    links = {reason: n for reason, n in shard.skipped.items() if not reason.startswith("sample ")}
    for reason in links.keys() - _NO_SAMPLE:
        yield Finding(name, "passed over", f"{links[reason]} x {reason}", severity="note")
