"""The tiers of one process: an entry is looked for on the disk, then in the shared tier, then fetched from its origin.

>>> with Tiers(Cache(disk="/ssd/cache")) as tiers:
...     loaded = tiers.load("3c6e0b8a9c15224a/...", size, fetch)
...     loaded.data, loaded.tier
"""

from __future__ import annotations

import mmap
import os
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from .config import Cache

if TYPE_CHECKING:
    from .disk import DiskTier
    from .shared import SharedTier

Tier = Literal["memory", "disk", "shared", "origin"]
PATIENCE: Final = 10.0
"""Seconds that a reader waits for another process of this machine to fetch what it wants too."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The bytes of an entry, where they were found, and whether they are a mapped file, which holds no memory."""

    data: memoryview
    tier: Tier
    mapped: bool = False


class Tiers:
    """What a Cache names, opened in this process when it is first used.

    Readers `enter` and `leave`.  Pickled and in forked children it starts anew.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = RLock()
        self._readers = 0
        self._disk: DiskTier | None = None
        self._shared: SharedTier | None = None
        self._used: set[str] = set()
        self._warned: set[str] = set()
        self._closing: Any = None
        self._before: dict[str, int] = {}
        """What tiers that were closed had counted."""

    def __getstate__(self) -> dict[str, Any]:
        return {"cache": self.cache}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["cache"])  # type: ignore[misc]

    def load(
        self,
        name: str,
        size: int,
        fetch: Callable[[], memoryview],
        *,
        label: str = "",
        spare: Callable[[str], bool] | None = None,
    ) -> Loaded:
        """The entry `name` ("group/entry") of `size` bytes, and kept where there is room; `fetch` has it from its
        origin, and what it raises comes through.  `label` says what the group is, for people.
        """
        tier: Tier = "origin"
        disk, shared = self._open(name.partition("/")[0], label)

        def make() -> memoryview:
            nonlocal tier
            found = None if shared is None else shared.get(name, size)
            if found is not None:
                tier = "shared"
                return found
            data = fetch()
            if shared is not None:
                shared.put(name, data)
            return data

        if disk is None:
            return Loaded(make(), tier)
        kept = disk.get(name, size)
        if kept is not None:
            return Loaded(kept, "disk", mapped=True)
        from .disk import NotWaited

        until = time.monotonic() + PATIENCE
        try:
            data, made = disk.fill(name, size, make, wanted=lambda: time.monotonic() < until, spare=spare)
        except NotWaited:
            return Loaded(make(), tier)  # whoever fetches it is stopped, or very slow
        return Loaded(data, tier if made else "disk", mapped=is_mapped(data))

    def stores(self, name: str, size: int) -> bool:
        """Whether an entry is on the disk, or would find room there."""
        disk, _ = self._open(name.partition("/")[0], "")
        return disk is not None and (disk.fits(size) or disk.get(name, size) is not None)

    def find(self, name: str, label: str = "") -> memoryview | None:
        """An entry of unknown size from the disk; None where it is not there."""
        disk, _ = self._open(name.partition("/")[0], label)
        return None if disk is None else disk.get(name)

    def keep(self, name: str, data: memoryview, label: str = "") -> memoryview:
        """Keep an entry on the disk, where there is one with room; the same bytes."""
        disk, _ = self._open(name.partition("/")[0], label)
        if disk is None:
            return data
        from .disk import NotWaited

        try:
            return disk.fill(name, len(data), lambda: data, wanted=lambda: False)[0]
        except NotWaited:
            return data

    def counters(self) -> Mapping[str, int]:
        """What the tiers counted, as disk_... and shared_..."""
        with self._lock:
            totals = dict(self._before)
            for prefix, tier in (("disk", self._disk), ("shared", self._shared)):
                for name, count in ({} if tier is None else tier.counters()).items():
                    totals[f"{prefix}_{name}"] = totals.get(f"{prefix}_{name}", 0) + count
            return totals

    def _open(self, group: str, label: str) -> tuple[DiskTier | None, SharedTier | None]:
        self._notice_fork()
        with self._lock:
            cache = self.cache
            if self._disk is None and cache.disk is not None:
                from .disk import DiskTier

                if self._closing is not None:
                    self._closing.detach()
                self._disk = DiskTier(cache.disk, _limit(cache.disk_bytes), warned=self._warned)
                self._closing = weakref.finalize(self, self._disk.close)
            if self._shared is None and cache.shared is not None:
                from .shared import open_shared

                limit = _limit(cache.shared_bytes)
                self._shared = open_shared(os.fspath(cache.shared), limit, cache.shared_options)
            if group not in self._used:
                self._used.add(group)
                for tier in (self._disk, self._shared):
                    if tier is not None:
                        tier.use(group, label)
            return self._disk, self._shared

    def enter(self) -> Self:
        """One more reader uses the tiers."""
        self._notice_fork()
        with self._lock:
            self._readers += 1
        return self

    def _notice_fork(self) -> None:
        """Start anew in a forked child: a thread of the parent may have held the lock."""
        if self._pid != os.getpid():
            self._start()

    def leave(self) -> None:
        """One reader less; behind the last one no thread and no connection is left."""
        with self._lock:
            self._readers -= 1
            shared = None if self._readers else self._shared
        if shared is not None:
            shared.rest()

    def close(self) -> None:
        """Let go of the disk's locks too, unless a reader is left.  Opened again when it is used again."""
        with self._lock:
            if self._readers or self._pid != os.getpid():
                return
            self._before = dict(self.counters())
            disk, self._disk = self._disk, None
            shared, self._shared = self._shared, None
            self._used = set()
        if disk is not None:
            disk.close()
        if shared is not None:
            shared.close()

    def __enter__(self) -> Self:
        return self.enter()

    def __exit__(self, *exc: object) -> None:
        self.leave()


def is_mapped(data: memoryview) -> bool:
    """Whether the bytes are those of a mapped file."""
    return isinstance(data.obj, mmap.mmap)


def _limit(size: Any) -> int | None:
    return None if size is None else int(size)
