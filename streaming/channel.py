"""Batches from a worker process to the trainer's, through memory that both map and that is used again.

In the worker:                                      In the trainer's process:

>>> sender = Sender(connection)                     >>> receiver = Receiver(connection)
>>> image = sender.buffers.tensor((64, 3, 224, 224))
>>> sender.send({"jpg": image, "txt": [...]})       >>> receiver.receive()
                                                    {'jpg': tensor(...), 'txt': [...]}

Large tensors and arrays lie in buffers that the worker makes and the trainer's process maps once; one that was decoded
into a buffer is not copied at all, any other once.  What is left, a few numbers and texts, is pickled.  A buffer is the
worker's again when nothing in the trainer refers to its tensors any more (`Receiver.unused`, `Buffers.back`).  A
trainer that keeps more than `hold` batches gets copies, so that a worker needs a few buffers only.

The memory has no name (memfd, or a file that is deleted at once): it ends with the two processes, however they end, and
neither the size of /dev/shm nor a limit on shared segments counts.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
import weakref
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, Final

import numpy as np
import torch

from .buffers import SMALL, Buffer, Buffers, Memory
from .copying import write
from .errors import TransformError, WorkerError

HOLD: Final = 2
"""Batches that a trainer may keep without getting copies: the one it works on, and the one before."""


class Sender:
    """The worker's end.  Its buffers are for one thread or many; send and close are for one thread."""

    def __init__(self, connection: Connection, *, keep: int = 256 << 20) -> None:
        self.connection = connection
        self.buffers = Buffers(self._allocate, keep=keep, dropped=self._drop)
        self._files: dict[int, int] = {}
        """Address of memory that the trainer does not map yet -> its file descriptor."""
        self._dropped: deque[int] = deque()
        """Numbers of buffers that were given up, in any thread, since the last message."""

    def _allocate(self, size: int) -> Memory:
        file = _memory_file()
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, size)  # an error now rather than SIGBUS when it is written to
            else:
                os.ftruncate(file, size)
            array = np.frombuffer(mmap.mmap(file, size), np.uint8)
        except OSError as error:
            os.close(file)
            raise WorkerError(
                f"no {size:,} bytes of shared memory for a batch: {error}",
                hint="lower ahead_bytes, prefetch or workers, or use workers=0",
            ) from error
        self._files[array.ctypes.data] = file
        return array

    def _drop(self, buffer: Buffer) -> None:
        file = self._files.pop(buffer.array.ctypes.data, None)
        if file is not None:
            os.close(file)
        else:
            self._dropped.append(buffer.number)

    def send(self, item: Any, **header: Any) -> None:
        """Send an item; `header`, a few plain values, comes with it.

        Raises TransformError for what can't be pickled, OSError where the trainer is gone.
        """
        pickler = _Pickler(self.buffers)
        try:
            pickler.dump(item)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            for number in pickler.lent:
                self.buffers.back(number)
            raise TransformError(
                f"a {type(item).__name__} can't be sent from the worker process: {error}",
                hint="return tensors, arrays, numbers, text and containers of these, or use workers=0",
            ) from error
        stream, inline = pickler.stream.getbuffer(), None
        if len(stream) < SMALL:
            inline = bytes(stream)
        else:
            pickler.place(torch.frombuffer(stream, dtype=torch.uint8))  # the last of those lent
        new = [buffer for buffer, _ in pickler.lent.values() if buffer.array.ctypes.data in self._files]
        dropped = [self._dropped.popleft() for _ in range(len(self._dropped))]
        lent = [(number, used) for number, (_, used) in pickler.lent.items()]
        self.connection.send((header, [(b.number, len(b.array)) for b in new], dropped, lent, inline))
        for buffer in new:
            file = self._files.pop(buffer.array.ctypes.data)
            send_handle(self.connection, file, 0)
            os.close(file)

    def close(self) -> None:
        """Close the connection, and what the trainer was never told of."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()
        self.connection.close()


class Receiver:
    """The trainer's end; for one thread.  Copies are made in memory of `buffers`."""

    def __init__(self, connection: Connection, buffers: Buffers, *, hold: int = HOLD) -> None:
        self.connection = connection
        self.copies = 0
        """Batches that were copied, since the trainer kept others."""
        self._buffers = buffers
        self._hold = hold
        self._mapped: dict[int, Memory] = {}
        self._kept: dict[int, tuple[int, weakref.KeyedRef[int, Memory]]] = {}
        """Buffer -> the message it came with, and what lives as long as its tensors do."""
        # As in Buffers: finalizers, which run at any moment, only note what has ended.
        self._ended: deque[weakref.KeyedRef[int, Memory]] = deque()
        self._unused: list[int] = []
        self._messages = 0

    def receive(self, wanted: Callable[[dict[str, Any]], bool]) -> tuple[dict[str, Any], Any]:
        """(header, item) of the next message; one whose header is not `wanted` comes without its item.

        Raises EOFError or OSError where the worker is gone.
        """
        header, new, dropped, lent, inline = self.connection.recv()
        for number in dropped:
            del self._mapped[number]
        for number, size in new:
            file = recv_handle(self.connection)
            try:
                self._mapped[number] = np.frombuffer(mmap.mmap(file, size), np.uint8)
            finally:
                os.close(file)
        self._messages += 1
        if not wanted(header):
            self._unused += [number for number, _ in lent]
            return header, None
        return header, self._load(lent, inline)

    def _load(self, lent: list[tuple[int, int]], inline: bytes | None) -> Any:
        self._settle()
        copying = len({message for message, _ in self._kept.values()}) >= self._hold
        if inline is None:
            number, size = lent.pop()
            stream: Any = self._mapped[number][:size].data
            self._unused.append(number)
        else:
            stream = inline
        self.copies += copying and bool(lent)
        take = self._copy if copying else self._keep
        return _Unpickler(io.BytesIO(stream), {number: take(number, size) for number, size in lent}).load()

    def _keep(self, number: int, size: int) -> torch.Tensor:
        array = self._mapped[number][:size]
        self._kept[number] = self._messages, weakref.KeyedRef(array, self._ended.append, number)
        return torch.from_numpy(array)

    def _copy(self, number: int, size: int) -> torch.Tensor:
        self._unused.append(number)
        copy = self._buffers.tensor((size,))
        np.copyto(copy.numpy(), self._mapped[number][:size])
        return copy

    def _settle(self) -> None:
        while self._ended:
            number = self._ended.popleft().key
            del self._kept[number]
            self._unused.append(number)

    def unused(self) -> list[int]:
        """The buffers to which nothing refers here any more, since this was last asked."""
        self._settle()
        unused, self._unused = self._unused, []
        return unused


