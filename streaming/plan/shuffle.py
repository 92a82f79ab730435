"""How samples are mixed: whole shards over lanes, then a bounded displacement inside blocks of shards.

>>> order = block_order(np.array([3, 3]), Shuffle(buffer=2), 7, epoch=0, lane=0, block=0)
>>> sorted(order.tolist())
[0, 1, 2, 3, 4, 5]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from .keys import uniform


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Mix `shards` consecutive shards of a lane, and move each sample by less than `buffer` places.

    >>> Shuffle(shards=8, buffer=20_000)
    Shuffle(shards=8, buffer=20000)

    It is what a shuffle buffer of `buffer` samples over `shards` open shards does, but known in advance: a reader needs
    at most `buffer` samples of a lane in memory, and a resumed run needs none of the samples before its position.
    The order of the shards themselves is a new random permutation each epoch.
    """

    shards: int = 4
    buffer: int = 10_000

    def __post_init__(self) -> None:
        for name, value in (("shards", self.shards), ("buffer", self.buffer)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise PlanError(f"Shuffle({name}={value!r}): a whole number of at least 1 is needed")


def block_order(
    sizes: NDArray[Any], shuffle: Shuffle | None, seed: int, *, epoch: int, lane: int, block: int
) -> NDArray[np.uint32]:
    """The order in which a lane gives the samples of one block.

    `sizes` [k] are the sample counts of the block's shards.  Entry i of the result [sum(sizes)] is the sample that
    comes i-th, counted through the concatenated shards.  Without shuffle it is 0, 1, 2, ...

    The shards are first interleaved in proportion to their sizes, each with a random phase; place i then gets the sort
    key i + u * buffer with u uniform in [0, 1).  A sample at place i is therefore behind all samples of places up to
    i - buffer and before all of places from i + buffer: it moves by less than `buffer`.
    """
    total = int(sizes.sum())
    if total >= 1 << 32:
        raise PlanError(f"a block of {total} samples", hint="use smaller shards, or fewer in Shuffle(shards=)")
    order = np.arange(total, dtype=np.uint32)
    if shuffle is None or total < 2:
        return order
    random = uniform(total + len(sizes), seed, "block", epoch, lane, block)
    if shuffle.buffer >= total:
        return np.argsort(random[:total], kind="stable").astype(np.uint32)
    within = np.concatenate([np.arange(n, dtype=np.float64) for n in sizes.tolist()])
    phase, size = np.repeat(random[total:], sizes), np.repeat(sizes.astype(np.float64), sizes)
    interleaved = np.argsort((within + phase) / size, kind="stable")
    moved = np.argsort(np.arange(total) + random[:total] * shuffle.buffer, kind="stable")
    return interleaved[moved].astype(np.uint32)
