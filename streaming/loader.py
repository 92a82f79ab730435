"""StreamingLoader: a dataset read in worker processes, batches on the device, and a state that is exact.

>>> with StreamingLoader(train, workers=1, threads=8, device="cuda") as loader:
...     for epoch in range(10):
...         for batch in loader:
...             ...
...         save(loader.state_dict())
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from multiprocessing.connection import wait
from typing import Any, Final, Self

import torch
from torch.utils.data import DataLoader, IterableDataset

from .dataset import StreamingDataset
from .errors import PlanError, ShardError, WorkerError

_MEMORY_HINT: Final = (
    "a worker that is killed with signal 9 has often run out of memory: lower ahead_bytes, prefetch or workers"
)


class _Failure:
    """An error on its way from a worker, whole."""

    def __init__(self, error: ShardError) -> None:
        self.error = error


class _Reporting(IterableDataset[Any]):
    """Gives what the dataset gives; an error of ours comes as an item, since torch would rebuild it from its text."""

    def __init__(self, dataset: StreamingDataset, threads: int | None) -> None:
        self._dataset = dataset
        self._threads = threads

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._dataset.each_step(self._threads)
        except ShardError as error:
            yield _Failure(error)


class StreamingLoader:
    """Iterates over a StreamingDataset; each iteration is the next epoch.

    workers     processes that read and decode; 0: the trainer's own process.  They are started with spawn, once, and
                stay until close()
    threads     threads in each of them (default: a fair share of the cores)
    device      where tensors go; None: as they are.  For "cuda" they are pinned first and copied asynchronously
    prefetch    batches that each worker has ready, at most
    start       how workers are started: "spawn" or "forkserver"; "fork" only where nothing has threads yet

    A program that uses workers must guard its main code with `if __name__ == "__main__":`, as for any spawned process.
    """

    def __init__(
        self,
        dataset: StreamingDataset,
        *,
        workers: int = 1,
        threads: int | None = None,
        device: str | torch.device | None = None,
        prefetch: int = 2,
        start: str = "spawn",
    ) -> None:
        if workers < 0 or prefetch < 1 or (threads is not None and threads < 0):
            raise PlanError(f"workers={workers}, prefetch={prefetch}, threads={threads}: at least 0, 1 and 0")
        self.dataset = dataset
        self.workers = workers
        self.device = None if device is None else torch.device(device)
        self.skipped = 0
        """Samples left out under on_error="skip", over all workers, since the loader was made."""
        self.threads = threads
        self._prefetch = prefetch
        self._start = start
        self._loader: DataLoader[Any] | None = None
        self._running: Any = None
        self._state: dict[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch, from its start."""
        self._state = None
        self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The state behind the last batch that this loader gave, however far its workers have read ahead."""
        return dict(self._state) if self._state is not None else self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on behind `state`.  Raises StateError, StateMismatch."""
        self.dataset.load_state_dict(state)
        self._state = None

    def __iter__(self) -> Iterator[Any]:
        epoch, start = self.dataset.upcoming()
        self._state = self.dataset.state_after(epoch, start, 0)
        for steps, item in enumerate(self._items(), start=1):
            if isinstance(item, _Failure):
                self.close()
                raise item.error
            self._state = self.dataset.state_after(epoch, start, steps)
            if item is None:
                self.skipped += 1
                continue
            if isinstance(item, dict):
                self.skipped += len(item.get("__skipped__", ()))
            yield item if self.device is None else _to(item, self.device)

    def _items(self) -> Iterator[Any]:
        if self.workers == 0:
            yield from self.dataset.each_step(self.threads)
            return
        if self._loader is None:
            self._loader = DataLoader(
                _Reporting(self.dataset, self.threads),
                batch_size=None,
                num_workers=self.workers,
                multiprocessing_context=self._start,
                prefetch_factor=self._prefetch,
                persistent_workers=True,
                pin_memory=self.device is not None and self.device.type == "cuda",
            )
        self._running = iter(self._loader)
        while True:
            try:
                item = next(self._running)
            except StopIteration:
                return
            except (RuntimeError, OSError, EOFError) as error:
                # A worker that dies is noticed by torch, or by whatever was waiting for its bytes.
                dead = _dead_worker(self._running)
                if dead is None:
                    raise
                self.close()
                raise WorkerError(dead, hint=_MEMORY_HINT if "signal 9" in dead else None) from error
            yield item

    def close(self) -> None:
        """End the worker processes.  The loader can be iterated again; it starts new ones then."""
        running, self._running, self._loader = self._running, None, None
        # DataLoader has no public way to end persistent workers at a given moment.
        end = getattr(running, "_shutdown_workers", None)
        if end is not None:
            end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _dead_worker(running: Any) -> str | None:
    """Which worker has died, and of what; None if none has within a few seconds."""
    try:
        return _find_dead(running)
    except RuntimeError:
        # Torch's signal handler, which raises once wherever the main thread is when a worker dies.
        return _find_dead(running)


def _find_dead(running: Any) -> str | None:
    workers = getattr(running, "_workers", ())
    ended = wait([process.sentinel for process in workers], timeout=5.0)
    for number, process in enumerate(workers):
        if process.sentinel in ended:  # a moment before its exit code is known
            process.join(timeout=5.0)
        code = process.exitcode
        if code is not None and code != 0:
            how = (
                f"was killed by signal {-code} ({signal.Signals(-code).name})"
                if code < 0
                else f"ended with code {code}"
            )
            return f"worker {number} (process {process.pid}) {how}"
    return None


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {name: _to(v, device) for name, v in value.items()}
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        return type(value)(_to(v, device) for v in value)
    return value
