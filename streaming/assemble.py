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
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shardwriter.errors import ShardError
from shardwriter.kinds import AUDIO_FIELDS

from .batch import collate as default_collate
from .decode import guarded
from .errors import BatchError
from .image import Framing
from .pipeline import FieldChoice, SampleMaker
from .plan import CostBudget, FixedBatch, Groups, PixelBudget, Plan, SampleRefs, Share
from .plan.chosen import originals
from .ragged import packed, padded

_TRIES: Final = 64
"""Batches that are tried in place of one whose samples were all skipped."""

Collate = Callable[[Sequence[dict[str, Any]]], Any]


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
        refs = _samples(plan, cursor, sources)
        group = cursor.bucket(int(sources[0])) if plan.batch else 0
        first = int(sources[0])
        yield Unit(share.steps(these).tolist(), (positions >= plan.total).tolist(), refs, first, group, again)
        done, size = done + len(these), min(most, 2 * size)


def _samples(plan: Plan, cursor: Any, positions: NDArray[np.int64]) -> SampleRefs:
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
    epoch: int

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
        again = unit.repeats[0] or not whole
        if not whole:
            whole = self._others(unit, errors)
        for sample in whole:
            sample.pop("__url__", None)
        batch = guarded(self.collate, whole)
        if isinstance(batch, dict):
            if self.plan.tail == "pad" or self.maker.on_error == "skip":
                batch["__repeat__"] = torch.full((len(whole),), again)
            if self.maker.on_error == "skip":
                batch["__skipped__"] = [error.key for error in errors]
        return unit, [batch], list(errors)

    def _others(self, unit: Unit, errors: Sequence[ShardError]) -> list[dict[str, Any]]:
        """Samples of the next batch that has any, where all of one were skipped: every rank must take the step.

        Raises BatchError where none of the next few has.
        """
        cursor = self.plan.epoch(self.epoch).cursor()  # of its own: the other belongs to the consumer's thread
        for more in range(1, min(_TRIES, self.plan.total)):
            position = (unit.position + more) % self.plan.total
            refs = _samples(self.plan, cursor, np.array([position]))
            samples, _ = self.maker.samples(refs, self.framings[cursor.bucket(position)])
            whole = [s for s in samples if s is not None]
            if whole:
                return whole
        first = errors[0]
        raise BatchError("every sample of a batch was skipped").at(key=first.key, shard=first.shard) from first
