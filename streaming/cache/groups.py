"""Which groups of a cache folder are in use: who reads a group holds a shared lock on its file `.use`.

>>> groups = Groups("/ssd/cache", budget)
>>> groups.use("3c6e0b8a", "s3://bucket/cc3m")             # until close(), no process evicts it
'/ssd/cache/3c6e0b8a'
>>> with unused("/ssd/cache/9c15224a") as alone:
...     alone                                              # True: nobody uses that one, and nobody can now
True
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from shardwriter.store.urls import redact

from . import layout
from .budget import Budget
from .locks import lock, open_to_lock, still_named, try_lock, unlock

_TOUCH: Final = 300.0
"""Seconds after which the time of last use is written again."""
_LABEL: Final = 1000
"""Longest label, in bytes."""


@dataclass(slots=True)
class _Use:
    """The open and locked file `.use` of a group, and what was last written to it, and when."""

    fd: int
    label: str = ""
    touched: float = 0.0


class Groups:
    """The groups that this process uses; safe to share between threads."""

    def __init__(self, folder: str, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._budget = budget
        self._clock = clock
        self._lock = threading.Lock()
        self._used: dict[str, _Use] = {}
        self._closed = False

    def use(self, group: str, label: str = "") -> str:
        """Use a group until `close`, and make its folder where there is none; the path of that.  Raises OSError."""
        path = os.path.join(self._folder, group)
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, "the cache is closed")
            use = self._used.get(group)
            if use is None:
                use = self._used[group] = _Use(self._enter(path))
            elif use.label == label and self._clock() - use.touched < _TOUCH:
                return path
            use.label, use.touched = label, self._clock()
        with suppress(OSError):  # it only says when, and what, and may belong to another user
            if label:
                self._write(layout.use_path(path), label)
            os.utime(layout.use_path(path))
        return path

    def close(self) -> None:
        """Use none any more."""
        with self._lock:
            self._closed = True
            used, self._used = self._used, {}
        for use in used.values():
            unlock(use.fd)
            os.close(use.fd)

    def _enter(self, path: str) -> int:
        """The file `.use`, opened and locked, though others may be removing the folder just now."""
        use = layout.use_path(path)
        while True:
            with suppress(FileExistsError):
                os.mkdir(path)
            try:
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, "not a folder of the cache", path)
                fd = open_to_lock(use, os.O_CREAT)
            except FileNotFoundError:
                continue
            try:
                lock(fd, fcntl.LOCK_SH)
                if still_named(use, fd):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def _write(self, path: str, label: str) -> None:
        """Say what the group holds, once, where there is room for that."""
        fd = open_to_lock(path)
        try:
            if os.fstat(fd).st_size == 0:
                text = f"{redact(label)}\n".encode()[:_LABEL]
                if self._budget.reserve(fd, len(text)):
                    os.pwrite(fd, text, 0)
        finally:
            os.close(fd)


@contextmanager
def unused(path: str) -> Iterator[bool]:
    """Whether no process uses the group with this folder; if so, none can begin to while the block runs."""
    use = layout.use_path(path)
    try:
        fd = open_to_lock(use)
    except OSError:
        yield False
        return
    try:
        alone = False
        with suppress(OSError):
            alone = try_lock(fd, fcntl.LOCK_EX) and still_named(use, fd)
        try:
            yield alone
        finally:
            unlock(fd)
    finally:
        os.close(fd)


def remove_empty(path: str, budget: Budget) -> None:
    """Remove the folder of a group without entries; call it within `unused`.  What is not the cache's own stays."""
    if not any(file.name != layout.USE for file in layout.files(path)):
        budget.remove(layout.use_path(path))
        with suppress(OSError):
            os.rmdir(path)
