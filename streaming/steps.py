"""The steps of a pass, in order, out of the units that one or more workers give.

>>> steps = Steps(source, left=100, counters=Counters())
>>> steps.ready(), next(steps)
(True, (1, {"jpg": tensor(...), ...}))

Worker w of n has the steps w, w + n, w + 2n, ...; a unit holds some of them, one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from .errors import PlanError
from .inprocess import InProcess
from .stats import Counters
from .workers import Workers


class Steps:
    """An iterator of (steps done, item); the item is None where a single sample was skipped."""

    def __init__(self, source: Workers | InProcess, *, left: int, counters: Counters) -> None:
        self._source = source
        self._left = left
        self._counters = counters
        self._done = 0
        self._items: list[Iterator[Any]] = [iter(())] * source.count
        self._held = [0] * source.count
        self._since = time.perf_counter()
        self._superseded = False

    def supersede(self) -> None:
        """The source has ended or gives another pass: what asks for more steps of this one gets an error."""
        self._superseded, self._left = True, 0

    def check(self) -> None:
        """Raise PlanError where this pass is not to be gone on with."""
        if self._superseded:
            text = "another iteration over this loader has begun, or it was closed"
            raise PlanError(text, hint="make a loader for each")

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> tuple[int, Any]:
        if self._done >= self._left:
            self.check()
            raise StopIteration
        worker = self._done % self._source.count
        if not self._held[worker]:
            self._take(worker)
        self._held[worker] -= 1
        self._done += 1
        item = next(self._items[worker])
        if not self._held[worker]:
            self._items[worker] = iter(())  # what gave the last item would keep it
        return self._done, item

    def ready(self) -> bool:
        """Whether there is a next step, and it need not be waited for."""
        worker = self._done % self._source.count
        return self._done < self._left and (self._held[worker] > 0 or self._source.ready(worker))

    def _take(self, worker: int) -> None:
        ready, start = self._source.ready(worker), time.perf_counter()
        header, items = self._source.take(worker)
        end = time.perf_counter()
        self._items[worker], self._held[worker] = iter(items), header["count"]
        self._counters.add("asked", 1)
        self._counters.add("ready", ready)
        self._counters.add("waited", end - start)
        self._counters.add("skipped", header["skipped"])
        self.passed()

    def passed(self) -> None:
        """Count the time since this was last called."""
        now = time.perf_counter()
        self._counters.add("seconds", now - self._since)
        self._since = now
