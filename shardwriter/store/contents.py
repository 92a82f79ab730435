"""A whole object as one mapped buffer."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from ..errors import StoreError
from .base import PART, Store, check_name

Read = Callable[[int, int], memoryview]
IN_FLIGHT: Final = 4
"""Requests at a time; with parts of 8 MiB one shard comes at full speed at the least CPU a byte."""


@contextlib.contextmanager
def contents(store: Store, name: str, *, size: int = 0, read: Read | None = None) -> Iterator[memoryview]:
    """All bytes of an object, for reading it from end to end or at random.

    >>> with contents(open_store("s3://bucket/cc3m"), "x-000000.tar") as data:
    ...     bytes(data[257:262])
    b'ustar'

    A local file is mapped; a remote object is fetched into a temporary file that has no name and is mapped from there,
    so memory stays small.  The view ends with the block: copy what must live longer.  `read(start, end)` has the bytes
    of an object of `size` bytes in place of the store, such as a cache.  Raises ObjectNotFound, ObjectChanged where the
    object is replaced meanwhile, StoreError.
    """
    with contextlib.ExitStack() as stack:
        if store.path is not None and read is None:
            store.info(name)  # the store's own errors for what is absent or no regular file
            file = stack.enter_context(_opened(store.path / check_name(name)))
            size = os.fstat(file).st_size
        else:
            file = stack.enter_context(tempfile.TemporaryFile()).fileno()
            if read is None:
                info = store.info(name)
                size, read = info.size, partial(store.read_view, name, version=info.version)
            _fetch(size, read, file)
        if size == 0:
            yield memoryview(b"")
            return
        mapped = mmap.mmap(file, size, access=mmap.ACCESS_READ)
        view = memoryview(mapped)
        try:
            yield view
        finally:
            # Views that outlive the block keep the map open until they are collected.
            with contextlib.suppress(BufferError):
                view.release()
                mapped.close()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(error.strerror or str(error), shard=str(path)) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _fetch(size: int, read: Read, fd: int) -> None:
    """Copy all bytes to the start of the file `fd`."""

    def copy(start: int) -> None:
        data = read(start, min(start + PART, size))
        while data:
            written = os.pwrite(fd, data, start)
            data, start = data[written:], start + written

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        for _ in pool.map(copy, range(0, size, PART)):
            pass
