"""Locks between processes that die with their holder, on files that others may rename or remove meanwhile.

>>> fd = open_file("/ssd/cache/x.fill", os.O_RDWR | os.O_CREAT)
>>> if try_lock(fd, fcntl.LOCK_EX) and still_named("/ssd/cache/x.fill", fd):
...     ...                                        # this process alone has the file of that name

A lock (flock) belongs to what open() returned: threads that open a file each have their own, a forked child shares its
parent's.  So locks are always given up by `unlock`: closing alone does nothing while a child holds a copy.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from typing import Final

PATIENCE: Final = 10.0
"""Seconds to wait for a lock that is held for moments only; whoever holds it longer is stopped, or its disk hangs."""


def open_file(path: str, flags: int) -> int:
    """Open a file that is no link, and without waiting for the other end of a pipe."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def open_to_lock(path: str, flags: int = 0) -> int:
    """Open a file to lock it: for writing, which some network file systems need, or else for reading."""
    try:
        return open_file(path, os.O_RDWR | flags)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return open_file(path, os.O_RDONLY)


def try_lock(fd: int, kind: int) -> bool:
    """Take the lock if it is free now."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(fd: int, kind: int, patience: float = PATIENCE) -> None:
    """Take the lock; raises TimeoutError, which is an OSError, when it doesn't get free in time."""
    until = time.monotonic() + patience
    pause = 0.0002
    while not try_lock(fd, kind):
        if time.monotonic() > until:
            raise TimeoutError(errno.ETIMEDOUT, f"another process holds a lock for more than {patience:g} s")
        time.sleep(pause)
        pause = min(2 * pause, 0.005)


def unlock(fd: int) -> None:
    """Give the lock up."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def still_named(path: str, fd: int) -> bool:
    """Whether `path` is the name of the file that is open as `fd`."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
