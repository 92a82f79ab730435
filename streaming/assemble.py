"""The work of a unit: fetch, decode, transform and collate it, in parts that threads do together.

>>> assembler = Assembler(plan, maker, None, framings(plan), epoch=0)
>>> run_here(assembler.job(unit)).items
[{"__key__": [...], "jpg": tensor(...), ...}]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from shardwriter.errors import ShardError

from .batch import Allocate, Places, collate, column, fresh, size_of
from .cut import Cut, RawSample
from .decode import guarded
from .errors import BatchError
from .image import Framing
from .plan import Plan
from .readahead import Job
from .samples import SampleMaker
from .stats import Counters
from .units import Unit, ragged_for, samples_at

PART: Final = 8
"""Samples that a thread takes at a time."""
_TRIES: Final = 64
"""Batches that are tried in place of one whose samples were all skipped."""

Collate = Callable[[Sequence[dict[str, Any]]], Any]


@dataclass(frozen=True)
class Assembler:
    """What makes the items of units of one epoch: batches, or single samples (None for one that is skipped)."""

    plan: Plan
    maker: SampleMaker
    collate: Collate | None
    """The user's; None: as the plan says."""
    framings: Sequence[Framing | None]
    epoch: int
    allocate: Allocate = fresh
    channels_last: bool = False
    counters: Counters = field(default_factory=Counters)
    light: bool = False
    """Whether the fields need so little work that it is done field by field, in one thread."""

    @cached_property
    def _ragged(self) -> Callable[..., dict[str, Any]] | None:
        return ragged_for(self.plan, self.maker.choice)

    def job(self, unit: Unit) -> Job:
        """The work of a unit; its result is a Done."""
        if self.plan.batch is None:
            return LightSamples(self, unit) if self.light else Samples(self, unit)
        if self.light and self.collate is None and self._ragged is None:
            return LightBatch(self, unit)
        return Batch(self, unit)

    def collated(self, samples: list[dict[str, Any]], places: Places | None) -> Any:
        """The batch of some samples."""
        if self.collate is not None:
            return guarded(self.collate, samples)
        if self._ragged is not None:
            return self._ragged(samples, allocate=self.allocate)
        return collate(samples, self.allocate, places)

    def others(self, unit: Unit, errors: Sequence[ShardError]) -> list[dict[str, Any]]:
        """Samples of the next batch that has any, where all of one were skipped: every rank must take the step.

        Raises BatchError where none of the next few has.
        """
        cursor = self.plan.epoch(self.epoch).cursor()  # of its own: the other belongs to the consumer's thread
        for more in range(1, min(_TRIES, self.plan.total)):
            position = (unit.position + more) % self.plan.total
            framing = self.framings[cursor.bucket(position)]
            refs = samples_at(self.plan, cursor, np.array([position]))
            found = [self.maker.attempt(raw, framing)[0] for raw in self.maker.fetcher.fetch(refs)]
            whole = [sample for sample in found if sample is not None]
            if whole:
                return whole
        first = errors[0]
        raise BatchError("every sample of a batch was skipped").at(key=first.key, shard=first.shard) from first


class Done(NamedTuple):
    """A unit that is done: its items, and the errors of what was skipped."""

    unit: Unit
    items: Iterable[Any]
    errors: list[ShardError]


