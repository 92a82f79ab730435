"""Runs one reader's part of a plan: fetch, decode, transform, batch, with threads that work ahead and in-order
delivery.

What happens, and must keep happening:

- Work is cut into units: a micro-batch, or a run of single samples.  Threads finish units in any order; they are
  delivered in the order of the plan.
- Units ahead are bounded by bytes: none is started while those that are started and not delivered hold more than
  `ahead_bytes`, one excepted, so that a unit larger than the bound still passes.
- An error ends the iteration when its unit's turn comes; what was to be delivered before it is delivered.
- Leaving early (break, close, an exception in the consumer) cancels what has not started and waits for what has, so
that
  no thread outlives the iterator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal

from shardwriter.errors import DecodeError, ShardError

from .batch import size_of
from .decode import Decoders, guarded
from .errors import FieldMissing, TransformError
from .fetch import Fetcher, RawSample
from .image import Framing
from .plan import SampleGenerators, SampleRefs

OnError = Literal["raise", "skip"]
Transform = Callable[[dict[str, Any], Any], dict[str, Any]]
SKIPPABLE: Final = (DecodeError, FieldMissing, TransformError)
"""Errors of a single sample.  Storage and index errors are never skipped: they are not the sample's fault."""


class FieldChoice:
    """Which fields to give, under which names.

    >>> choice = FieldChoice({"image": "jpg;png", "txt": "txt"})
    >>> choice.select({"png": b"...", "txt": b"a cat", "json": b"{}"})
    {'image': ('png', b'...'), 'txt': ('txt', b'a cat')}

    `fields` is None (all, under their own names), a list of names, or a dict from the name given to the name read.
    Each name read may list alternatives, "jpg;png": the first that a sample has is taken.  In a list, the first
    alternative is the name given.
    """

    def __init__(self, fields: Sequence[str] | Mapping[str, str] | None) -> None:
        given = (
            fields
            if isinstance(fields, Mapping)
            else None
            if fields is None
            else {f.partition(";")[0]: f for f in fields}
        )
        self._wanted = None if given is None else {name: read.split(";") for name, read in given.items()}

    @property
    def everything(self) -> bool:
        """Whether each field is given, under its own name."""
        return self._wanted is None

    def named_after(self, kinds: Collection[str]) -> list[str]:
        """The names given to fields whose last part is one of `kinds`, where fields are renamed or chosen."""
        wanted = self._wanted or {}
        return [name for name, reads in wanted.items() if any(r.rpartition(".")[2] in kinds for r in reads)]

    def read(self, available: Sequence[str]) -> Sequence[str]:
        """The fields of a shard that must be read."""
        if self._wanted is None:
            return available
        needed = {name for names in self._wanted.values() for name in names}
        return [name for name in available if name in needed]

    def select(self, fields: Mapping[str, bytes]) -> dict[str, tuple[str, bytes]]:
        """Name given -> (name read, bytes).  Raises FieldMissing, which lists what the sample has."""
        if self._wanted is None:
            return {name: (name, data) for name, data in fields.items()}
        chosen = {}
        for name, alternatives in self._wanted.items():
            found = next((a for a in alternatives if a in fields), None)
            if found is None:
                raise FieldMissing(f"the sample has no field {';'.join(alternatives)!r}", field=name)
            chosen[name] = (found, fields[found])
        return chosen


@dataclass
class Skips:
    """Samples that were left out under on_error="skip": how many, and the first few with their reasons."""

    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class SampleMaker:
    """Turns references into finished samples; safe to share between threads."""

    fetcher: Fetcher
    choice: FieldChoice
    decoders: Decoders
    transform: Transform | None
    generators: SampleGenerators
    on_error: OnError
    crops: SampleGenerators | None = None
    """Where crops lie is drawn from these; None: at the centre."""

    @cached_property
    def plain(self) -> bool:
        """Whether samples are given as they lie in the shard."""
        return self.choice.everything and self.decoders.none and self.transform is None

    def samples(
        self, refs: SampleRefs, framing: Framing | None = None
    ) -> tuple[list[dict[str, Any] | None], list[ShardError]]:
        """The samples of `refs` in order; None for one that is skipped, with its error in the second list."""
        found = self.fetcher.fetch(refs)
        if self.plain:
            return [{"__key__": raw.key, "__url__": raw.url, **raw.fields} for raw in found], []
        out: list[dict[str, Any] | None] = []
        errors: list[ShardError] = []
        for raw in found:
            try:
                out.append(self._sample(raw, framing))
            except ShardError as error:
                error.at(shard=raw.url, key=raw.key)
                if isinstance(error, FieldMissing):
                    error.at(hint=f"it has {', '.join(self.fetcher.fields_of(raw.shard, raw.index))}")
                if self.on_error == "raise" or not isinstance(error, SKIPPABLE):
                    raise
                out.append(None)
                errors.append(error)
        return out, errors

    def _sample(self, raw: RawSample, framing: Framing | None) -> dict[str, Any]:
        if framing is not None and self.crops is not None:
            across = self.crops.of(raw.shard, raw.index).random(2)
            framing = replace(framing, at=(float(across[0]), float(across[1])))
        sample: dict[str, Any] = {"__key__": raw.key, "__url__": raw.url}
        for name, (read, data) in self.choice.select(raw.fields).items():
            try:
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


class Readahead:
    """Runs `work(unit)` for each unit, on `threads` threads ahead of the consumer, and gives the results in order.

    >>> list(Readahead(str, range(3), threads=2, ahead_bytes=1 << 20))
    ['0', '1', '2']
    """

    def __init__(self, work: Callable[[Any], Any], units: Any, *, threads: int, ahead_bytes: int) -> None:
        self._work = work
        self._units = units
        self._threads = threads
        self._ahead_bytes = ahead_bytes

    def __iter__(self) -> Iterator[Any]:
        if self._threads == 0:
            yield from map(self._work, self._units)
            return
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="shardstream-decode")
        waiting: deque[Future[Any]] = deque()
        units = iter(self._units)
        try:
            guess, more = 0, True
            while True:
                while more and self._room(len(waiting), guess):
                    unit = next(units, None)
                    if unit is None:
                        more = False
                    else:
                        waiting.append(pool.submit(self._work, unit))
                if not waiting:
                    return
                result = waiting.popleft().result()
                guess = max(guess // 2, size_of(result))
                yield result
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _room(self, started: int, guess: int) -> bool:
        if guess == 0:  # nothing is known yet of how much a unit holds
            return started < self._threads
        return started == 0 or (started < 2 * self._threads and (started + 1) * guess <= self._ahead_bytes)
