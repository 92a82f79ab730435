"""Units of work, from the plan's positions to finished batches.

>>> for unit in units(plan, epoch=0, share=Share(), turns=2, most=1):
...     _, batches, _ = assembler(unit)

A unit is a micro-batch or a run of single samples.  Units are planned in the consumer's thread, in order; they are
assembled (fetched, decoded, collated) in any thread, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from shardwriter.kinds import AUDIO_FIELDS

from .batch import collate as default_collate
from .decode import guarded
from .errors import BatchError
from .image import Framing
from .pipeline import FieldChoice, SampleMaker
from .plan import CostBudget, FixedBatch, Groups, PixelBudget, Plan, SampleRefs, Share
from .plan.chosen import originals
from .ragged import packed, padded

Collate = Callable[[Sequence[dict[str, Any]]], Any]


class Unit(NamedTuple):
    """A piece of work: its steps, and the samples of all of them together."""

    steps: list[int]
    repeats: list[bool]
    refs: SampleRefs
    group: int
    """Which group of similar samples it is of, in a plan with a budget."""
    padded: bool
    """Whether the pass gives anything again."""


def units(plan: Plan, epoch: int, share: Share, turns: int, most: int) -> Iterator[Unit]:
    """The work of one reader, in order; a unit of single samples has `most` of them."""
    cursor = plan.epoch(epoch).cursor(capacity=plan.lanes + 1)
    end = share.start + plan.steps(start=share.start) * share.world_size
    again = plan.tail == "pad" and end > plan.total
    most = 1 if plan.batch else most
    done, size = 0, min(most, 8)
    while done < turns:
        these = np.arange(done, min(done + size, turns))
        positions = share.positions(these)
        sources = positions % plan.total  # a padded epoch starts over, as Plan.source says
        refs = cursor.samples(sources)
        refs = SampleRefs(refs.shards, originals(plan.statistics, refs.shards, refs.indices))
        group = cursor.bucket(int(sources[0])) if plan.batch else 0
        yield Unit(share.steps(these).tolist(), (positions >= plan.total).tolist(), refs, group, again)
        done, size = done + len(these), min(most, 2 * size)


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


def collate_for(plan: Plan, choice: FieldChoice) -> Collate:
    """How samples become a batch of the plan, where the user does not say it."""
    batch = plan.batch
    last = {*AUDIO_FIELDS, *choice.named_after(AUDIO_FIELDS)}
    if isinstance(batch, PixelBudget) and batch.mode != "bucket":
        return partial(padded if batch.mode == "pad" else packed, images=True, limit=batch.max_pixels)
    if isinstance(batch, CostBudget):
        return partial(padded if batch.pad else packed, images=False, last=last)
    return default_collate


@dataclass(frozen=True)
class Assembler:
    """Makes the items of a unit: batches, or single samples (None for one that is skipped)."""

    plan: Plan
    maker: SampleMaker
    collate: Collate
    framings: Sequence[Framing | None]

    def __call__(self, unit: Unit) -> tuple[Unit, list[Any], list[Exception]]:
        """The unit with its items, and the errors of what was skipped."""
        samples, errors = self.maker.samples(unit.refs, self.framings[unit.group])
        if self.plan.batch is None:
            if unit.padded:
                for sample, again in zip(samples, unit.repeats, strict=True):
                    if sample is not None:
                        sample["__repeat__"] = again
            return unit, list(samples), list(errors)
        whole = [s for s in samples if s is not None]
        if not whole:
            raise BatchError("every sample of a batch was skipped").at(
                key=errors[0].key, shard=errors[0].shard
            ) from errors[0]
        for sample in whole:
            sample.pop("__url__", None)
        batch = guarded(self.collate, whole)
        if isinstance(batch, dict):
            if self.plan.tail == "pad":
                batch["__repeat__"] = torch.full((len(whole),), unit.repeats[0])
            if self.maker.on_error == "skip":
                batch["__skipped__"] = [error.key for error in errors]
        return unit, [batch], list(errors)
