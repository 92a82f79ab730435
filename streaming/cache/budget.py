"""How many bytes lie in a cache folder, over all processes, and the changes that move that number.

>>> budget = Budget("/ssd/cache", limit=500 * 10**9)
>>> budget.reserve(fd, 4 << 20)              # the temporary file open as fd now has that size, or there is no room
True
>>> budget.publish("x.fill", "x.chunk", fd)
>>> budget.missing(4 << 20)                  # bytes to remove before as many fit
0

The sum is kept in a small file, the ledger.  Each change of the folder is made while the ledger is locked, and in an
order in which a process that is killed leaves a sum that is too large, never one too small.  `recount` sets it right.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from . import layout
from .locks import lock, open_file, still_named, try_lock, unlock

_MAGIC: Final = b"SSXLEDG1"
_LEDGER: Final = struct.Struct("<8sQQd")
_UNKNOWN: Final = 1 << 62
"""The sum of a ledger that is new or damaged: more than any limit."""


@dataclass(slots=True)
class Account:
    """What the ledger says."""

    used: int = _UNKNOWN
    """Bytes of all files; at least as many as there are."""
    moved: int = 0
    """All bytes that ever came under a new name: what a walk through the folder may have missed since it began."""
    counted: float = 0.0
    """When a process last began to count, in seconds since 1970."""


class Budget:
    """The bytes of one cache folder, and the most that this process lets be in it (None: any number).

    Safe to share between threads.  All methods raise OSError: what the disk says, TimeoutError where another process
    keeps the ledger locked, EBADF after `close`.
    """

    def __init__(self, folder: str, limit: int | None) -> None:
        self.folder = folder
        self.limit = limit
        self._thread = threading.Lock()
        path = os.path.join(folder, layout.LEDGER)
        self.writable = True
        """Whether anything can be stored; what is there can be read nevertheless."""
        try:
            self._fd = open_file(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            self._fd, self.writable = -1, False

    def close(self) -> None:
        """Let go of the ledger."""
        with self._thread:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def used(self) -> int:
        """Bytes of all files, as the ledger has it."""
        with self._held() as account:
            return account.used

    def missing(self, size: int) -> int:
        """How many bytes must go before `size` more fit; 0 where they fit now."""
        return 0 if self.limit is None else max(0, self.used() + size - self.limit)

    def reserve(self, fd: int, size: int) -> bool:
        """Take `size` bytes for the empty file that is open as `fd`, and give it that size; False without room."""
        with self._held() as account:
            if self.limit is not None and account.used + size > self.limit:
                return False
            self._grow(account, size)
            try:
                os.ftruncate(fd, size)
            except OSError:
                account.used -= size
                raise
        return True

    def publish(self, temporary: str, path: str, fd: int) -> None:
        """Give the finished file that is open as `fd` its name."""
        with self._held() as account:
            if not still_named(temporary, fd):
                raise FileNotFoundError(errno.ENOENT, "the temporary file was removed", temporary)
            replaced = layout.size_of(path)
            self._grow(account, 0, os.fstat(fd).st_size)
            os.rename(temporary, path)
            account.used -= min(replaced, account.used)

    def remove(self, path: str, fd: int | None = None) -> int:
        """Remove a file, with `fd` only if that is still what `path` names; its bytes, or 0 where it is not there."""
        with self._held() as account:
            if fd is not None and not still_named(path, fd):
                return 0
            size = layout.size_of(path)
            try:
                os.unlink(path)
            except FileNotFoundError:
                return 0
            account.used -= min(size, account.used)
            return size

    def recount(self, every: float, *, alone: bool = False) -> bool:
        """Count what is there and remove temporary files that nobody writes, unless a process did so less than
        `every` seconds ago; `alone`: no other process uses the folder, so do it anyhow.  Returns whether it was done.
        """
        with self._held() as account:
            if not alone and account.used < _UNKNOWN // 2 and abs(time.time() - account.counted) < every:
                return False
            account.counted = time.time()
            before = account.moved
        found = self._walk()
        with self._held() as account:
            # Others go on meanwhile.  What got a name since may be counted or not, so all of it is added.
            moved = account.moved - before
            account.used = found if alone and not moved else min(account.used, found + moved)
        return True

    def _walk(self) -> int:
        found = sum(layout.size_of(os.path.join(self.folder, name)) for name in (layout.MARKER, layout.LEDGER))
        for group in layout.groups(self.folder):
            for file in layout.files(group):
                if not file.name.endswith(layout.FILL) or not self.remove_stale(file.path):
                    found += file.size
        return found

    def remove_stale(self, path: str) -> bool:
        """Remove a temporary file if nobody writes it."""
        try:
            fd = open_file(path, os.O_RDWR)
        except OSError:
            return False
        try:
            if not try_lock(fd, fcntl.LOCK_EX):
                return False
            try:
                self.remove(path, fd)
            finally:
                unlock(fd)
            return True
        finally:
            os.close(fd)

    def _grow(self, account: Account, size: int, moved: int = 0) -> None:
        """Write down what comes before it does."""
        account.used += size
        account.moved += size + moved
        self._write(account)

    @contextmanager
    def _held(self) -> Iterator[Account]:
        """The account, which no other thread or process changes meanwhile; what the block changes is written down."""
        with self._thread:
            if self._fd < 0:
                closed = (
                    (errno.EBADF, "the cache is closed") if self.writable else (errno.EROFS, "no permission to write")
                )
                raise OSError(*closed)
            lock(self._fd, fcntl.LOCK_EX)
            try:
                account = self._read()
                before = Account(account.used, account.moved, account.counted)
                try:
                    yield account
                finally:
                    if account != before:
                        self._write(account)
            finally:
                unlock(self._fd)

    def _read(self) -> Account:
        found = os.pread(self._fd, _LEDGER.size, 0)
        if len(found) != _LEDGER.size or not found.startswith(_MAGIC):
            return Account()
        return Account(*_LEDGER.unpack(found)[1:])

    def _write(self, account: Account) -> None:
        os.pwrite(self._fd, _LEDGER.pack(_MAGIC, account.used, account.moved, account.counted), 0)
