"""Units of work, from the plan's positions to finished batches.

>>> for unit in units(plan, epoch=0, share=Share(), turns=2, most=1):
...     batches = run_here(assembler.job(unit)).items

A unit is a micro-batch or a run of single samples.  Units are planned in the consumer's thread, in order; they are
assembled (fetched, decoded, collated) in any threads, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.kinds import AUDIO_FIELDS

from .choice import FieldChoice
from .image import Framing
from .plan import CostBudget, FixedBatch, Groups, PixelBudget, Plan, SampleRefs, Share
from .plan.chosen import originals
from .ragged import packed, padded


class Unit(NamedTuple):
    """A piece of work: its steps, and the samples of all of them together."""

    steps: list[int]
    repeats: list[bool]
    refs: SampleRefs
    position: int
    """Position whose samples are the first of them."""
    group: int
    """Which group of similar samples it is of, in a plan with a budget."""
    padded: bool
    """Whether the pass gives anything again."""


def units(plan: Plan, epoch: int, share: Share, turns: int, most: int, *, mapped: bool = False) -> Iterator[Unit]:
    """The work of one reader, in order; a unit of single samples has `most` of them.  Of shards that are all `mapped`
    it makes no difference who else reads them.
    """
    made, readers = plan.epoch(epoch), share.world_size * share.workers
    cursor = made.cursor(capacity=plan.lanes + 1)
    shared = not plan.own_lanes(readers)
    end = share.start + plan.steps(start=share.start) * share.world_size
    again = plan.tail == "pad" and end > plan.total
    most = 1 if plan.batch else most
    done, size = 0, min(most, 8)
    while done < turns:
        these = np.arange(done, min(done + size, turns))
        positions = share.positions(these)
        sources = positions % plan.total  # a padded epoch starts over, as Plan.source says
        refs = samples_at(plan, cursor, sources)
        if not mapped and (shared or (readers > 1 and not made.alone(sources, readers))):  # type: ignore[union-attr]
            refs = replace(refs, scattered=True)
        group = cursor.bucket(int(sources[0])) if plan.batch else 0
        first = int(sources[0])
        yield Unit(share.steps(these).tolist(), (positions >= plan.total).tolist(), refs, first, group, again)
        done, size = done + len(these), min(most, 2 * size)


def samples_at(plan: Plan, cursor: Any, positions: NDArray[np.int64]) -> SampleRefs:
    """The samples of positions, by their numbers in whole shards, also where only some are chosen."""
    refs = cursor.samples(positions)
    return SampleRefs(refs.shards, originals(plan.statistics, refs.shards, refs.indices))


def framings(plan: Plan) -> list[Framing | None]:
    """What becomes of the images of each group; one entry where there are no groups."""
    batch = plan.batch
    if plan.plans:  # first of all: their groups are counted one after the other, also where each has only one
        return [framing for part in plan.plans for framing in framings(part)]
    if isinstance(batch, FixedBatch) and isinstance(batch.size, tuple):
        return [Framing(batch.size)]
    if isinstance(batch, PixelBudget) and batch.mode == "bucket" and isinstance(plan.groups, Groups):
        return [Framing((int(h), int(w))) for h, w in plan.groups.shapes]
    groups = len(plan.groups) if isinstance(plan.groups, Groups) else 1
    longest = batch.longest if isinstance(batch, PixelBudget) else None
    return [None if longest is None else Framing(longest=longest)] * groups


def ragged_for(plan: Plan, choice: FieldChoice) -> Callable[..., dict[str, Any]] | None:
    """What makes batches of samples of unequal size, as the plan says; None where they are equal."""
    batch = plan.batch
    last = {*AUDIO_FIELDS, *choice.named_after(AUDIO_FIELDS)}
    if isinstance(batch, PixelBudget) and batch.mode != "bucket":
        return partial(padded if batch.mode == "pad" else packed, images=True, limit=batch.max_pixels)
    if isinstance(batch, CostBudget):
        return partial(padded if batch.pad else packed, images=False, last=last)
    return None
