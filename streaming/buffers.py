"""Memory that is used again: tensors in buffers that come back when nothing refers to the tensor any more.

>>> buffers = Buffers()
>>> first = buffers.tensor((64, 3, 224, 224))
>>> place = first.data_ptr()
>>> del first
>>> buffers.tensor((64, 3, 224, 224)).data_ptr() == place
True

Fresh memory of a few MB costs a page fault for every 4 kB, and the C library gives it back to the system when it is
freed; a batch of 64 images spends some 3 ms on that.  A tensor that the user keeps, or of which they keep a view or an
array, keeps its buffer; a new one is made for the next batch then.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

SMALL: Final = 64 << 10
"""Bytes of a tensor from which on it gets a buffer; smaller ones are cheap to allocate."""

Memory = NDArray[np.uint8]


class Buffer:
    """A piece of memory, and who uses it: a tensor here, and for shared memory the process that it was sent to."""

    __slots__ = ("array", "lent", "number", "tensor")

    def __init__(self, number: int, array: Memory) -> None:
        self.number = number
        self.array = array
        self.tensor: weakref.KeyedRef[Buffer, Memory] | None = None
        self.lent = False


class Buffers:
    """Buffers by size; safe to share between threads.

    allocate(n)   gives n bytes of memory (default: of this process); `keep` bytes of it lie unused at most
    dropped       is told of a buffer that is given up
    """

    def __init__(
        self,
        allocate: Callable[[int], Memory] | None = None,
        *,
        keep: int = 256 << 20,
        dropped: Callable[[Buffer], None] | None = None,
    ) -> None:
        self._allocate = allocate or _private
        self._dropped = dropped
        self._keep = keep
        self._lock = Lock()
        self._free: list[Buffer] = []
        self._used: dict[int, Buffer] = {}
        """By the address at which the memory begins."""
        # Finalizers run at any moment, also while this object's lock is held: they only note what has ended.  They are
        # a method in C, since an interrupt (Ctrl-C) that is met in a finalizer is lost.
        self._ended: deque[weakref.KeyedRef[Buffer, Memory]] = deque()
        self._made = 0

    def tensor(
        self, shape: Sequence[int], dtype: torch.dtype = torch.uint8, *, channels_last: bool = False
    ) -> torch.Tensor:
        """An uninitialised tensor; with `channels_last` [n, c, h, w] lies in memory as [n, h, w, c]."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        flat = torch.empty(size, dtype=torch.uint8) if size < SMALL else self._take(size)
        if channels_last:
            n, c, h, w = shape
            return flat.view(dtype).view(n, h, w, c).permute(0, 3, 1, 2)
        return flat.view(dtype).view(tuple(shape))

    def _take(self, size: int) -> torch.Tensor:
        with self._lock:
            self._collect()
            fitting = [b for b in self._free if size <= len(b.array) <= 2 * size]
            if fitting:
                buffer = min(fitting, key=lambda b: len(b.array))
                self._free.remove(buffer)
            else:
                self._drop(self._keep - size)
                self._made += 1
                buffer = Buffer(self._made, self._allocate(_rounded(size)))
            self._used[buffer.array.ctypes.data] = buffer
            array = buffer.array[:size]
            buffer.tensor = weakref.KeyedRef(array, self._ended.append, buffer)
        return torch.from_numpy(array)

    def _collect(self) -> None:
        """Take back the buffers whose tensors have ended."""
        while self._ended:
            buffer = self._ended.popleft().key
            buffer.tensor = None
            self._free_if_unused(buffer)
        self._drop(self._keep)

    def _free_if_unused(self, buffer: Buffer) -> None:
        if buffer.tensor is None and not buffer.lent:
            del self._used[buffer.array.ctypes.data]
            self._free.append(buffer)

    def _drop(self, keep: int) -> None:
        """Give up the buffers that have been free for longest, until at most `keep` bytes of free ones are left."""
        held = sum(len(b.array) for b in self._free)
        while self._free and held > keep:
            buffer = self._free.pop(0)
            held -= len(buffer.array)
            if self._dropped is not None:
                self._dropped(buffer)

    def lend(self, tensor: torch.Tensor) -> Buffer | None:
        """The buffer that holds a tensor's storage; it stays in use until `back`.

        None for a tensor that lies elsewhere, or whose buffer is lent already.
        """
        with self._lock:
            buffer = self._used.get(tensor.untyped_storage().data_ptr())
            if buffer is None or buffer.lent or tensor.untyped_storage().nbytes() < SMALL:
                return None
            buffer.lent = True
            return buffer

    def back(self, number: int) -> None:
        """What was lent is not used any more where it was sent."""
        with self._lock:
            for buffer in self._used.values():
                if buffer.number == number:
                    buffer.lent = False
                    self._free_if_unused(buffer)
                    return

    def counts(self) -> dict[str, Any]:
        """How many buffers were made in all, and how many are in use and free now."""
        with self._lock:
            self._collect()
            return {"made": self._made, "used": len(self._used), "free": len(self._free)}


def _private(size: int) -> Memory:
    return np.empty(size, np.uint8)


def _rounded(size: int) -> int:
    """The next of eight sizes an octave, so that buffers serve batches of nearly equal size."""
    step = max(4096, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step
