"""The worker processes of a loader, as the trainer's process sees them.

>>> workers = Workers(recipe, count=2, threads=4, prefetch=2, start="spawn", continuous=False)
>>> workers.begin(epoch=0, start=0)
>>> header, items = workers.take(0)      # the first unit of worker 0
>>> workers.close()
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import current_thread, main_thread
from typing import Any, Final

from .buffers import Buffers
from .channel import Receiver
from .errors import PlanError, WorkerError
from .reader import Recipe
from .worker import Work, raised, serve

_MEMORY_HINT: Final = (
    "a worker that is killed with signal 9 has often run out of memory: lower ahead_bytes, prefetch or workers"
)
_CODE_HINT: Final = (
    "what it wrote to stderr says why; a program with workers guards its main code with `if __name__ == '__main__':`"
)
_PATIENCE: Final = 5.0
"""Seconds that a worker gets to finish what it is at when it is to end."""


class Workers:
    """Starts `count` processes, asks them for passes, takes what they send, and ends them."""

    def __init__(
        self, recipe: Recipe, *, count: int, threads: int | None, prefetch: int, start: str, continuous: bool
    ) -> None:
        if multiprocessing.current_process().daemon:
            raise PlanError("a daemon process may not start worker processes", hint="use workers=0 here")
        self.count = count
        self.totals: list[Mapping[str, float]] = [{}] * count
        """What each worker has done up to the message that was taken last."""
        self._continuous = continuous
        self._number = 0
        self._pass: tuple[int, int] | None = None
        self._ahead: tuple[int, int] | None = None
        """The pass that continuous workers have begun by themselves, while none is taken."""
        self._buffers = Buffers()
        self._processes: list[BaseProcess] = []
        self._receivers: list[Receiver] = []
        connections: list[Connection] = []
        # Also without close(), and at the interpreter's end.
        self._end = weakref.finalize(self, _end, os.getpid(), self._processes, connections)
        context = multiprocessing.get_context(start)
        if start != "fork":
            resource_tracker.ensure_running()  # or the first start would start it too, and let Ctrl-C through
        for worker in range(count):
            here, there = context.Pipe(duplex=True)
            connections.append(here)
            self._receivers.append(Receiver(here, self._buffers))
            work = Work(recipe, worker, count, threads, prefetch, continuous)
            forked = tuple(connections) if start == "fork" else ()
            process = context.Process(  # type: ignore[attr-defined]
                target=serve, args=(there, work, forked), name=f"shardstream-worker-{worker}", daemon=True
            )
            try:
                with _without_interrupts():
                    process.start()
                    self._processes.append(process)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                self.close()
                raise PlanError(
                    f"the dataset can't be sent to a worker process: {error}",
                    hint="define transform, decode and collate functions at the top of a module, or use workers=0",
                ) from error
            except BaseException:
                self.close()
                raise
            finally:
                there.close()

    @property
    def copies(self) -> int:
        """Batches that were copied, since the trainer kept others."""
        return sum(receiver.copies for receiver in self._receivers)

    def begin(self, epoch: int, start: int) -> None:
        """The pass that is taken next; one that the workers have begun by themselves goes on."""
        ahead, self._ahead = self._ahead, None
        self._pass = epoch, start
        if ahead == self._pass:
            return
        self._number += 1
        for worker, receiver in enumerate(self._receivers):
            with self._named(worker):
                # A worker that waits for room in the pipe hears nothing; so what is left of the pass before goes first.
                stale = 0
                while receiver.connection.poll():
                    receiver.receive(lambda _: False)
                    stale += 1
                receiver.connection.send(("run", self._number, epoch, start))
                receiver.connection.send(("took", stale, receiver.unused()))

    def ready(self, worker: int) -> bool:
        """Whether take() would not wait long."""
        return not self.closed and bool(self._receivers[worker].connection.poll())

    @property
    def closed(self) -> bool:
        """Whether the processes have ended."""
        return not self._end.alive

    def left(self) -> None:
        """The pass is not taken to its end."""
        self._pass = self._ahead = None

    def over(self) -> None:
        """The pass was taken to its end."""
        if self._pass is not None and self._continuous:
            self._ahead = self._pass[0] + 1, 0

    def take(self, worker: int) -> tuple[dict[str, Any], list[Any]]:
        """(header, items) of the next unit of a worker.

        Raises the worker's error where its turn comes, WorkerError for a worker that has died; all workers are ended
        then.
        """
        receiver = self._receivers[worker]
        epoch = self._pass[0] if self._pass is not None else 0
        found = False

        def wanted(header: dict[str, Any]) -> bool:
            nonlocal found
            found = bool(header["run"] == self._number and header["epoch"] == epoch)
            return found

        header: dict[str, Any] = {}
        items: Any = None
        with self._named(worker):
            while not found:
                header, items = receiver.receive(wanted)
                receiver.connection.send(("took", 1, receiver.unused()))
        if header.get("failed"):
            self.close()
            raise raised(items)
        self.totals[worker] = header["totals"]
        return header, items

    @contextmanager
    def _named(self, worker: int) -> Iterator[None]:
        """Name the worker that has died; what is left half done, whatever the reason, ends all."""
        try:
            yield
        except (EOFError, OSError) as error:
            dead = self._dead(worker)
            self.close()
            hint = _MEMORY_HINT if "signal 9" in dead else _CODE_HINT if "code" in dead else None
            raise WorkerError(dead, hint=hint) from error
        except BaseException:
            self.close()
            raise

    def _dead(self, worker: int) -> str:
        process = self._processes[worker]
        process.join(_PATIENCE)  # its connection ends a moment before its exit code is known
        code = process.exitcode
        if code is not None and code < 0:
            how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
        else:
            how = "closed its connection" if code is None else f"ended with code {code}"
        return f"worker {worker} (process {process.pid}) {how}"

    def close(self) -> None:
        """End the processes."""
        self._end()


def _end(owner: int, processes: list[BaseProcess], connections: list[Connection]) -> None:
    if os.getpid() != owner:
        return  # a forked process has this object too; the workers are not its own
    for connection in connections:
        # Closing alone ends nothing where a process that was forked meanwhile has the connection too.
        with suppress(OSError), socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.shutdown(socket.SHUT_RDWR)
        connection.close()
    for process in processes:
        process.join(_PATIENCE)
        if process.exitcode is None:
            process.terminate()
            process.join(_PATIENCE)
        if process.exitcode is None:
            process.kill()
            process.join()
        process.close()
    processes.clear()
    connections.clear()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process that is started here does not see Ctrl-C before it has said that it ignores it."""
    if current_thread() is not main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