class Samples:
    """Single samples, finished by all threads together."""

    def __init__(self, to: Assembler, unit: Unit, places: Places | None = None, *, at_once: int = PART) -> None:
        self._to, self._unit, self._places, self._at_once = to, unit, places, max(1, at_once)
        self._raw: list[RawSample] = []
        self._found: list[dict[str, Any] | None] = [None] * len(unit.refs)
        self._errors: list[ShardError | None] = [None] * len(unit.refs)
        self.parts = max(1, -(-len(unit.refs) // self._at_once))

    def begin(self) -> None:
        """Fetch the bytes."""
        with self._to.counters.timed("fetch"):
            self._raw = self._to.maker.fetcher.fetch(self._unit.refs)

    def part(self, i: int) -> None:
        """Decode and transform a few."""
        to, framing, places = self._to, self._to.framings[self._unit.group], self._places
        with to.counters.timed("decode"):
            for k in range(i * self._at_once, min(len(self._raw), (i + 1) * self._at_once)):
                place = None if places is None else partial(_place, places, k)
                self._found[k], self._errors[k] = to.maker.attempt(self._raw[k], framing, place)

    def end(self) -> Done:
        """The samples, and the errors of those that are skipped."""
        samples, errors = self._taken()
        if self._unit.padded:
            for sample, again in zip(samples, self._unit.repeats, strict=True):
                if sample is not None:
                    sample["__repeat__"] = again
        return Done(self._unit, samples, errors)

    def _taken(self) -> tuple[list[dict[str, Any] | None], list[ShardError]]:
        """Samples and errors, which are not kept here any longer than they must."""
        self._to.counters.add("bytes_read", sum(size_of(raw.fields) for raw in self._raw))
        samples, errors = self._found, [error for error in self._errors if error is not None]
        self._raw, self._found, self._errors = [], [], []
        return samples, errors


def _place(places: Places, i: int, name: str) -> torch.Tensor:
    return places.at(name, i)


class Batch(Samples):
    """A micro-batch: images of a known size are decoded into their places in it."""

    def __init__(self, to: Assembler, unit: Unit, *, at_once: int = PART) -> None:
        framing = to.framings[unit.group]
        places = None
        if framing is not None and framing.size is not None:
            places = Places(len(unit.refs), framing.size, to.allocate, channels_last=to.channels_last)
        super().__init__(to, unit, places, at_once=at_once)

    def end(self) -> Done:
        """The batch, as the only item."""
        found, errors = self._taken()
        with self._to.counters.timed("collate"):
            whole = [sample for sample in found if sample is not None]
            again = self._unit.repeats[0] or not whole
            if not whole:
                whole = self._to.others(self._unit, errors)
            for sample in whole:
                sample.pop("__url__", None)
            batch = self._to.collated(whole, self._places)
            self._places = None
            return self._done(batch, len(whole), again, errors)

    def _done(self, batch: Any, n: int, again: bool, errors: list[ShardError]) -> Done:
        skipping = self._to.maker.on_error == "skip"
        if isinstance(batch, dict):
            if self._to.plan.tail == "pad" or skipping:
                batch["__repeat__"] = torch.full((n,), again)
            if skipping:
                batch["__skipped__"] = [error.key for error in errors]
        return Done(self._unit, [batch], errors)


class LightSamples(Samples):
    """Single samples whose fields need little work, field by field rather than sample by sample.

    What is out of the ordinary (a field that some samples lack, a value that can't be decoded) is left to Samples,
    which knows what to say of which sample.
    """

    def __init__(self, to: Assembler, unit: Unit) -> None:
        super().__init__(to, unit, at_once=len(unit.refs))
        self._light: tuple[Cut, dict[str, Iterable[Any]]] | None = None

    def begin(self) -> None:
        """Find the bytes, and decode what is to be decoded."""
        self._light = _columns(self._to, self._unit)
        if self._light is None:
            super().begin()

    def end(self) -> Done:
        """The samples; those that are mapped are cut out when the consumer takes them."""
        if self._light is None:
            return super().end()
        cut, columns = self._light
        samples: Iterable[dict[str, Any]] = cut.rows(columns)
        if self._unit.padded:
            samples = ({**s, "__repeat__": again} for s, again in zip(samples, self._unit.repeats, strict=True))
        return Done(self._unit, samples if self._to.maker.fetcher.local else list(samples), [])


class LightBatch(Batch):
    """A micro-batch whose fields need little work; see LightSamples."""

    def __init__(self, to: Assembler, unit: Unit) -> None:
        super().__init__(to, unit, at_once=len(unit.refs))
        self._batch: dict[str, Any] | None = None

    def begin(self) -> None:
        """Cut the fields out and decode them."""
        found = _columns(self._to, self._unit)
        if found is None:
            super().begin()
            return
        cut, columns = found
        with self._to.counters.timed("collate"):
            self._batch = {"__key__": cut.keys}
            for name, values in columns.items():
                self._batch[name] = column(name, list(values), cut.keys.__getitem__, self._to.allocate)

    def end(self) -> Done:
        """The batch, as the only item."""
        if self._batch is None:
            return super().end()
        return self._done(self._batch, len(self._unit.refs), self._unit.repeats[0], [])


def _columns(to: Assembler, unit: Unit) -> tuple[Cut, dict[str, Iterable[Any]]] | None:
    with to.counters.timed("fetch"):
        found = to.maker.columns(unit.refs)
    if found is not None:
        to.counters.add("bytes_read", found[0].size)
    return found
