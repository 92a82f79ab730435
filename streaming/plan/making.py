"""What a plan is made of: which arguments make one, and what is left open is filled in here.

>>> choose(None, np.full(332, 10_000), FixedBatch(256), Shuffle(), None)          # lanes
64
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from .batching import FixedBatch
from .buckets import make_groups
from .budgets import CostBudget, PixelBudget
from .groups import Groups
from .lanes import MOST, MOST_SINGLES, choose_lanes
from .layout import TAILS, Tail
from .oversize import Settled, settle
from .packing import BLOCK_BINS, Packing, make_packing
from .shuffle import Shuffle
from .statistics import Statistics

Batch = FixedBatch | PixelBudget | CostBudget


def check_arguments(
    batch: Batch | None,
    shuffle: Shuffle | bool,
    seed: int,
    lanes: int | None,
    tail: Tail | None,
    together: int,
    sticky: bool,
) -> None:
    """Raise PlanError for an argument that makes no plan."""
    if shuffle is not None and not isinstance(shuffle, bool | Shuffle):
        raise PlanError(f"shuffle={shuffle!r}", hint="give True, False or Shuffle(shards=, buffer=)")
    if tail is not None and tail not in TAILS:
        raise PlanError(f"tail={tail!r}", hint=f"it is one of {', '.join(TAILS)}")
    if lanes is not None and (not isinstance(lanes, int) or isinstance(lanes, bool) or lanes < 1):
        raise PlanError(f"lanes={lanes!r}: a plan has at least 1 lane")
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool):
        raise PlanError(f"seed={seed!r} is not a whole number")
    if batch is not None and not isinstance(batch, FixedBatch | PixelBudget | CostBudget):
        hint = "give FixedBatch(n), PixelBudget(pixels), CostBudget(column, cost), or None for single samples"
        raise PlanError(f"batch={batch!r}", hint=hint)
    if not isinstance(together, int) or isinstance(together, bool) or together < 1:
        raise PlanError(f"together={together!r}: at least 1 micro-batch of a kind comes at a time")
    if not isinstance(sticky, bool):
        raise PlanError(f"sticky={sticky!r}", hint="it is True or False")


def fixed_size(batch: Batch | None) -> int:
    """Samples of a full micro-batch; 1 for an un-batched plan."""
    return batch.samples if isinstance(batch, FixedBatch) else 1


def settled_for(batch: Batch | None, known: Statistics | None) -> Settled | None:
    """The samples to plan with under a budget, once those over it are settled."""
    if not isinstance(batch, PixelBudget | CostBudget):
        return None
    if known is None:
        raise PlanError(f"{batch!r} needs the sizes of the samples", hint="plan with the Statistics of a dataset")
    return settle(batch, known)


def groups_for(
    batch: Batch | None, settled: Settled | None, lanes: int | None, mix: Shuffle | None
) -> Groups | Packing | None:
    """What a budget makes of the samples; None without one."""
    if settled is None or not isinstance(batch, PixelBudget | CostBudget):
        return None
    if batch.packs:
        return make_packing(batch, settled.statistics, settled.alone)
    return make_groups(batch, settled.statistics, choose(lanes, settled.statistics.counts, batch, mix))


def choose(
    lanes: int | None,
    counts: NDArray[np.int64],
    batch: Batch | None,
    mix: Shuffle | None,
    groups: Groups | Packing | None = None,
) -> int:
    """How many lanes: as asked, or as fit."""
    if lanes or not mix:
        return lanes or 1
    unit, block = units_of(groups, mix)
    units = -(-len(counts) // unit)
    return choose_lanes(units, block or mix.shards, int(counts.sum()), MOST if batch else MOST_SINGLES)


def units_of(groups: Groups | Packing | None, mix: Shuffle | None) -> tuple[int, int | None]:
    """(shards that are kept together, units in a block or None for as many as are mixed)."""
    if not isinstance(groups, Packing):
        return 1, None
    if mix is None:
        return groups.unit, None
    each = max(1, groups.total) / max(1, len(groups.bins))
    wanted = max(-(-mix.shards // groups.unit), math.ceil(BLOCK_BINS / each))
    return groups.unit, max(1, min(len(groups.bins), wanted))


def costs_of(groups: Groups | Packing | None) -> NDArray[np.int64] | None:
    """What lanes should carry equally: [units], or None for samples."""
    if groups is None:
        return None
    if isinstance(groups, Packing):
        return groups.bins + groups.alone
    total = np.zeros(len(groups.counts), dtype=np.int64)
    for column, each in zip(groups.counts.T, ((1 << 24) // groups.capacity).tolist(), strict=True):
        total += column.astype(np.int64) * each
    return total


def checked(counts: Any) -> NDArray[np.int64]:
    """A copy that nobody can change, so that a plan stays what it is."""
    given = np.asarray(counts)
    if given.ndim != 1 or (given.size and (given.dtype.kind not in "iu" or given.min() < 0)):
        raise PlanError("counts are no list of sample counts", hint="give one whole number of at least 0 a shard")
    checked = given.astype(np.int64)
    checked.flags.writeable = False
    return checked
