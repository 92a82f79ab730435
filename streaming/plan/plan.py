"""The plan: everything that decides which samples come when, made from the manifest's numbers alone.

>>> print(Plan.make(np.full(20, 100), batch=FixedBatch(32), shuffle=True, seed=7, world_size=2))
2,000 samples in 20 shards, read along 4 lanes (Shuffle(shards=4, buffer=10000), seed 7)
62 full micro-batches of FixedBatch(32) and a short one of 16: 31 steps on each of 2 ranks
tail "drop": 16 of 2,000 samples are left out each epoch (0.80 %)
workers per rank that read no byte twice: 1, 2

A plan prints, compares and computes; it opens no file, starts no thread and knows no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from .batching import FixedBatch
from .epoch import EpochPlan
from .lanes import choose_lanes
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
        shards, or 1 without shuffle (the order of the dataset itself); `tail` to "drop" with shuffle, "pad" without.
        Raises PlanError for arguments that make no plan.
        """
        counts = np.asarray(counts, dtype=np.int64)
        mix = shuffle if isinstance(shuffle, Shuffle) else Shuffle() if shuffle else None
        if tail is not None and tail not in TAILS:
            raise PlanError(f"tail={tail!r}", hint=f"it is one of {', '.join(TAILS)}")
        if lanes is not None and (not isinstance(lanes, int) or lanes < 1):
            raise PlanError(f"lanes={lanes!r}: a plan has at least 1 lane")
        if not isinstance(seed, int):
            raise PlanError(f"seed={seed!r} is not a whole number")
        if batch is not None and not isinstance(batch, FixedBatch):
            raise PlanError(f"batch={batch!r}", hint="give FixedBatch(n), or None for single samples")
        check_place(0, world_size)
        chosen = lanes or (choose_lanes(len(counts), mix.shards) if mix else 1)
        return cls(counts, batch, mix, seed, chosen, tail or ("drop" if mix else "pad"), world_size, dataset)

    @property
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
        lanes = f"{self.lanes} lane{'s' * (self.lanes != 1)}"
        lines = [f"{self.samples:,} samples in {len(self.counts):,} shards, read along {lanes} ({order})"]
        ranks = f"each of {self.world_size} ranks" if self.world_size > 1 else "1 rank"
        steps = f"{self.steps():,} steps on {ranks}"
        more = self.total % self.world_size
        if self.tail == "uneven" and more:
            steps = f"{self.steps():,} steps on {more} of {self.world_size} ranks, one less on the others"
        if self.batch is None:
            lines.append(f"single samples: {steps}")
        else:
            short = self.samples % self.batch_samples
            rest = f" and a short one of {short}" if short else ""
            lines.append(f"{self.full:,} full micro-batches of {self.batch}{rest}: {steps}")
        return "\n".join([*lines, self._tail_line(), self._workers_line()])

    def _tail_line(self) -> str:
        tail = self.tail_report()
        share = f"({100 * tail.dropped_samples / max(1, self.samples):.2f} %)"
        if self.tail == "drop":
            return f'tail "drop": {tail.dropped_samples:,} of {self.samples:,} samples are left out each epoch {share}'
        if self.tail == "pad":
            again = f"{tail.repeated_samples:,} samples in {tail.repeated_batches:,} micro-batches"
            return f'tail "pad": {again} are given again, flagged'
        return 'tail "uneven": every sample exactly once'

    def _workers_line(self) -> str:
        if self.lanes == 1 and self.shuffle is None:
            return "workers per rank that read no byte twice: any (each micro-batch is one run of the dataset)"
        good = good_workers(self.lanes, self.world_size)
        if good:
            return f"workers per rank that read no byte twice: {', '.join(map(str, good))}"
        return f"readers share lanes ({self.lanes} lanes, {self.world_size} ranks) and read ranges of the same shards"
