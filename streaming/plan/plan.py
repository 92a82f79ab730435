"""The plan: everything that decides which samples come when, made from the manifest's numbers alone.

>>> print(Plan.make(np.full(20, 100), batch=FixedBatch(32), shuffle=True, seed=7, world_size=2))
2,000 samples in 20 shards, read along 4 lanes (Shuffle(shards=4, buffer=10000), seed 7)
62 full micro-batches of FixedBatch(32) and a short one of 16: 31 steps on each of 2 ranks
tail "drop": 16 of 2,000 samples left out each epoch (0.80 %)
workers per rank that read no byte twice: 1, 2

A plan prints, compares and computes; it opens no file, starts no thread and knows no torch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from .batching import FixedBatch
from .epoch import EpochPlan
from .lanes import MOST, MOST_SINGLES, choose_lanes
from .layout import TAILS, Tail, check_place, good_workers, steps_of
from .shuffle import Shuffle

ORDER_VERSION: Final = 1
"""Changes when the same arguments give another order; part of every saved state."""


@dataclass(frozen=True, slots=True)
class TailReport:
    """What the tail policy does to an epoch, in samples and micro-batches."""

    dropped_samples: int
    repeated_samples: int
    repeated_batches: int


@dataclass(frozen=True, eq=False)
class Plan:
    """Samples, lanes, batches and tail of a dataset for a number of ranks.  Made by `Plan.make` or `dataset.plan`."""

    counts: NDArray[np.int64]
    batch: FixedBatch | None
    shuffle: Shuffle | None
    seed: int
    lanes: int
    tail: Tail
    world_size: int
    dataset: str

    @classmethod
    def make(
        cls,
        counts: NDArray[Any],
        *,
        batch: FixedBatch | None = None,
        shuffle: Shuffle | bool = False,
        seed: int = 0,
        lanes: int | None = None,
        tail: Tail | None = None,
        world_size: int = 1,
        dataset: str = "",
    ) -> Self:
        """Check the arguments and fill in what was left open.

        counts [shards]: samples of each shard.  `lanes` defaults to as many as leave each lane a whole block of
        shards, or 1 without shuffle (the order of the dataset itself); `tail` to "drop" with shuffle, "pad" without;
        `dataset`, a name for the content, to a digest of the counts.
        Raises PlanError for arguments that make no plan.
        """
        counts = _checked(counts)
        if shuffle is not None and not isinstance(shuffle, bool | Shuffle):
            raise PlanError(f"shuffle={shuffle!r}", hint="give True, False or Shuffle(shards=, buffer=)")
        mix = shuffle if isinstance(shuffle, Shuffle) else Shuffle() if shuffle else None
        if tail is not None and tail not in TAILS:
            raise PlanError(f"tail={tail!r}", hint=f"it is one of {', '.join(TAILS)}")
        if lanes is not None and (not isinstance(lanes, int) or isinstance(lanes, bool) or lanes < 1):
            raise PlanError(f"lanes={lanes!r}: a plan has at least 1 lane")
        if not isinstance(seed, int | np.integer) or isinstance(seed, bool):
            raise PlanError(f"seed={seed!r} is not a whole number")
        if batch is not None and not isinstance(batch, FixedBatch):
            raise PlanError(f"batch={batch!r}", hint="give FixedBatch(n), or None for single samples")
        check_place(0, world_size)
        most = MOST if batch else MOST_SINGLES
        chosen = lanes or (choose_lanes(len(counts), mix.shards, int(counts.sum()), most) if mix else 1)
        name = dataset or hashlib.sha256(counts.astype("<i8").tobytes()).hexdigest()[:24]
        return cls(counts, batch, mix, int(seed), chosen, tail or ("drop" if mix else "pad"), world_size, name)

    @cached_property
    def samples(self) -> int:
        """Samples of the dataset."""
        return int(self.counts.sum())

    @property
    def batch_samples(self) -> int:
        """Samples of a full micro-batch; 1 for an un-batched plan."""
        return self.batch.samples if self.batch else 1

    @property
    def full(self) -> int:
        """Full micro-batches of an epoch.  It does not depend on the lanes, since what is left in them is pooled."""
        return self.samples // self.batch_samples

    @property
    def total(self) -> int:
        """Micro-batches of an epoch, the short one included: the positions that hold samples."""
        return -(-self.samples // self.batch_samples)

    @property
    def end(self) -> int:
        """The position at which the epoch is over for rank 0 of this plan's ranks."""
        return self.steps() * self.world_size

    def __len__(self) -> int:
        return self.steps()

    def steps(self, *, start: int = 0, rank: int = 0) -> int:
        """How many micro-batches `rank` yields from `start` on; the same for all ranks unless tail="uneven"."""
        return steps_of(
            total=self.total, full=self.full, world_size=self.world_size, tail=self.tail, start=start, rank=rank
        )

    def source(self, position: int) -> tuple[int, bool]:
        """(position whose samples are given, whether that is a repeat), for positions that a padded epoch runs over."""
        return (position, False) if position < self.total else ((position - self.total) % self.total, True)

    def epoch(self, epoch: int) -> EpochPlan:
        """The order of one epoch."""
        return EpochPlan(
            self.counts, batch=self.batch_samples, shuffle=self.shuffle, seed=self.seed, epoch=epoch, lanes=self.lanes
        )

    def tail_report(self) -> TailReport:
        """How many samples the tail policy leaves out or gives again, known before the first batch."""
        size, short = self.batch_samples, self.samples % self.batch_samples
        if self.tail == "drop":
            return TailReport(self.samples - self.steps() * self.world_size * size, 0, 0)
        if self.tail == "uneven" or self.total == 0:
            return TailReport(0, 0, 0)
        repeats = self.steps() * self.world_size - self.total
        return TailReport(0, repeats * size - (repeats // self.total) * ((size - short) % size), repeats)

    def fingerprint(self) -> dict[str, Any]:
        """What the order depends on; two plans with equal fingerprints give equal sequences.  JSON-able."""
        return {
            "order": ORDER_VERSION,
            "dataset": self.dataset,
            "samples": self.samples,
            "shards": len(self.counts),
            "batch": self.batch.order_key if self.batch else None,
            "shuffle": repr(self.shuffle) if self.shuffle else None,
            "seed": self.seed,
            "lanes": self.lanes,
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        mine, theirs = (
            (self.fingerprint(), self.tail, self.world_size),
            (other.fingerprint(), other.tail, other.world_size),
        )
        return mine == theirs and np.array_equal(self.counts, other.counts)

    def __hash__(self) -> int:
        return hash((tuple(self.fingerprint().values()), self.tail, self.world_size))

    def __str__(self) -> str:
        order = f"{self.shuffle}, seed {self.seed}" if self.shuffle else "in order"
        samples, shards = _number(self.samples, "sample"), _number(len(self.counts), "shard")
        lines = [f"{samples} in {shards}, read along {_number(self.lanes, 'lane')} ({order})"]
        ranks = f"each of {self.world_size} ranks" if self.world_size > 1 else "1 rank"
        more = self.total % self.world_size
        if self.tail == "uneven" and more:
            ranks = f"{more} of {self.world_size} ranks, one less on the others"
        steps = f"{_number(self.steps(), 'step')} on {ranks}"
        if self.batch is None:
            lines.append(f"single samples: {steps}")
        else:
            short = self.samples % self.batch_samples
            rest = f" and a short one of {short}" if short else ""
            lines.append(f"{_number(self.full, 'full micro-batch')} of {self.batch}{rest}: {steps}")
        return "\n".join([*lines, self._tail_line(), self._workers_line()])

    def _tail_line(self) -> str:
        tail = self.tail_report()
        share = f"({100 * tail.dropped_samples / max(1, self.samples):.2f} %)"
        if self.tail == "drop":
            left_out = f"{tail.dropped_samples:,} of {_number(self.samples, 'sample')}"
            return f'tail "drop": {left_out} left out each epoch {share}'
        if self.tail == "pad":
            again = f"{_number(tail.repeated_samples, 'sample')} in {_number(tail.repeated_batches, 'micro-batch')}"
            return f'tail "pad": {again} given again, flagged'
        return 'tail "uneven": every sample exactly once'

    def _workers_line(self) -> str:
        if self.lanes == 1 and self.shuffle is None:
            return "workers per rank that read no byte twice: any (each micro-batch is one run of the dataset)"
        good = good_workers(self.lanes, self.world_size)
        if good:
            return f"workers per rank that read no byte twice: {', '.join(map(str, good))}"
        lanes, ranks = _number(self.lanes, "lane"), _number(self.world_size, "rank")
        return f"readers share lanes ({lanes}, {ranks}) and read ranges of the same shards"


def _checked(counts: NDArray[Any]) -> NDArray[np.int64]:
    """A copy that nobody can change, so that a plan stays what it is."""
    given = np.asarray(counts)
    if given.ndim != 1 or (given.size and (given.dtype.kind not in "iu" or given.min() < 0)):
        raise PlanError("counts are no list of sample counts", hint="give one whole number of at least 0 a shard")
    checked = given.astype(np.int64)
    checked.flags.writeable = False
    return checked


def _number(n: int, what: str) -> str:
    """3,000 shards, 1 shard."""
    return f"{n:,} {what}{'' if n == 1 else 'es' if what.endswith('ch') else 's'}"
