"""Room in a cache folder that is full: what may go, and in which order.

>>> room = Room("/ssd/cache", budget)
>>> room.make(4 << 20, "/ssd/cache/3c6e0b8a", spare)
True

First groups go that no process uses, the least recently used one first, then entries of the own group of which the
caller says that they are spare.  Nothing else does, and no more than is needed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from typing import Final

from . import layout
from .budget import Budget
from .groups import remove_empty, unused

Spare = Callable[[str], bool]

_REST: Final = 50
"""After a search that found nothing, this many times its duration pass before the next."""


class Room:
    """Makes room in one cache folder; safe to share between threads.

    `evicted(bytes)` is called for each entry that goes.  `recount_every`: seconds between counts of what is there.
    """

    def __init__(
        self,
        folder: str,
        budget: Budget,
        *,
        evicted: Callable[[int], None] = lambda _: None,
        recount_every: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._budget = budget
        self._evicted = evicted
        self._every = recount_every
        self._clock = clock
        self._lock = threading.Lock()
        self._rests: dict[str, tuple[float, Spare | None]] = {}
        """Until when a group's search rests, and which `spare` it was for."""

    def make(self, size: int, group: str, spare: Spare | None) -> bool:
        """Whether `size` bytes fit now, after what may go has gone as far as needed.

        With room for one and two that ask, the second finds none: `reserve` has the last word.  Raises OSError.
        """
        if not self._budget.missing(size):
            return True
        with self._lock:
            if self._budget.recount(self._every) and not self._budget.missing(size):
                return True
            until, before = self._rests.get(group, (0.0, None))
            if self._clock() < until and spare == before:
                return not self._budget.missing(size)
            start = self._clock()
            with closing(self._evict(group, spare)) as evicting:
                while self._budget.missing(size):
                    if not next(evicting, 0):
                        now = self._clock()
                        self._rests[group] = now + _REST * (now - start), spare
                        return False
            return True

    def _evict(self, group: str, spare: Spare | None) -> Generator[int, None, None]:
        """Remove one entry after the other, and give the bytes of each."""
        for path in self._by_last_use():
            with unused(path) as alone:
                if alone:
                    try:
                        yield from self._remove(path, lambda _: True)
                    finally:
                        remove_empty(path, self._budget)
        if spare is not None:
            yield from self._remove(group, spare)

    def _remove(self, group: str, spare: Spare) -> Iterator[int]:
        for file in layout.files(group):
            temporary = file.name.endswith(layout.FILL)
            if temporary:
                self._budget.remove_stale(file.path)
            if file.name.endswith(layout.CHUNK) and spare(file.name.removesuffix(layout.CHUNK)):
                size = self._budget.remove(file.path)
                if size:
                    self._evicted(size)
                    yield size

    def _by_last_use(self) -> list[str]:
        times = []
        for path in layout.groups(self._folder):
            with suppress(OSError):
                times.append((os.lstat(layout.use_path(path)).st_mtime, path))
        return [path for _, path in sorted(times)]
