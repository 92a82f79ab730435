"""Entries of a cache folder: read by memory map, and made by one process at a time.

>>> find(budget, "/ssd/cache/3c6e0b8a/000017", 4 << 20) is None
True
>>> claim = Claim.take(budget, "/ssd/cache/3c6e0b8a/000017")      # None while another process makes it
>>> budget.reserve(claim.fd, (4 << 20) + FOOTER_BYTES)
True
>>> mapped = claim.store(data)
>>> claim.drop()
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import time
from contextlib import suppress
from typing import Self

from .budget import Budget
from .layout import CHUNK, FILL
from .locks import open_file, still_named, try_lock, unlock
from .sealed import seal, unseal


class Damaged(Exception):
    """An entry was not whole and has been removed."""


def find(budget: Budget, stem: str, size: int | None = None) -> memoryview | None:
    """The data of an entry (`stem`: its path without ending) by memory map; None where it is not there.

    Raises Damaged after removing an entry that is not whole, or whose data has not `size` bytes; OSError.
    """
    path = stem + CHUNK
    try:
        fd = open_file(path, os.O_RDONLY)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        old = _may_be_lost(status.st_mtime)
        data = None
        if status.st_size:
            mapped = mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ)
            mapped.madvise(mmap.MADV_WILLNEED)
            data = unseal(mapped, size=size, verify=old)
        if data is None:
            with suppress(OSError):
                budget.remove(path, fd)
            raise Damaged
        if old:
            with suppress(OSError):  # so that it is not verified again before the next start of the machine
                os.utime(fd)
        return data
    finally:
        os.close(fd)


def _may_be_lost(written: float) -> bool:
    """Whether a file of that time may have lost its content in a power cut, though not its name and length."""
    now = time.time()
    return not now - time.clock_gettime(time.CLOCK_BOOTTIME) <= written <= now


class Claim:
    """The right to make one entry: a temporary file and its lock, which dies with its holder."""

    def __init__(self, budget: Budget, stem: str, fd: int) -> None:
        self.fd = fd
        self._budget = budget
        self._stem = stem

    @classmethod
    def take(cls, budget: Budget, stem: str) -> Self | None:
        """The claim to make an entry, or None while another thread or process has it.  Raises OSError."""
        temporary = stem + FILL
        while True:
            fd = open_file(temporary, os.O_RDWR | os.O_CREAT)
            try:
                if not try_lock(fd, fcntl.LOCK_EX):
                    os.close(fd)
                    return None
                # Between open and lock it may have been finished, which is a rename, or removed.
                if still_named(temporary, fd):
                    if not os.fstat(fd).st_size:
                        return cls(budget, stem, fd)
                    budget.remove(temporary, fd)  # whoever wrote it was killed
                unlock(fd)
            except OSError:
                os.close(fd)
                raise
            os.close(fd)

    def store(self, data: memoryview) -> memoryview:
        """Write data and footer, give the file its name, and map it.  Raises OSError."""
        size = _write(self.fd, data, 0)
        size += _write(self.fd, memoryview(seal(data)), size)
        os.close(os.dup(self.fd))  # network file systems say at a close what they could not write
        self._budget.publish(self._stem + FILL, self._stem + CHUNK, self.fd)
        return memoryview(mmap.mmap(self.fd, size, access=mmap.ACCESS_READ))[: len(data)]

    def drop(self) -> None:
        """Give the claim up, and remove its file if the entry was not finished."""
        temporary = self._stem + FILL
        try:
            self._budget.remove(temporary, self.fd)
        except OSError:
            with suppress(OSError):  # the account is closed or fails, and gets set right later
                if still_named(temporary, self.fd):
                    os.unlink(temporary)
        with suppress(OSError):
            unlock(self.fd)
        os.close(self.fd)


def _write(fd: int, data: memoryview, offset: int) -> int:
    """Write all of data at the offset; its length."""
    left = data
    while left:
        done = os.pwrite(fd, left, offset)
        left, offset = left[done:], offset + done
    return len(data)
