"""From bytes to finished samples: choose fields, decode, transform; with errors that say which sample it was.

>>> maker = SampleMaker(fetcher, FieldChoice(None), Decoders(True), None, SampleGenerators(seed=0, epoch=0))
>>> sample, error = maker.attempt(fetcher.fetch(refs)[0])
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import torch

from shardwriter.errors import DecodeError, ShardError

from .choice import FieldChoice
from .cut import Cut, Field, RawSample
from .decode import Decoders, guarded
from .errors import FieldMissing, TooManySkipped, TransformError
from .fetch import Fetcher
from .image import Framing
from .plan import SampleGenerators, SampleRefs
from .transforms import ImageStep, drawn

log = logging.getLogger("shardstream")
OnError = Literal["raise", "skip"]
Transform = Callable[[dict[str, Any], Any], dict[str, Any]]
Place = Callable[[str], torch.Tensor]
"""Where the image of a field goes in its batch."""
SKIPPABLE: Final = (DecodeError, FieldMissing, TransformError)
"""Errors of a single sample.  Storage and index errors are never skipped: they are not the sample's fault."""


@dataclass
class Skips:
    """Samples that were left out under on_error="skip": how many, and the first few with their reasons."""

    limit: int
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, errors: Sequence[Exception]) -> None:
        """Count what was skipped, and say so in the log.  Raises TooManySkipped above the limit."""
        for error in errors:
            self.count += 1
            if len(self.examples) < 10:
                self.examples.append(str(error))
                log.warning("skipped a sample: %s", error)
            if self.count > self.limit:
                raise TooManySkipped(
                    f"more than {self.limit} samples were skipped; the last: {error}",
                    hint="repair the data, or raise skip_limit",
                )


@dataclass(frozen=True)
class SampleMaker:
    """Turns raw samples into finished ones; safe to share between threads."""

    fetcher: Fetcher
    choice: FieldChoice
    decoders: Decoders
    transform: Transform | None
    generators: SampleGenerators
    on_error: OnError = "raise"
    crops: SampleGenerators | None = None
    """Where crops lie is drawn from these; None: at the centre."""
    steps: tuple[ImageStep, ...] = ()
    """Random crops and flips that are done while decoding."""
    step_generators: SampleGenerators | None = None

    def attempt(
        self, raw: RawSample, framing: Framing | None = None, place: Place | None = None
    ) -> tuple[dict[str, Any] | None, ShardError | None]:
        """(the sample, None), or under on_error="skip" (None, why it is skipped).

        Raises DecodeError, FieldMissing, TransformError with shard, key and field.
        """
        try:
            return self._sample(raw, framing, place), None
        except ShardError as error:
            error.at(shard=raw.url, key=raw.key)
            if isinstance(error, FieldMissing):
                error.at(hint=f"it has {', '.join(self.fetcher.fields_of(raw.shard, raw.index))}")
            if self.on_error == "raise" or not isinstance(error, SKIPPABLE):
                raise
            return None, error

    def columns(self, refs: SampleRefs) -> tuple[Cut, dict[str, Iterable[Any]]] | None:
        """The samples, and field by field their decoded values; None where any sample is out of the ordinary.

        What stays as it is stored is cut out when it is taken.
        """
        cut = self.fetcher.cut(refs)
        try:
            chosen = self.choice.select(cut.fields)
            if not cut.whole and (self.choice.everything or any(field.gaps for _, field in chosen.values())):
                return None
            return cut, {name: self._decoded(*read) for name, read in chosen.items()}
        except SKIPPABLE:
            return None

    def _decoded(self, name: str, field: Field) -> Iterable[Any]:
        function = self.decoders.function(name)
        return field.cut() if function is None else [function(value) for value in field.cut()]

    def _sample(self, raw: RawSample, framing: Framing | None, place: Place | None) -> dict[str, Any]:
        if self.steps or (self.crops is not None and framing is not None):
            framing = self._framing(raw, framing)
        sample: dict[str, Any] = {"__key__": raw.key, "__url__": raw.url}
        for name, (read, data) in self.choice.select(raw.fields).items():
            try:
                if place is not None and self.decoders.is_image(read):
                    sample[name] = self.decoders.decode(read, data, framing, place(name))
                else:
                    sample[name] = self.decoders.decode(read, data, framing)
            except ShardError as error:
                raise error.at(field=read) from error.__cause__
        if self.transform is None:
            return sample
        changed = guarded(self.transform, sample, self.generators.of(raw.shard, raw.index))
        if not isinstance(changed, dict):
            raise TransformError(
                f"transform returned {type(changed).__name__}, not a dict",
                hint="return the sample; to leave samples out, filter them when the dataset is written",
            )
        changed.setdefault("__key__", raw.key)
        return changed

    def _framing(self, raw: RawSample, framing: Framing | None) -> Framing | None:
        """The framing of this sample, with what is random drawn."""
        if self.crops is not None and framing is not None:
            across = self.crops.of(raw.shard, raw.index).random(2)
            framing = replace(framing, at=(float(across[0]), float(across[1])))
        if self.steps and self.step_generators is not None:
            framing = drawn(self.steps, framing, self.step_generators.of(raw.shard, raw.index))
        return framing
