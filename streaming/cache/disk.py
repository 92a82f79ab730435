"""The disk tier of the cache: a folder that all threads, processes and jobs of a machine share (LAYOUT.md).

>>> tier = DiskTier("/ssd/cache", limit=500 * 10**9)
>>> tier.use("3c6e0b8a", label="s3://bucket/cc3m")
>>> tier.get("3c6e0b8a/000017", size=4 << 20) is None
True
>>> data, made = tier.fill("3c6e0b8a/000017", 4 << 20, fetch)      # fetch() is called by one reader of the machine
>>> tier.close()
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Self

from shardwriter.errors import StoreError
from shardwriter.format import Buffer

from . import layout
from .entries import Claim, Damaged, find
from .opened import OpenFolder
from .room import Spare
from .sealed import FOOTER_BYTES
from .tally import Tally

log = logging.getLogger("shardstream")

PAUSE: Final = 60.0
"""Seconds without another try after the disk failed."""
KINDS: Final = ("hits", "misses", "filled", "joined", "refused", "failed", "damaged", "evicted")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNWRITABLE: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


class NotWaited(Exception):
    """fill() stopped waiting for another reader that makes the entry; raised by it alone, and holds nothing."""


class DiskTier:
    """Entries on a disk, each named "group/entry": immutable bytes of one dataset, made once and read by memory map.

    Opening it raises StoreError for a folder that holds other things than a cache.  Whatever else is wrong with the
    disk never raises: `get` finds nothing, `fill` gives what was made, it is counted, and logged once of each kind.

    limit           most bytes in the folder, over all processes, footers and temporary files included; None: any
    warned          the kinds of fault that have been logged; pass one set to tiers that follow one another
    recount_every   seconds between counts of what is there, when the folder looks full
    clock           seconds, for the pauses after faults

    Safe to share between threads.  It holds locks of its process, so each process makes its own: a forked child can't
    use one that it inherited, and closing it there does nothing.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        limit: int | None = None,
        *,
        warned: set[str] | None = None,
        recount_every: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = os.path.abspath(folder)
        self.limit = limit
        self._pid = os.getpid()
        self._recount_every = recount_every
        self._clock = clock
        self._warned = set() if warned is None else warned
        self._tally = Tally(KINDS)
        self._lock = threading.Lock()
        self._closed = False
        self._opened: OpenFolder | None = None
        self._labels: dict[str, str] = {}
        self._open_at = self._fill_at = 0.0
        """When opening, and filling, may be tried again."""
        self._folder()

    def use(self, group: str, label: str = "") -> None:
        """Keep others from evicting this group until `close`; `label` says what it is, as a URL, for people."""
        layout.split(f"{group}/-")
        self._labels[group] = label
        if (opened := self._folder()) is not None:
            with self._faults(opened):
                self._use(opened, group)

    def get(self, name: str, size: int | None = None) -> memoryview | None:
        """The data of an entry, as a mapped file, or None where it is not there, not whole, or not `size` bytes long.

        Each view holds an open file until it is let go.
        """
        group, entry = layout.split(name)
        found = None
        if (opened := self._folder()) is not None:
            with self._faults(opened):
                found = self._find(opened, os.path.join(self._use(opened, group), entry), size)
        self._tally.add("misses" if found is None else "hits", (size or 0) if found is None else len(found))
        return found

    def fill(
        self,
        name: str,
        size: int,
        make: Callable[[], Buffer],
        *,
        wanted: Callable[[], bool] = lambda: True,
        spare: Spare | None = None,
    ) -> tuple[memoryview, bool]:
        """The data of an entry of `size` bytes that `get` did not find, and whether this call made it.

        Of all readers of the machine that ask at once, one calls `make` and stores what it gives, the others wait; if
        it fails or is killed, the next one makes it.  Without room, each makes it for itself and nothing is stored.
        What `make` raises comes through.  Raises NotWaited when another reader makes it and `wanted()` is False, and
        ValueError when `make` gives another number of bytes.

        `spare(entry)` says which entries of the group may go for this one; pass the same function as long as its
        answers are the same, so that it need not be asked again and again.
        """
        group, entry = layout.split(name)
        claim = self._claim(group, entry, size, wanted, spare)
        if isinstance(claim, memoryview):
            self._tally.add("joined", len(claim))
            return claim, False
        try:
            data = memoryview(make()).cast("B")
            if len(data) != size:
                raise ValueError(f"{name} was made with {len(data)} bytes in place of {size}")
            return (data if claim is None else self._store(claim, data)), True
        finally:
            if claim is not None:
                claim.drop()

    def fits(self, size: int) -> bool:
        """Whether an entry of `size` bytes would find room now, with nothing evicted for it."""
        opened = self._folder()
        if opened is None or self._clock() < self._fill_at:
            return False
        with self._faults(opened):
            return not opened.budget.missing(size + FOOTER_BYTES)
        return False

    def counters(self) -> dict[str, int]:
        """Entries by what came of them, and their bytes as `..._bytes`.

        hits and misses of `get`; of `fill`: filled (stored), joined (another reader made it), refused (no room) and
        failed (the disk did, or pauses after it did); damaged and evicted are what was removed.  Faults of reading
        are misses, and failed too.
        """
        return self._tally.totals()

    def close(self) -> None:
        """Give up all locks and files, but not the views that are held; then nothing is found or stored any more."""
        if os.getpid() != self._pid:
            return  # the locks are the parent's
        self._closed = True
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _folder(self) -> OpenFolder | None:
        """The open folder; None while it can't be opened, and once this is closed."""
        opened = self._opened
        if opened is not None or self._closed or self._clock() < self._open_at:
            return opened
        with self._lock:
            if self._opened is not None or self._closed or self._clock() < self._open_at:
                return self._opened
            first, self._open_at = not self._open_at, self._clock() + PAUSE
            try:
                self._opened = OpenFolder(
                    self.folder,
                    self.limit,
                    evicted=lambda size: self._tally.add("evicted", size),
                    recount_every=self._recount_every,
                    clock=self._clock,
                )
            except OSError as error:
                if isinstance(error, StoreError) and first:
                    raise
                self._fault(error)
            return self._opened

    def _use(self, opened: OpenFolder, group: str) -> str:
        return opened.groups.use(group, self._labels.get(group, ""))

    def _find(self, opened: OpenFolder, stem: str, size: int | None) -> memoryview | None:
        try:
            return find(opened.budget, stem, size)
        except Damaged:
            self._tally.add("damaged", size or 0)
            return None

    def _claim(
        self, group: str, entry: str, size: int, wanted: Callable[[], bool], spare: Spare | None
    ) -> Claim | memoryview | None:
        """The right to make and store an entry; the entry, if another reader made it; None if it can't be stored."""
        opened = self._folder()
        if opened is None or self._clock() < self._fill_at:
            self._tally.add("failed", size)
            return None
        with self._faults(opened, size):
            path = self._use(opened, group)
            claim = self._wait(opened, os.path.join(path, entry), size, wanted)
            if isinstance(claim, memoryview):
                return claim
            try:
                if self._reserve(opened, claim, size + FOOTER_BYTES, path, spare):
                    return claim
            except BaseException:
                claim.drop()
                raise
            claim.drop()
            self._tally.add("refused", size)
        return None

    def _wait(self, opened: OpenFolder, stem: str, size: int, wanted: Callable[[], bool]) -> Claim | memoryview:
        """The claim to make an entry, or the entry once it is there."""
        pause = 0.001
        while True:
            claim = Claim.take(opened.budget, stem)
            try:
                found = self._find(opened, stem, size)
            except BaseException:
                if claim is not None:
                    claim.drop()
                raise
            if claim is not None and found is None:
                return claim
            if claim is not None:
                claim.drop()
            if found is not None:
                return found
            if not wanted():
                raise NotWaited
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def _reserve(self, opened: OpenFolder, claim: Claim, size: int, group: str, spare: Spare | None) -> bool:
        if self.limit is not None and size > self.limit:
            self._warn("small", f"the limit of {self.limit} bytes is less than one entry of {size}")
            return False
        for _ in range(10):  # others may take the room that was made
            if opened.budget.reserve(claim.fd, size):
                return True
            if not opened.room.make(size, group, spare):
                return False
        return False

    def _store(self, claim: Claim, data: memoryview) -> memoryview:
        """Store what was made; the mapped file, or the data itself where the disk fails."""
        try:
            stored = claim.store(data)
        except OSError as error:
            self._tally.add("failed", len(data))
            self._fault(error)
            self._fill_at = self._clock() + PAUSE
            return data
        self._tally.add("filled", len(data))
        return stored

    @contextmanager
    def _faults(self, opened: OpenFolder, filling: int | None = None) -> Iterator[None]:
        """End the block where the disk fails.  `filling`: bytes that are not stored for it, nor others for a while."""
        try:
            yield
        except OSError as error:
            self._tally.add("failed", filling or 0)
            self._fault(error)
            if filling is not None:
                self._fill_at = self._clock() + PAUSE
            if error.errno in _GONE:
                self._forget(opened)

    def _forget(self, opened: OpenFolder) -> None:
        """Close a folder that was removed or replaced; it is opened anew later."""
        with self._lock:
            if self._opened is not opened:
                return
            self._opened, self._open_at = None, self._clock() + PAUSE
        opened.close()

    def _fault(self, error: OSError) -> None:
        if error.errno == errno.EBADF and (self._closed or self._opened is None):
            return  # another thread closed it meanwhile
        known = {"full": _FULL, "unwritable": _UNWRITABLE, "gone": _GONE}
        kind = next((name for name, numbers in known.items() if error.errno in numbers), "failing")
        self._warn(kind, str(error) if isinstance(error, StoreError) else error.strerror or str(error))

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning(
                "cache folder %s: %s; reading goes on without, and the folder is tried again", self.folder, text
            )
