"""Asking for bytes before they are wanted, in the order of the plan.

>>> ahead = Ahead(fetcher, depth=5_000)
>>> for item in ahead.through(items, refs=lambda item: item.refs):  # the items, while what later ones need is loading
...     ...
>>> ahead.close()

Items are taken from their source up to `depth` samples before they are given, a few more each time, so that the first
is given at once.  What they need is asked for on a thread of its own, which waits where there is no room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Final, Protocol, TypeVar

from .own_threads import OURS, may_wait
from .plan import SampleRefs

T = TypeVar("T")
MORE: Final = 4
"""How many more items are looked at for each that is given, until there are enough."""


class Asked(Protocol):
    """What is asked; a Fetcher."""

    def prepare(self, refs: SampleRefs) -> None:
        """Begin to open what holds the samples; does not wait."""

    def ask(self, refs: SampleRefs) -> None:
        """Begin to load the samples; waits for room."""


class Ahead:
    """Looks `depth` samples ahead.  Close it behind what it asks: that ends the wait for room."""

    def __init__(self, asked: Asked, depth: int) -> None:
        self._asked = asked
        self._depth = depth
        self._queue: SimpleQueue[SampleRefs | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=f"{OURS}ahead", daemon=True)
        self._thread.start()

    def through(self, items: Iterable[T], refs: Callable[[T], SampleRefs | None]) -> Iterator[T]:
        """The items; `refs` says which samples one needs, if any."""
        waiting: deque[tuple[T, int]] = deque()
        samples, most = 0, 0
        for item in items:
            needed = refs(item)
            if needed is not None:
                self._asked.prepare(needed)
                self._queue.put(needed)
            waiting.append((item, 0 if needed is None else len(needed)))
            samples += waiting[-1][1]
            while waiting and (samples > self._depth or len(waiting) > most):
                item, size = waiting.popleft()
                samples, most = samples - size, most + MORE
                yield item
        yield from (item for item, _ in waiting)

    def _run(self) -> None:
        while (refs := self._queue.get()) is not None:
            self._asked.ask(refs)

    def close(self) -> None:
        """End the thread; what it asks must not wait any more."""
        self._queue.put(None)
        if may_wait():
            self._thread.join()
