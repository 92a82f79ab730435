"""Reading in the trainer's own process, with the interface of the worker processes.

>>> here = InProcess(recipe, threads=4, continuous=False)
>>> here.begin(epoch=0, start=0)
>>> header, items = here.take(0)
>>> here.close()
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Any

from .assemble import Done
from .buffers import Buffers
from .errors import ShardError
from .reader import Over, Reader, Recipe
from .samples import Skips
from .stats import Counters


class InProcess:
    """One reader in this process.  Its threads and open shards end with a pass, unless passes are continuous."""

    count = 1
    copies = 0

    def __init__(self, recipe: Recipe, *, threads: int | None, continuous: bool) -> None:
        self._recipe = recipe
        self._threads = threads
        self._continuous = continuous
        self._counters = Counters()
        self._buffers = Buffers(keep=recipe.ahead_bytes)
        self._memory = recipe.memory(workers=1)
        self._reader: Reader | None = None
        self._work: Generator[Done | Over] | None = None
        self._skips = Skips(recipe.skip_limit)
        self._pass: tuple[int, int] | None = None
        self._ahead: tuple[int, int] | None = None
        """The pass that is begun already, while none is taken."""

    @property
    def totals(self) -> list[Mapping[str, float]]:
        """What has been done so far."""
        return [{**self._counters.totals(), "threads": self._recipe.thread_count(self._threads, workers=1)}]

    closed = False

    def begin(self, epoch: int, start: int) -> None:
        """The pass that is taken next."""
        self._skips = Skips(self._recipe.skip_limit)
        ahead, self._ahead = self._ahead, None
        self._pass = epoch, start
        if self._work is not None and ahead == self._pass:
            return
        self.close()
        self._reader = Reader(
            self._recipe,
            threads=self._threads,
            buffers=self._buffers,
            counters=self._counters,
            memory=self._memory,
        )
        self._work = self._reader.passes(self._recipe.passes(epoch, start, continuous=self._continuous))

    def take(self, worker: int) -> tuple[dict[str, Any], Iterable[Any]]:  # noqa: ARG002  (there is only one)
        """(header, items) of the next unit.  Raises what reading it raised."""
        work, place = self._work, self._pass
        if work is None or place is None:
            raise ShardError("take() before begin()")
        try:
            done = next(work)
            while isinstance(done, Over):
                done = next(work)
            self._skips.add(done.errors)
        except BaseException:
            self.close()
            raise
        items = self._recipe.signed(done, *place)
        return {"skipped": len(done.errors), "count": len(done.unit.steps)}, items

    def ready(self, worker: int) -> bool:  # noqa: ARG002  (there is only one)
        """Whether take() would not wait."""
        return self._reader is not None and self._reader.ready()

    def left(self) -> None:
        """The pass is not taken to its end."""
        self.close()

    def over(self) -> None:
        """The pass was taken to its end."""
        if self._pass is not None and self._continuous:
            self._ahead = self._pass[0] + 1, 0
        else:
            self.close()

    def close(self) -> None:
        """End the threads, and let go of open shards."""
        work, self._work = self._work, None
        if work is not None:
            work.close()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
