"""Chunks in memory: those that are being loaded ahead, those whose samples are being taken, those kept for later.

>>> memory = Memory(bound=1 << 30)
>>> memory.ask((0, 3), 4 << 20, samples=170, load=load)             # begins to load; waits while there is no room
>>> memory.take((0, 3), 4 << 20, samples=170, taken=5, load=load).data

A chunk is let go when all its samples were taken.  Where there is no room, one that is not asked for goes first, the
one taken least lately: it is loaded again if samples of it are still wanted.  Chunks that are mapped files hold no
memory; there is a bound on their number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Condition, RLock
from typing import Final, TypeVar

from shardwriter.errors import StoreError

from ..own_threads import OURS, may_wait
from .tiers import Loaded

LOADS: Final = 16
"""Chunks that are loaded at a time."""
MAPS: Final = 256
"""Chunk files that are mapped at a time: each takes a descriptor, of which a process often has 1,024."""

T = TypeVar("T")
CLOSED: Final = "the reader was closed"

Key = tuple[int, int]
"""Shard and chunk."""


@dataclass(slots=True)
class _Entry:
    size: int
    left: int
    """Samples that are not taken yet."""
    asked: int = 0
    """How many askers have not taken yet."""
    future: Future[Loaded] = field(default_factory=Future)
    mapped: bool = False
    kept: bool = False
    """All were taken; it stays for the next epoch."""
    keep: Callable[[], bool] = lambda: False
    """Whether that is wanted."""

    @property
    def held(self) -> int:
        """Bytes of memory."""
        return 0 if self.mapped else self.size


class Memory:
    """The chunks of one reader, of `bound` bytes together; up to `keep` of them stay when all samples were taken."""

    def __init__(self, bound: int, keep: int = 0) -> None:
        self._bound = bound
        self._keep = keep
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._held = self._kept = 0
        self._maps = 0
        self._changed = Condition(RLock())
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    def ask(self, key: Key, size: int, samples: int, load: Callable[[], Loaded]) -> None:
        """Begin to load a chunk, unless it is there; wait for room first.  Whoever asks takes it later."""
        with self._changed:
            while key not in self._entries and not self._closed and not self._room(size):
                self._changed.wait()
            if not self._closed:
                self._entry(key, size, samples, load).asked += 1

    def holds(self, key: Key) -> bool:
        """Whether a chunk is there, or being loaded."""
        return key in self._entries

    def take(
        self,
        key: Key,
        size: int,
        samples: int,
        taken: int,
        load: Callable[[], Loaded],
        *,
        keep: Callable[[], bool] = lambda: False,
    ) -> Loaded:
        """The chunk, of which `taken` samples are taken now; loaded, where nobody asked for it.

        `keep` says whether it is wanted again when all its samples are taken.  Raises what loading it raised.
        """
        with self._changed:
            if self._closed:
                raise StoreError(CLOSED)
            entry = self._entry(key, size, samples, load)
        try:
            loaded = entry.future.result()
        except BaseException:
            with self._changed:
                if self._entries.get(key) is entry:
                    self._drop(key)
            raise
        with self._changed:
            before, entry.keep = entry.kept, keep
            entry.asked = max(0, entry.asked - 1)
            entry.left -= taken
            if self._entries.get(key) is entry:
                self._entries.move_to_end(key)
                if entry.left <= 0:
                    entry.left += samples  # asked for again, by the next epoch
                    if entry.asked == 0:
                        self._finish(key, entry)
            self._changed.notify_all()
        return replace(loaded, tier="memory") if before else loaded

    def _entry(self, key: Key, size: int, samples: int, load: Callable[[], Loaded]) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(size, samples)
            self._held += size
            if self._pool is None:
                self._pool = ThreadPoolExecutor(LOADS, thread_name_prefix=f"{OURS}load")
            self._pool.submit(self._load, key, entry, load)
        return entry

    def _load(self, key: Key, entry: _Entry, load: Callable[[], Loaded]) -> None:
        try:
            loaded = load()
        except BaseException as error:  # noqa: BLE001  (raised where the chunk is taken)
            with self._changed:
                settle(entry.future, error)
            return
        with self._changed:
            settle(entry.future, loaded)
            if loaded.mapped and self._entries.get(key) is entry:
                self._held -= entry.size
                self._maps += 1
                entry.mapped = True
                self._trim()
            self._changed.notify_all()

    def _room(self, size: int) -> bool:
        """Whether a chunk of `size` bytes may be loaded, others let go for it where that helps."""
        if self._held + size <= self._bound or not self._held:
            return True
        for key, entry in list(self._entries.items()):
            if entry.asked == 0 and not entry.kept and not entry.mapped and entry.future.done():
                self._drop(key)
                if self._held + size <= self._bound:
                    return True
        return False

    def _trim(self) -> None:
        for key, entry in list(self._entries.items()):
            if self._maps <= MAPS:
                return
            if entry.asked == 0 and entry.mapped:
                self._drop(key)

    def _finish(self, key: Key, entry: _Entry) -> None:
        """All samples of a chunk were taken."""
        others = self._kept - (entry.size if entry.kept else 0)
        failed = entry.future.exception() is not None
        if not failed and not entry.mapped and others + entry.size <= self._keep and entry.keep():
            self._kept = others + entry.size
            entry.kept = True
        else:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        entry = self._entries.pop(key)
        self._held -= entry.held
        self._kept -= entry.size if entry.kept else 0
        self._maps -= entry.mapped
        self._changed.notify_all()

    def begin(self) -> None:
        """Load again, behind rest."""
        self._closed = False

    def rest(self) -> None:
        """Between passes: end the threads, and let go of all but what is kept.  Whoever waits for a chunk gets a
        StoreError, and nothing is loaded until `begin`.
        """
        with self._changed:
            self._closed = True
            pool, self._pool = self._pool, None
            for key, entry in list(self._entries.items()):
                entry.asked = 0
                if settle(entry.future, StoreError(CLOSED)):
                    self._drop(key)
                elif not entry.kept:  # samples that are dropped at the end of an epoch are never taken
                    self._finish(key, entry)
            self._changed.notify_all()
        if pool is not None:
            pool.shutdown(wait=may_wait(), cancel_futures=True)


def settle(future: Future[T], outcome: T | BaseException) -> bool:
    """Set the outcome, unless there is one; whether this did."""
    if future.done():
        return False
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
    return True
