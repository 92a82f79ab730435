"""StreamingLoader: a dataset read in threads or worker processes, batches on the device, and a state that is exact.

>>> with StreamingLoader(train, workers=1, threads=8, device="cuda", device_transform=Normalize()) as loader:
...     for epoch in range(10):
...         for batch in loader:
...             ...
...         save(loader.state_dict())
...         print(loader.stats())
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Literal, Self

import torch

from .dataset import StreamingDataset
from .device import DeviceTransform, Mover, Moving
from .errors import PlanError
from .inprocess import InProcess
from .monitor import Monitor
from .place import choose_workers, cores
from .stats import Counters, Stats, summed
from .steps import Steps
from .workers import Workers

log = logging.getLogger("shardstream")


class StreamingLoader:
    """Iterates over a StreamingDataset; each iteration is the next epoch.

    workers     processes that read and decode; 0: the trainer's own process; "auto": one for every two cores that
                this rank has, at least one, as `loader.workers` then says.  They are started once, and stay until
                close().  With one or more the trainer's interpreter is not slowed by reading, nor reading by it
    threads     threads in each of them (default: a fair share of the cores)
    device      where tensors go; None: as they are.  For "cuda" they are pinned, and copied beside the computation,
                one batch ahead
    device_transform   a function of the batch once it is on its device, such as streaming.transforms.Normalize
    prefetch    batches (64 samples, where there are no batches) that each worker has sent ahead, at most
    continuous  begin the next epoch while the trainer is still in this one, so that no stall comes between them
    start       how workers are started: "spawn" or "forkserver"; "fork" only where nothing has threads yet

    A program that uses workers must guard its main code with `if __name__ == "__main__":`, as for any spawned process.
    Batches lie in memory that is used again when nothing refers to them any more; keep them as long as you like.
    """

    def __init__(
        self,
        dataset: StreamingDataset,
        *,
        workers: int | Literal["auto"] = 1,
        threads: int | None = None,
        device: str | torch.device | None = None,
        device_transform: DeviceTransform | None = None,
        prefetch: int = 2,
        continuous: bool = False,
        start: str = "spawn",
    ) -> None:
        if workers == "auto":
            workers, threads = choose_workers(dataset.place, threads)
            log.info("workers='auto': %d worker processes of %d threads", workers, threads)
        if not isinstance(workers, int) or workers < 0 or prefetch < 1 or (threads is not None and threads < 0):
            raise PlanError(f"workers={workers!r}, prefetch={prefetch}, threads={threads}: at least 0, 1 and 0")
        self.dataset = dataset
        self.workers = workers
        self.threads = threads
        self.device = None if device is None else torch.device(device)
        self._mover = Mover(self.device, device_transform)
        self._prefetch = prefetch
        self._continuous = continuous
        self._start = start
        self._source: Workers | InProcess | None = None
        self._done: tuple[int, int, int] | None = None
        """Epoch, position of its start and steps given; None where another start was asked for."""
        self._steps: Steps | None = None
        """Those of the iteration that runs."""
        self._monitor = Monitor(self.device)
        self._cpu = time.process_time()
        self._counters = Counters()
        self._ended: list[Mapping[str, float]] = []
        """What workers that have ended had done."""
        self._copies = self._batches = self._samples = 0

    def __len__(self) -> int:
        return len(self.dataset)

    def __repr__(self) -> str:
        threads = self.dataset.recipe.thread_count(self.threads, max(1, self.workers))
        processes = f"{self.workers} worker processes" if self.workers else "the trainer's process"
        return f"<StreamingLoader: {threads} threads in {processes}, device {self.device}>"

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch, from its start."""
        self._done = None
        self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The state behind the last batch that this loader gave, however far its workers have read ahead."""
        return self.dataset.recipe.state_after(*self._done) if self._done is not None else self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on behind `state`.  Raises StateError, StateMismatch."""
        self.dataset.load_state_dict(state)
        self._done = None

    def stats(self) -> Stats:
        """What was done since the loader was made, and what the trainer waited for.

        >>> before = loader.stats()
        >>> ...
        >>> print(loader.stats() - before)
        """
        running = [] if self._source is None else self._source.totals
        if self._steps is not None:
            self._steps.passed()
        trainer = dict(self._counters.totals())
        trainer |= {"batches": self._batches, "samples": self._samples}
        trainer["cpu"] = time.process_time() - self._cpu
        trainer["copies"] = self._copies + (0 if self._source is None else self._source.copies)
        return summed([*self._ended, *running], trainer, cores=cores(), gpu=self._monitor.read())

    @property
    def skipped(self) -> int:
        """Samples left out under on_error="skip", over all workers, since the loader was made."""
        return int(self._counters.totals().get("skipped", 0))

    def __iter__(self) -> Iterator[Any]:
        epoch, start = self.dataset.begin(in_workers=self.workers > 0)
        source = self._opened()
        steps = Steps(source, left=self.dataset.recipe.left(start), counters=self._counters)
        if self._steps is not None:
            self._steps.supersede()
        self._steps, self._done = steps, (epoch, start, 0)
        here, share = self.workers == 0, self.dataset.recipe.share(start=start)
        batched = self.dataset.plan.batch is not None
        whole = False
        try:
            source.begin(epoch, start)
            for step, item in self._moved(steps) if self._mover.moves else steps:
                self._done = epoch, start, step
                if here:
                    self.dataset.given(epoch, share, step)
                if item is not None:
                    self._batches += 1
                    self._samples += _samples(item) if batched else 1
                    yield item
                    del item  # or its memory could not be used again while the next one is waited for
            whole = True
        finally:
            if self._steps is steps:
                steps.passed()
                self._steps = None
                source.over() if whole else source.left()

    def _moved(self, steps: Steps) -> Iterator[tuple[int, Any]]:
        """The steps with their items on the device; the next one is sent on its way before one is given."""
        mover, moving = self._mover, deque(self._started(steps))
        failed: Exception | None = None
        while moving:
            if mover.ahead and steps.ready():
                try:
                    moving += self._started(steps)
                except Exception as error:  # noqa: BLE001  (raised behind the batch before it)
                    failed = error
            step, moved = moving.popleft()
            yield step, mover.finish(moved)
            del moved
            steps.check()
            if failed is not None:
                raise failed
            if not moving:
                moving += self._started(steps)

    def _started(self, steps: Steps) -> list[tuple[int, Moving]]:
        """The next step, if any, on its way."""
        return [(step, self._mover.start(item)) for step, item in islice(steps, 1)]

    def _opened(self) -> Workers | InProcess:
        if self._source is None or self._source.closed:
            self._retire()
            recipe = self.dataset.recipe
            recipe.warn(max(1, self.workers))
            if self.workers == 0:
                self._source = InProcess(recipe, threads=self.threads, continuous=self._continuous)
            else:
                self._source = Workers(
                    recipe,
                    count=self.workers,
                    threads=self.threads,
                    prefetch=self._prefetch,
                    start=self._start,
                    continuous=self._continuous,
                )
        return self._source

    def _retire(self) -> None:
        """Forget what reads, but not what it has done."""
        source, self._source = self._source, None
        if source is not None:
            self._ended += [{**totals, "threads": 0} for totals in source.totals]
            self._copies += source.copies

    def close(self) -> None:
        """End the worker processes, or the threads.  The loader can be iterated again; it starts new ones then."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.passed()
            steps.supersede()
        if self._source is not None:
            self._source.close()
        self._retire()
        tiers = self.dataset.recipe.tiers
        if tiers is not None:
            tiers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _samples(batch: Any) -> int:
    """How many samples a batch holds, as its keys say."""
    keys = batch.get("__key__") if isinstance(batch, dict) else None
    return len(keys) if isinstance(keys, list) else 1
