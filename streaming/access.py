"""How the shards of a dataset are got at: mapped, fetched in whole chunks, or by ranges for each sample.

>>> choose_access(plan, readers=8, local_readers=8, size=80_000_000_000, samples=3_300_000, cache=None)
Access(whole=True, memory=1073741824, keep=0, cached=False, chosen=1.0, tight=False)

A reader that has lanes of its own needs all bytes of their shards, so it fetches whole chunks and holds each until its
last sample was taken.  What it holds at a time follows from the plan: about the shuffle's buffer in each lane.  Where
that is more than there is memory, or where readers share lanes (as all do at the ends of lanes) and no disk of theirs
lies between, samples are asked for by ranges: every byte that is fetched is used, in many small requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .cache import Cache
from .chunks import CHUNK
from .plan import Plan

MEMORY: Final = 1 << 30
"""Bytes of fetched chunks that a reader holds, unless the user says how many."""
AHEAD: Final = 64 << 20
"""Bytes that are fetched ahead of what is wanted, about."""
DENSE: Final = 1 / 8
"""Share of a shard's bytes that must be wanted for whole chunks to be worth it."""
SPREAD: Final = 2
"""Groups of similar samples go through a lane at somewhat different speeds."""


@dataclass(frozen=True, slots=True)
class Access:
    """How one reader gets at shards.

    whole: chunks are fetched whole, where enough of them is wanted; memory: bytes of them that are held, besides what
    is fetched ahead, of which `keep` may stay for the next epoch; cached: local shards go through a cache too, rather
    than being mapped; chosen: the share of the samples that the plan reads at all; tight: there is not enough memory
    for chunks that the disk has no room for, so samples of those are asked for by ranges.
    """

    whole: bool = False
    memory: int = MEMORY
    keep: int = 0
    cached: bool = False
    chosen: float = 1.0
    tight: bool = False

    @property
    def bound(self) -> int:
        """Bytes of chunks that there may be in memory, with what is fetched ahead."""
        return self.memory + AHEAD


def working_set(plan: Plan, readers: int, size: int) -> int:
    """Bytes of chunks that one of `readers` readers holds at a time, about, of `size` bytes of shards."""
    lanes = -(-plan.lanes // readers)
    mean = size / max(1, plan.samples)
    if plan.shuffle is None:
        lane = 2.0 * CHUNK
    else:
        lane = min(plan.shuffle.buffer * mean, size / plan.lanes) + plan.shuffle.shards * CHUNK
    return round(min(lanes * lane * (SPREAD if plan.groups is not None else 1), size))


def choose_access(
    plan: Plan, *, readers: int, local_readers: int, size: int, samples: int, cache: Cache | None
) -> Access:
    """The access of one of `readers` readers, of which `local_readers` are on this machine, to shards of `size` bytes
    that hold `samples` samples.
    """
    on_disk = cache is not None and cache.disk is not None
    given = None if cache is None else cache.memory_bytes
    memory = MEMORY if given is None else max(int(given) // local_readers - AHEAD, 2 * CHUNK)
    needed = working_set(plan, readers, size)
    return Access(
        whole=on_disk or (needed <= memory and plan.own_lanes(readers)),
        memory=memory,
        keep=0 if given is None else max(0, memory - needed),
        cached=cache is not None,
        chosen=plan.samples / max(1, samples),
        tight=needed > memory,
    )
