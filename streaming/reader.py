"""How a dataset is read, and the reading: passes over epochs, one after the other, on this process's threads.

>>> with Reader(recipe) as reader:
...     for done in reader.passes([(0, recipe.share())]):
...         done.unit.steps, done.items, done.errors

A Recipe is configuration: frozen, picklable, the same in the trainer's process and in its workers.  A Reader runs it:
it holds threads, open shards and buffers until it is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

from .access import AHEAD, Access, choose_access, working_set
from .ahead import Ahead
from .assemble import Assembler, Collate, Done
from .batch import Allocate
from .buffers import Buffers
from .cache.memory import Memory
from .cache.tiers import Tiers
from .catalog import Catalog
from .choice import FieldChoice
from .decode import Decode, Decoders
from .fetch import Fetcher
from .keeping import Keeping
from .place import Place, cores
from .plan import Plan, SampleGenerators, SampleRefs, Share, make_state
from .plan.state import MAX_EPOCH
from .readahead import Call, Job, Readahead
from .samples import OnError, SampleMaker, Transform
from .stats import Counters
from .transforms import ImageStep
from .units import Unit, framings, units

log = logging.getLogger("shardstream")
RUN: Final = 64
"""Single samples that one unit of work holds when they are decoded; LIGHT_RUN when that takes little."""
LIGHT_RUN: Final = 256
MAX_THREADS: Final = 16
FETCHERS: Final = 4
"""Units whose bytes are fetched at a time, where they come from afar."""


@dataclass(frozen=True)
class Recipe:
    """What is read (catalog, plan, place) and what becomes of it; see StreamingDataset for each option."""

    catalog: Catalog
    plan: Plan
    place: Place
    choice: FieldChoice
    decode: Decode
    steps: tuple[ImageStep, ...]
    transform: Transform | None
    collate: Collate | None
    on_error: OnError
    skip_limit: int
    random_crop: bool
    channels_last: bool
    ahead_bytes: int
    threads: int | None
    tiers: Tiers | None = None

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """The plan's."""
        return self.plan.fingerprint()

    @cached_property
    def decoders(self) -> Decoders:
        """The decoders of all fields."""
        return Decoders(self.decode)

    @cached_property
    def light(self) -> bool:
        """Whether samples take so little work that threads would only wait for one another."""
        if self.transform is not None:
            return False
        if self.decoders.none:
            return True
        fields = self.choice.names
        if fields is None:  # what the fields are, sidecars say; that there are images or audio, the manifest
            return self.decode is True and not {"width", "frames"} & set(self.catalog.column_names)
        return self.decoders.light(fields)

    def __getstate__(self) -> dict[str, Any]:
        # What follows from the rest is worked out anew where it is needed.
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def access(self, workers: int) -> Access:
        """How each of `workers` readers of this rank gets at the shards."""
        place, catalog = self.place, self.catalog
        return choose_access(
            self.plan,
            readers=place.world_size * workers,
            local_readers=place.local_world_size * workers,
            size=catalog.bytes,
            samples=int(catalog.counts.sum()),
            cache=None if self.tiers is None else self.tiers.cache,
        )

    def warn(self, workers: int) -> None:
        """Say in the log, of one reader for all, where samples will be asked for one by one for want of memory."""
        access = self.access(workers)
        if access.whole or self.place.rank or (self.catalog.local and not access.cached):
            return
        readers = self.place.world_size * workers
        if not self.plan.own_lanes(readers):
            log.warning(
                "%d readers share %d lanes, so samples are asked for one by one: choose workers so that readers have "
                "lanes of their own (print(dataset.plan)), or give cache=Cache(disk=...)", readers, self.plan.lanes
            )  # fmt: skip
            return
        needed = working_set(self.plan, readers, self.catalog.bytes)
        log.warning(
            "shuffling needs %d MB of chunks in each reader, which may hold %d MB, so samples are asked for one by one:"
            " give cache=Cache(disk=...) or memory_bytes, or take fewer lanes or a smaller Shuffle(buffer=)",
            needed // 10**6, access.memory // 10**6,
        )  # fmt: skip

    def memory(self, workers: int) -> Memory:
        """What holds the fetched chunks of one of `workers` readers of this rank; it may serve one after another."""
        access = self.access(workers)
        return Memory(access.bound, access.keep)

    def share(self, worker: int = 0, workers: int = 1, start: int = 0, skip: int = 0) -> Share:
        """The part of one worker of this rank, in an epoch that is read from position `start` on."""
        return Share(self.place.rank, self.place.world_size, worker, workers, start, skip)

    def passes(
        self, epoch: int, start: int, *, worker: int = 0, workers: int = 1, continuous: bool = False
    ) -> Iterator[tuple[int, Share]]:
        """What one worker reads from here on: the rest of this epoch, or with `continuous` all that follow, too."""
        yield epoch, self.share(worker, workers, start)
        whole = self.share(worker, workers)
        if not whole.turns(self.left(0)):
            return  # more workers than steps: this one would run through all epochs there are, and hear nothing
        while continuous and epoch + 1 < MAX_EPOCH:
            epoch += 1
            yield epoch, whole

    def over(self, start: int) -> bool:
        """Whether nothing of an epoch is left from a position on, so that the next epoch is due."""
        return bool(start) and not self.plan.steps(start=start)

    def left(self, start: int) -> int:
        """How many steps this rank takes from position `start` to the end of the epoch."""
        return self.plan.steps(start=start, rank=self.place.rank)

    def state_after(self, epoch: int, start: int, steps: int) -> dict[str, Any]:
        """The state when each rank has done `steps` steps of an iteration that began at `start`."""
        position = start + steps * self.place.world_size
        if not self.plan.steps(start=position):
            epoch, position = epoch + 1, 0
        return make_state(self.fingerprint, epoch=epoch, position=position)

    def sign(self, item: Any, epoch: int, start: int, step: int) -> Any:
        """The item, a batch with the state behind it."""
        if self.plan.batch is not None and isinstance(item, dict):
            item["__state__"] = self.state_after(epoch, start, step + 1)
        return item

    def signed(self, done: Done, epoch: int, start: int) -> Iterator[Any]:
        """The items of a unit, batches with the states behind them."""
        return (self.sign(item, epoch, start, step) for step, item in zip(done.unit.steps, done.items, strict=True))

    def thread_count(self, asked: int | None, workers: int) -> int:
        """Threads of one of `workers` readers of this rank."""
        given = asked if asked is not None else self.threads
        if given is not None:
            return given
        if self.light:  # bytes are copied with the interpreter's lock held
            return 0 if self.catalog.local and self.tiers is None else 1
        return max(1, min(MAX_THREADS, cores() // (workers * self.place.local_world_size)))


class Over(NamedTuple):
    """What a pass ends with."""

    epoch: int


class Reader:
    """Reads passes of a recipe.  Close it, or use it in a `with`."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        threads: int | None = None,
        workers: int = 1,
        buffers: Buffers | None = None,
        allocate: Allocate | None = None,
        counters: Counters | None = None,
        memory: Memory | None = None,
    ) -> None:
        """Of `workers` readers of this rank; `memory` may hold chunks of an earlier reader."""
        self.recipe = recipe
        self.threads = recipe.thread_count(threads, workers)
        self.counters = counters or Counters()
        self._allocate = allocate or (buffers or Buffers(keep=recipe.ahead_bytes)).tensor
        self._work: Readahead | None = None
        self._keeping = Keeping(recipe.plan, recipe.place, recipe.catalog.shard_name)
        self._fetcher = Fetcher(
            recipe.catalog,
            recipe.choice.read,
            self._viewed,
            access=recipe.access(workers),
            tiers=recipe.tiers,
            memory=memory,
            keeping=self._keeping,
            counters=self.counters,
        )

    def _viewed(self, field: str) -> bool:
        decoders = self.recipe.decoders
        return decoders.views or decoders.is_image(field)

    def passes(self, todo: Iterable[tuple[int, Share]]) -> Generator[Done | Over]:
        """What is done of each (epoch, share), an Over behind each; the next pass is begun while one still runs."""
        self._fetcher.begin()
        if self._fetcher.local:
            ahead, items, fetchers = None, self._units(todo), 0
        else:
            catalog = self.recipe.catalog
            mean = catalog.bytes / max(1, int(catalog.counts.sum()))
            ahead = Ahead(self._fetcher, depth=round(AHEAD / max(1.0, mean)))
            # What waits for a network needs threads of its own, unless all is to happen in the caller's.
            items, fetchers = ahead.through(self._units(todo), _refs), FETCHERS

        def stop() -> None:
            self._fetcher.rest()
            if ahead is not None:
                ahead.close()

        ahead_bytes = self.recipe.ahead_bytes
        work = Readahead(map(_job, items), threads=self.threads, ahead_bytes=ahead_bytes, fetchers=fetchers, stop=stop)
        self._work = work
        return work.run()

    def ready(self) -> bool:
        """Whether the next of what is being read lies ready."""
        return self._work is not None and self._work.ready

    def _units(self, todo: Iterable[tuple[int, Share]]) -> Iterator[tuple[Assembler, Unit] | Over]:
        plan = self.recipe.plan
        most = LIGHT_RUN if self.recipe.light else RUN
        for epoch, share in todo:
            assembler = self._assembler(epoch)
            self._keeping.begin(epoch, share)
            turns = share.turns(plan.steps(start=share.start, rank=share.rank))
            for unit in units(plan, epoch, share, turns, most, mapped=self._fetcher.local):
                yield assembler, unit
            yield Over(epoch)

    def _assembler(self, epoch: int) -> Assembler:
        recipe = self.recipe
        seed = recipe.plan.seed
        maker = SampleMaker(
            self._fetcher,
            recipe.choice,
            recipe.decoders,
            recipe.transform,
            SampleGenerators(seed, epoch),
            recipe.on_error,
            SampleGenerators(seed, epoch, "crop") if recipe.random_crop else None,
            recipe.steps,
            SampleGenerators(seed, epoch, "image") if recipe.steps else None,
        )
        return Assembler(
            recipe.plan,
            maker,
            recipe.collate,
            framings(recipe.plan),
            epoch,
            allocate=self._allocate,
            channels_last=recipe.channels_last,
            counters=self.counters,
            light=recipe.light,
        )

    def close(self) -> None:
        """Let go of open shards; iterators of passes are to be closed before."""
        self._fetcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _job(item: tuple[Assembler, Unit] | Over) -> Job:
    return Call(Over, item.epoch) if isinstance(item, Over) else item[0].job(item[1])


def _refs(item: tuple[Assembler, Unit] | Over) -> SampleRefs | None:
    return None if isinstance(item, Over) else item[1].refs
