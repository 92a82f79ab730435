"""Memory of mapped files.

>>> let_go(manifest.histograms["size"].counts[:1000])       # read, and not needed for now
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray


def let_go(array: NDArray[Any]) -> None:
    """Give back the memory that holds an array of a mapped index; what is read again comes from the file again."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if not isinstance(owner, mmap.mmap) or not array.size or not array.flags.c_contiguous:
        return
    first = array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    start = first // mmap.PAGESIZE * mmap.PAGESIZE
    owner.madvise(mmap.MADV_DONTNEED, start, first + array.nbytes - start)
