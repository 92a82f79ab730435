"""StreamingDataset: shards in, batches out, for this rank and worker.

>>> train = StreamingDataset("s3://bucket/cc3m", batch=FixedBatch(256, size=224), shuffle=True, seed=7)
>>> len(train)
12961
>>> for batch in torch.utils.data.DataLoader(train, batch_size=None, num_workers=8):
...     batch["jpg"].shape, batch["txt"][0], batch["__state__"]["position"]
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final

from torch.utils.data import IterableDataset, get_worker_info

from .assemble import Collate
from .batch import shared
from .cache import Cache
from .cache.memory import Memory
from .cache.tiers import Tiers
from .catalog import open_catalog, open_mix
from .choice import FieldChoice
from .decode import Decode, Decoders
from .epochs import Epochs
from .errors import PlanError, StateError
from .place import resolve_place
from .plan import (
    Chosen,
    CostBudget,
    FixedBatch,
    Mix,
    PixelBudget,
    Plan,
    Share,
    Shuffle,
    Tail,
    make_state,
    read_state,
)
from .plan.describe import describe_oversize, describe_tail
from .plan.plan import TOGETHER
from .plan.state import MAX_EPOCH
from .plan.where import Where
from .reader import Over, Reader, Recipe
from .samples import OnError, Skips, Transform
from .source import Source
from .transforms import check, leading
from .units import framings

log = logging.getLogger("shardstream")
SIDECARS: Final = 16
"""Sidecars that are read at a time where all of them are asked for."""


class StreamingDataset(IterableDataset[dict[str, Any]]):
    """Batches (or single samples, with batch=None) of the shards at `source`.

    source       a folder or URL with an index, a brace or glob pattern of shards, a list of these, or a Mix of several
                 datasets.  Without an index it is made first, which takes one pass over the shards
    batch        FixedBatch(n, size=...), PixelBudget(pixels, ...), CostBudget(column, cost), or None for samples shaped
                 as the webdataset package shapes them
    shuffle      True, False or Shuffle(shards=, buffer=): how far samples are mixed; seed: any whole number
    fields       names of the fields to give ("jpg;png" takes the first that a sample has), a dict from new name to
                 name, or None for all
    decode       True: by field name; False: bytes; "views": memoryviews, of the mapped file for local shards; a dict:
                 functions of bytes for some fields, by name for the others
    transform    transform(sample, rng) -> sample, on decoded samples; rng is a numpy Generator that is a function of
                 seed, epoch and sample only.  A list of them is run in order; random crops and flips that lead it
                 (streaming.transforms) are done while decoding
    tail         what happens to micro-batches that would make ranks unequal: "drop" (default with shuffle), "pad"
                 (default without): some come again, flagged in `__repeat__`, "uneven": ranks differ by up to one
    on_error     "raise", or "skip": leave out samples that can't be decoded or lack a field, say so in the log and in
                 the batch's `__skipped__`, and give up after `skip_limit` of them in an epoch of one reader
    collate      samples -> batch, in place of the default
    channels_last   images lie in a batch [n, 3, h, w] in memory as [n, h, w, 3], as decoders give them and convolutions
                 on GPUs like them: the same values, a little faster
    where        a predicate over the columns of the index, such as "width >= 256 and height >= 256": only the samples
                 for which it holds are there.  The sidecars of all shards are read once for it
    lanes        parallel tracks of the plan (see Plan); part of the order
    together     with a budget: how many micro-batches of similar samples come one after the other.  Where it is a
                 multiple of the ranks, all ranks have batches of one shape in each step; part of the order
    sticky       lanes keep their shards over epochs, so that the caches of nodes stay warm; part of the order
    threads      threads that fetch and decode ahead (default: this reader's share of the cores; 0, none, where the
                 bytes of local shards are given as they are)
    ahead_bytes  bound on what they hold
    index        where the index is, if not beside the shards; storage_options: endpoint_url, key, secret, anon, ...
    cache        Cache(disk=..., shared=..., ...): where what is fetched is kept for the next epoch
    rank, world_size   default: torch.distributed if initialised, else RANK and WORLD_SIZE, else one rank

    A batch is a dict: images uint8 [n, 3, h, w], whole numbers int64 [n], arrays stacked [n, ...], text and keys lists
    of n (for padded and packed batches see streaming.ragged); `__key__` is there always, and `__state__` is the state
    to save to go on behind this batch.
    With tail="pad", `__repeat__` bool [n] tells what came before; single samples have it only where some are repeated.
    With on_error="skip" it is there too: a batch whose samples were all skipped is replaced by another, given again.

    Each iteration is the next epoch; `set_epoch` and `load_state_dict` say where the next one starts.  Works in the
    trainer's process, under torch's DataLoader (batch_size=None), torchdata's StatefulDataLoader and StreamingLoader.
    """

    def __init__(
        self,
        source: Source | Sequence[Source] | Mix,
        *,
        batch: FixedBatch | PixelBudget | CostBudget | None = None,
        shuffle: bool | Shuffle = False,
        seed: int = 0,
        fields: Sequence[str] | Mapping[str, str] | None = None,
        decode: Decode = True,
        transform: Transform | Sequence[Any] | None = None,
        tail: Tail | None = None,
        on_error: OnError = "raise",
        skip_limit: int = 1000,
        collate: Collate | None = None,
        channels_last: bool = False,
        where: str | None = None,
        lanes: int | None = None,
        together: int = TOGETHER,
        threads: int | None = None,
        ahead_bytes: int = 256 << 20,
        index: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: Cache | None = None,
        sticky: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise PlanError(f"on_error={on_error!r}", hint="it is 'raise' or 'skip'")
        if threads is not None and threads < 0:
            raise PlanError(f"threads={threads!r}: 0 for none, or a positive number")
        decoders = Decoders(decode)
        self.place = resolve_place(rank, world_size)
        if on_error == "skip" and batch is None and self.place.world_size > 1:
            raise PlanError(
                "on_error='skip' with single samples would leave ranks with unequal numbers of them",
                hint="give batch=FixedBatch(n), whose batches get smaller instead, or on_error='raise'",
            )
        tiers = None if cache is None else Tiers(cache)
        mix = source if isinstance(source, Mix) else None
        salvage, shards = on_error == "skip", list[int]()
        if isinstance(source, Mix):
            names = list(source.weights)
            self.catalog, shards = open_mix(names, index=index, options=storage_options, salvage=salvage, tiers=tiers)
        else:
            self.catalog = open_catalog(source, index=index, options=storage_options, salvage=salvage, tiers=tiers)
        chosen = self._choose(where) if where is not None else None
        known = chosen or (self.catalog if isinstance(batch, PixelBudget | CostBudget) else self.catalog.counts)
        self.plan = Plan.make(
            known,
            batch=batch,
            shuffle=shuffle,
            seed=seed,
            lanes=lanes,
            tail=tail,
            world_size=self.place.world_size,
            dataset=self.catalog.digest(),
            together=together,
            where=where,
            mix=mix,
            sources=shards,
            sticky=sticky,
        )
        """The plan: print it to see steps, tail and which worker counts read no byte twice."""
        self.skips = Skips(skip_limit)
        """What was left out under on_error="skip" in this process, in the current epoch."""
        steps, rest = leading(transform, fused=not decoders.own_images)
        for framing in framings(self.plan):
            check(steps, framing)
        self.recipe = Recipe(
            self.catalog,
            self.plan,
            self.place,
            FieldChoice(fields),
            decode,
            steps,
            rest,
            collate,
            on_error,
            skip_limit,
            random_crop=isinstance(batch, PixelBudget) and batch.crop == "random",
            channels_last=channels_last,
            ahead_bytes=ahead_bytes,
            threads=threads,
            tiers=tiers,
        )
        """How it is read, in whatever process."""
        self._epochs = Epochs()
        self._memory: Memory | None = None
        """Chunks that a cache keeps in the memory of this process."""
        self._passes = 0
        self._loaded: dict[str, Any] | None = None
        self._loaded_in_worker = False
        self._done: tuple[int, Share, int] | None = None
        """Epoch, share and steps done: a state is made of them when it is asked for, not for each sample."""
        self._report()

    def _choose(self, where: str) -> Chosen:
        with ThreadPoolExecutor(SIDECARS, thread_name_prefix="shardstream-index") as pool:
            return Chosen(self.catalog, Where(where), run=pool.map)

    def _report(self) -> None:
        """Say before the first batch what the tail will do; refuse an epoch that would have no batch at all."""
        if self.plan.samples and not self.plan.steps():
            raise PlanError(
                f"tail='drop' leaves no batch: {self.plan.samples:,} samples in {self.plan.batch} make "
                f"{self.plan.full} full micro-batches for {self.plan.world_size} ranks",
                hint="use smaller batches, fewer ranks, or tail='pad'",
            )
        if self.place.rank:
            return
        if self.plan.oversize:
            log.warning("%s", describe_oversize(self.plan))
        tail = self.plan.tail_report()
        if tail.dropped_samples or tail.repeated_samples:
            log.warning("%s", describe_tail(self.plan, tail))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_memory": None}

    def __len__(self) -> int:
        """Batches (or samples) that this rank yields in a whole epoch, over all its workers together."""
        return self.plan.steps(rank=self.place.rank)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch, from its start; also for workers that are running already."""
        if not isinstance(epoch, int) or not 0 <= epoch < MAX_EPOCH:
            raise PlanError(f"set_epoch({epoch!r}): epochs count from 0 to {MAX_EPOCH - 1}")
        self._loaded = self._done = None
        self._epochs.request(epoch=epoch)

    def state_dict(self) -> dict[str, Any]:
        """The state behind the last sample or batch that this object gave: {version, fingerprint, epoch, position}.

        Raises StateError where torch's DataLoader reads this dataset in worker processes, which run ahead of the
        trainer: save the `__state__` of the last batch then, or use StreamingLoader or StatefulDataLoader.
        """
        if get_worker_info() is None and self._epochs.in_workers:
            raise StateError(
                "worker processes read this dataset, and run ahead of the batches that you have seen",
                hint="save batch['__state__'] of the last batch, or use StreamingLoader or StatefulDataLoader",
            )
        if self._done is not None:
            return self._state(*self._done)
        if self._loaded is not None:
            return dict(self._loaded)
        epoch, position = self._epochs.upcoming()
        return make_state(self.recipe.fingerprint, epoch=epoch, position=position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on behind `state`, on this number of ranks and workers, whatever it was saved on.

        Raises StateError, and StateMismatch for a state of another dataset or configuration.
        """
        epoch, position = read_state(state, self.recipe.fingerprint)
        self._done = None
        self._loaded = dict(state)
        self._loaded_in_worker = get_worker_info() is not None
        if not self._loaded_in_worker:
            self._epochs.request(epoch=epoch, position=position)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is None:
            return self._iterate()
        if self.recipe.decoders.views:
            raise PlanError(
                "decode='views' gives views of this process's memory, which a DataLoader's worker can't send",
                hint="use decode=False, num_workers=0 or StreamingLoader",
            )
        # Workers of one DataLoader pass share its base seed; persistent ones go through their passes in step.
        self._passes += 1
        pass_id = hash((info.seed - info.id, self._passes))
        self._epochs.mark(in_workers=True)
        epoch, share = self._begin_in_worker(pass_id, info.id, info.num_workers)
        self._start(epoch, share)
        return self._run(epoch, share)

    def _iterate(self) -> Iterator[Any]:
        if not self._passes:
            self.recipe.warn(workers=1)
        # An iterator from which nothing is taken begins no epoch.
        epoch, start = self.begin()
        yield from self._run(epoch, self.recipe.share(start=start))

    def begin(self, *, in_workers: bool = False) -> tuple[int, int]:
        """Begin the next pass, for what reads it in place of iter(): (epoch, position) at which it starts."""
        self._passes += 1
        epoch, start = self._epochs.begin(self._passes)
        if self.recipe.over(start):
            epoch, start = epoch + 1, 0
            self._epochs.begin_at(self._passes, epoch)
        self._epochs.mark(in_workers=in_workers)
        self._start(epoch, self.recipe.share(start=start))
        return epoch, start

    def given(self, epoch: int, share: Share, steps: int) -> None:
        """What reads a pass in place of iter() has given so many steps of it."""
        self._done = epoch, share, steps

    def _start(self, epoch: int, share: Share) -> None:
        self._loaded, self._done = None, (epoch, share, 0)
        self.skips = Skips(self.recipe.skip_limit)

    def _begin_in_worker(self, pass_id: int, worker: int, workers: int) -> tuple[int, Share]:
        """Epoch and share of a worker process: from the state that was loaded in it, or as the trainer asked."""
        skip = 0
        # What the trainer loaded is in the shared epochs; workers are often started anew and would load it each time.
        loaded = self._loaded if self._loaded_in_worker else None
        if loaded is not None:
            epoch, start, skip = _worker_state(loaded, worker, workers)
        else:
            epoch, start = self._epochs.begin(pass_id, worker)
        over = self.recipe.over(start)
        if over:
            epoch, start, skip = epoch + 1, 0, 0
        if over or loaded is not None:
            self._epochs.begin_at(pass_id, epoch, worker)
        return epoch, self.recipe.share(worker, workers, start, skip)

    def _run(self, epoch: int, share: Share) -> Iterator[Any]:
        recipe, batched = self.recipe, self.plan.batch is not None
        allocate = shared if get_worker_info() is not None else None
        # Two iterators at a time are two readers, of which only one has what was kept.
        memory, self._memory = self._memory or recipe.memory(share.workers), None
        with (
            Reader(recipe, workers=share.workers, allocate=allocate, memory=memory) as reader,
            closing(reader.passes([(epoch, share)])) as work,
        ):
            for done in work:
                if isinstance(done, Over):
                    break
                self.skips.add(done.errors)
                for step, item in zip(done.unit.steps, done.items, strict=True):
                    self._done = epoch, share, step + 1
                    if batched:
                        yield recipe.sign(item, epoch, share.start, step)
                    elif item is not None:
                        yield item
        self._memory = memory

    def _state(self, epoch: int, share: Share, steps: int) -> dict[str, Any]:
        """The state after `steps` steps; in a worker process it also says what this worker has done (_worker_state)."""
        state = self.recipe.state_after(epoch, share.start, steps)
        if get_worker_info() is None:
            return state
        turns = max(share.skip, -(-(steps - share.worker) // share.workers))
        return state | {"worker": [share.worker, share.workers, epoch, share.start, turns]}


def _worker_state(state: Mapping[str, Any], worker: int, workers: int) -> tuple[int, int, int]:
    """(epoch, start, turns done) for a worker that loads a state.

    A state that was taken inside worker processes names the worker: each then goes on behind its own last turn.  Any
    other state counts for the whole rank.
    """
    mark = state.get("worker")
    if isinstance(mark, (list, tuple)) and len(mark) == 5:
        if list(mark[:2]) != [worker, workers]:
            raise StateError(
                f"the state of worker {mark[0]} of {mark[1]} was loaded into worker {worker} of {workers}",
                hint="a StatefulDataLoader resumes with the same num_workers; a batch's own `__state__` with any",
            )
        return int(mark[2]), int(mark[3]), int(mark[4])
    return int(state["epoch"]), int(state["position"]), 0