class _Pickler(pickle.Pickler):
    """Pickles an item but for its large tensors and arrays, which it places in buffers."""

    def __init__(self, buffers: Buffers) -> None:
        self.stream = io.BytesIO()
        super().__init__(self.stream, protocol=pickle.HIGHEST_PROTOCOL)
        self.lent: dict[int, tuple[Buffer, int]] = {}
        """Number -> the buffer, and how many bytes of it are used."""
        self._buffers = buffers
        self._storages: dict[int, int] = {}
        """Address of a storage that is lent with this item -> number of its buffer."""
        self._known: dict[int, tuple[Any, Any]] = {}

    def persistent_id(self, obj: Any) -> Any:
        """Where a large tensor or array lies; None for what is to be pickled."""
        kind = type(obj)
        if kind is torch.Tensor:
            if not _plain(obj) or obj.numel() * obj.element_size() < SMALL:
                return None
        elif kind is not np.ndarray or obj.nbytes < SMALL or obj.dtype.kind not in "biufc":
            return None
        known = self._known.get(id(obj))
        if known is None:  # the object is kept, or another might get its number
            known = self._known[id(obj)] = obj, self._placed(obj)
        return known[1]

    def reducer_override(self, obj: Any) -> Any:
        """Small tensors as their bytes, views of memory as bytes; NotImplemented for all else."""
        if type(obj) is torch.Tensor and _plain(obj):
            # A clone has the strides of its shape; contiguous() leaves any to dimensions of one or no element.
            dense = obj.clone(memory_format=torch.contiguous_format).reshape(-1)
            data = dense.view(torch.uint8).numpy().tobytes() if len(dense) else b""
            return _small, (data, _name(obj.dtype), tuple(obj.shape))
        return (bytes, (bytes(obj),)) if type(obj) is memoryview else NotImplemented

    def _placed(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, np.ndarray):
            number, offset, _ = self.place(torch.from_numpy(np.ascontiguousarray(value).reshape(-1).view(np.uint8)))
            return "array", number, offset, value.dtype.str, value.shape
        return "tensor", *self.place(value), _name(value.dtype), tuple(value.shape)

    def place(self, tensor: torch.Tensor) -> tuple[int, int, tuple[int, ...]]:
        """(number of the buffer, bytes from its start, strides): where a tensor lies, or its copy."""
        storage = tensor.untyped_storage()
        number = self._storages.get(storage.data_ptr())
        if number is None:
            found = self._buffers.lend(tensor)
            if found is None:
                copy = self._buffers.tensor(tuple(tensor.shape), tensor.dtype)
                write(copy, tensor)
                found = self._buffers.lend(copy)
                assert found is not None  # noqa: S101  (a buffer that was just taken)
                tensor, storage = copy, copy.untyped_storage()
            number = found.number
            self.lent[number] = found, storage.nbytes()
            self._storages[storage.data_ptr()] = number
        return number, int(tensor.storage_offset()) * tensor.element_size(), tuple(tensor.stride())


class _Unpickler(pickle.Unpickler):
    """Loads what _Pickler made; `flat` has the bytes of each buffer."""

    def __init__(self, file: io.BytesIO, flat: dict[int, torch.Tensor]) -> None:
        super().__init__(file)
        self._flat = flat

    def persistent_load(self, pid: Any) -> Any:
        """The tensor or array that lies in a buffer."""
        if pid[0] == "array":
            _, number, offset, dtype, shape = pid
            kind = np.dtype(dtype)
            size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
            return self._flat[number][offset : offset + size].numpy().view(kind).reshape(shape)
        _, number, offset, stride, name, shape = pid
        dtype = getattr(torch, name)
        span = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
        flat = self._flat[number][offset : offset + span * dtype.itemsize]
        return flat.view(dtype).as_strided(shape, stride)


def _plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but numbers in memory."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _small(data: bytes, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    dtype = getattr(torch, name)
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def _memory_file() -> int:
    """A file descriptor of memory without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("shardstream", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
