"""What was read and how long it took, by stage; and in words, which stage binds.

>>> counters = Counters()
>>> with counters.timed("decode"):
...     ...
>>> counters.add("batches", 1)
>>> print(summed([counters.totals()], {"seconds": 2.0, "waited": 1.5, "samples": 64, "asked": 1}, cores=2))
32 samples/s, ... the trainer waited 75% of the time ...
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from threading import RLock
from typing import Any, Final, Self

from .monitor import Gpu

FREE: Final = 0.05
"""Share of its time that a trainer may wait before reading is said to bind."""
BUSY: Final = 0.75
"""Share of their time that threads work from which on more of them would help."""
STAGES: Final = ("fetch", "decode", "collate")
TIERS: Final = ("memory", "disk", "shared", "origin")
"""Where samples that are not mapped come from, the nearest first."""
_FROM: Final = tuple(f"from_{tier}" for tier in TIERS)


class Counters:
    """Sums by name; safe to share between threads."""

    def __init__(self) -> None:
        # Iterators that are collected count too, and collection can happen while the lock is held.
        self._lock = RLock()
        self._totals: dict[str, float] = {}

    def add(self, name: str, amount: float) -> None:
        """Add to a sum."""
        with self._lock:
            self._totals[name] = self._totals.get(name, 0) + amount

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the seconds that the block takes to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - start)

    def totals(self) -> Mapping[str, float]:
        """All sums as they are now."""
        with self._lock:
            return dict(self._totals)


@dataclass(frozen=True)
class Stats:
    """What a loader has done since it was made, or between two moments (`later - earlier`).

    Seconds are those of iterations, from the first batch asked for to the last one given; waiting before a batch came
    is in `waited`.  fetch, decode (with transforms) and collate are seconds of threads, over all of them together, and
    count what is read ahead too; `cpu` is processor time of the trainer's process and the workers.
    """

    seconds: float = 0.0
    waited: float = 0.0
    batches: int = 0
    samples: int = 0
    bytes_read: int = 0
    fetch: float = 0.0
    decode: float = 0.0
    collate: float = 0.0
    from_memory: int = 0
    """Bytes of samples that came from chunks kept in memory, ..."""
    from_disk: int = 0
    """... from the disk tier of the cache, ..."""
    from_shared: int = 0
    """... from its shared tier, ..."""
    from_origin: int = 0
    """... and from the store of the shards; mapped local shards count in none of these."""
    fetched: int = 0
    """Bytes that came over the network from the store of the shards."""
    hedged: int = 0
    """Requests that were made a second time, since the first took much longer than usual."""
    threads: int = 0
    asked: int = 0
    """Units (batches, or runs of single samples) that were asked for ..."""
    ready: int = 0
    """... and how many of them lay ready."""
    copies: int = 0
    """Batches that were copied, since the trainer kept older ones."""
    skipped: int = 0
    cpu: float = 0.0
    cores: int = 1
    gpu: Gpu | None = None
    """Utilisation and memory of the device as last seen, where NVML is there."""

    def __sub__(self, earlier: Self) -> Self:
        now, before = asdict(self), asdict(earlier)
        as_now = {"threads", "cores", "gpu"}
        changed = {name: now[name] - before[name] for name in now if name not in as_now}
        return replace(self, **changed)

    def as_dict(self) -> dict[str, Any]:
        """All figures, for a log or JSON."""
        return asdict(self) | {"hits": self.hits, "binds": self.binds()}

    @property
    def hits(self) -> dict[str, float]:
        """Share of the bytes of samples that each tier of the cache gave; empty where all shards are mapped."""
        sizes = {tier: getattr(self, f"from_{tier}") for tier in TIERS}
        total = sum(sizes.values())
        return {tier: size / total for tier, size in sizes.items() if tier != "origin"} if total else {}

    def binds(self) -> str:
        """Which stage binds, in words."""
        if not self.seconds or not self.asked:
            return "nothing was read yet"
        waited = self.waited / self.seconds
        if waited < FREE:
            return f"the trainer binds: it waited for data {waited:.0%} of the time"
        threads = max(1, self.threads)
        times = {stage: getattr(self, stage) for stage in STAGES}
        busy = sum(times.values()) / (threads * self.seconds)
        stage = max(times, key=lambda name: times[name])
        said = f"the trainer waited {waited:.0%} of the time"
        used = f"{threads} thread{'s' if threads > 1 else ''}"
        if self.cpu > 0.9 * self.cores * self.seconds:
            return f"{said}; the processor binds: all {self.cores} cores are busy, most of it with {stage}"
        if busy > BUSY:
            advice = "threads or workers" if stage != "fetch" else "threads, or nearer storage,"
            return f"{said}; {stage} binds: {used} worked {min(1, busy):.0%} of the time; more {advice} would help"
        return (
            f"{said}, but {used} idled {max(0, 1 - busy):.0%} of it: the start of an epoch, short epochs, or "
            f"limits (ahead_bytes, prefetch) bind"
        )

    def __str__(self) -> str:
        if not self.seconds:
            return self.binds()
        parts = [
            f"{self.samples / self.seconds:,.0f} samples/s",
            f"{self.bytes_read / self.seconds / 1e6:,.1f} MB/s read",
            f"{self.ready / max(1, self.asked):.0%} of batches were ready",
            f"cpu {self.cpu / self.seconds:.1f} of {self.cores} cores",
        ]
        hits = [f"{share:.0%} {tier}" for tier, share in self.hits.items() if share]
        parts += [f"cache hits: {' + '.join(hits)}"] if hits else []
        parts += [f"{self.skipped} skipped"] if self.skipped else []
        parts += [str(self.gpu)] if self.gpu is not None else []
        return f"{', '.join(parts)}; {self.binds()}"


def summed(
    workers: Iterable[Mapping[str, float]], trainer: Mapping[str, float], *, cores: int, gpu: Gpu | None = None
) -> Stats:
    """The sums of what workers counted, and what the trainer's side knows."""
    totals: dict[str, float] = dict(trainer)
    for counted in workers:
        for name in (*STAGES, *_FROM, "bytes_read", "fetched", "hedged", "threads", "cpu"):
            totals[name] = totals.get(name, 0) + counted.get(name, 0)
    whole = {f.name for f in fields(Stats) if f.type == "int"}
    known = {name: int(v) if name in whole else v for name, v in totals.items() if name in Stats.__dataclass_fields__}
    return Stats(**known, cores=cores, gpu=gpu)  # type: ignore[arg-type]
