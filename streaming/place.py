"""Who is reading: rank, world size, and how many ranks share this machine.  The only place that reads the environment.

>>> resolve_place(rank=1, world_size=4)
Place(rank=1, world_size=4, local_world_size=1)
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Final

from .errors import PlanError
from .plan.layout import check_place

THREADS: Final = 2
"""Threads that one interpreter serves well: for each small image it is busy for a tenth of the time, and threads that
come back from decoding wait for it.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """One rank of a job; `local_world_size` ranks share this machine's cores."""

    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1


def resolve_place(rank: int | None = None, world_size: int | None = None) -> Place:
    """The arguments where given, else an initialised torch.distributed, else RANK and WORLD_SIZE, else one rank.

    No process group is started, and none is asked for anything but rank and world size.  Raises PlanError where only
    one of the two is known, or where they do not fit.
    """
    local = _environment("LOCAL_WORLD_SIZE") or 1
    if (rank is None) != (world_size is None):
        raise PlanError("rank and world_size go together", hint="give both or neither")
    if rank is None or world_size is None:
        rank, world_size = _distributed() or (_environment("RANK"), _environment("WORLD_SIZE"))
        if (rank is None) != (world_size is None):
            raise PlanError(
                "of RANK and WORLD_SIZE only one is set", hint="start with torchrun, or pass rank= and world_size="
            )
    if rank is None or world_size is None:
        return Place()
    check_place(rank, world_size)
    return Place(rank, world_size, max(1, min(local, world_size)))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_workers(place: Place, threads: int | None = None) -> tuple[int, int]:
    """(worker processes, threads in each) for the cores of one rank: a process for every two, so that threads hardly
    wait for an interpreter, and at least one, so that the trainer's waits for none of them.
    """
    mine = max(1, cores() // place.local_world_size)
    return max(1, mine // THREADS), threads if threads is not None else min(mine, THREADS)


def _distributed() -> tuple[int, int] | None:
    # Only a program that has loaded torch.distributed can have initialised it.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _environment(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    if not text.isdigit():
        raise PlanError(f"the environment variable {name} is {text!r}, not a whole number")
    return int(text)
