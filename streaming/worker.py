"""A worker process: reads its part of each pass and sends it to the trainer.

What the trainer says, as tuples:

    ("run", number, epoch, start)    read this epoch from this position on; whatever was read before is not wanted
    ("took", count, unused)          so many messages were taken; these buffers are free again

and the end of the connection means: end.  What the worker sends has a header {run, epoch, steps, skipped, totals} and
the items of a unit, or {run, epoch, failed} and an error.  At most `prefetch` messages are sent and not taken.
"""

from __future__ import annotations

import pickle
import signal
import time
import traceback
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from .channel import Sender
from .errors import WorkerError
from .reader import Over, Reader, Recipe
from .samples import Skips
from .stats import Counters


@dataclass(frozen=True)
class Work:
    """What a worker is told once: what to read, as which of how many, and how far ahead."""

    recipe: Recipe
    worker: int
    workers: int
    threads: int | None
    prefetch: int
    continuous: bool
    """Whether the next epoch is begun before the trainer asks for it."""


class _Gone(Exception):
    """The trainer has ended the connection."""


class _Remote(Exception):
    """The traceback of an error in a worker, as the cause of the error in the trainer."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def serve(connection: Connection, work: Work, inherited: tuple[Connection, ...] = ()) -> None:
    """What a worker process runs.  `inherited`: the trainer's own ends, which a forked process has too."""
    # Ctrl-C goes to all processes of a terminal: the trainer ends its workers when it has left its loop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for other in inherited:
        other.close()
    torch.set_num_threads(1)  # this process's threads are busy enough without torch's own
    sender = Sender(connection, keep=work.recipe.ahead_bytes)
    try:
        _Worker(sender, work).run()
    except _Gone:
        pass
    finally:
        sender.close()


class _Worker:
    def __init__(self, sender: Sender, work: Work) -> None:
        self._sender = sender
        self._work = work
        self._counters = Counters()
        self._wanted: tuple[int, int, int] | None = None
        self._sent = 0
        """Messages that are sent and not taken."""

    def run(self) -> None:
        """Read what is asked for, until the trainer is gone."""
        work = self._work
        reader = Reader(
            work.recipe,
            threads=work.threads,
            workers=work.workers,
            buffers=self._sender.buffers,
            counters=self._counters,
        )
        with reader:
            while True:
                while self._wanted is None:
                    self._hear()
                (number, epoch, start), self._wanted = self._wanted, None
                self._passes(reader, number, epoch, start)

    def _passes(self, reader: Reader, number: int, epoch: int, start: int) -> None:
        """One pass, or one after the other, until another is wanted."""
        work, skips = self._work, Skips(self._work.recipe.skip_limit)
        todo = work.recipe.passes(epoch, start, worker=work.worker, workers=work.workers, continuous=work.continuous)
        try:
            with closing(reader.passes(todo)) as done:
                for some in done:
                    if isinstance(some, Over):
                        epoch, start, skips = epoch + 1, 0, Skips(work.recipe.skip_limit)
                        continue
                    skips.add(some.errors)
                    items, skipped = list(work.recipe.signed(some, epoch, start)), len(some.errors)
                    del some
                    totals = {**self._counters.totals(), "threads": reader.threads, "cpu": time.process_time()}
                    self._send(items, run=number, epoch=epoch, count=len(items), skipped=skipped, totals=totals)
                    del items
                    if self._wanted is not None:
                        return
        except _Gone:
            raise
        except Exception as error:  # noqa: BLE001  (raised in the trainer, where its turn comes)
            self._send(_portable(error), run=number, epoch=epoch, failed=True)

    def _send(self, item: Any, **header: Any) -> None:
        """Send when there is room, unless another pass is wanted meanwhile."""
        while self._sent >= self._work.prefetch or self._sender.connection.poll():
            self._hear()
            if self._wanted is not None:
                return
        try:
            self._sender.send(item, **header)
        except OSError as error:
            raise _Gone from error
        self._sent += 1

    def _hear(self) -> None:
        """Wait for the next word of the trainer."""
        try:
            what, *rest = self._sender.connection.recv()
        except (EOFError, OSError) as error:
            raise _Gone from error
        if what == "run":
            number, epoch, start = rest
            self._wanted = number, epoch, start
        else:
            count, unused = rest
            self._sent -= count
            for number in unused:
                self._sender.buffers.back(number)


def _portable(error: Exception) -> tuple[Exception, str]:
    """An error as it can be sent, with its traceback."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  (made here)
    except Exception:  # noqa: BLE001  (whatever an error's class does when it is pickled)
        return WorkerError(f"{type(error).__name__}: {error}"), text
    return error, text


def raised(failure: tuple[Exception, str]) -> Exception:
    """The error of a worker, with its traceback there as the cause."""
    error, text = failure
    error.__cause__ = _Remote(text)
    return error
