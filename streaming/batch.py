"""Samples to batches.

>>> batch = collate([{"__key__": "a", "cls": 1, "txt": "one"}, {"__key__": "b", "cls": 2, "txt": "two"}])
>>> batch["cls"], batch["txt"], batch["__key__"]
(tensor([1, 2]), ['one', 'two'], ['a', 'b'])
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np
import torch

from .buffers import SMALL
from .copying import write
from .errors import BatchError

Allocate = Callable[..., torch.Tensor]
"""allocate(shape, dtype): memory for a tensor of a batch."""


def fresh(shape: Sequence[int], dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Memory of its own for each tensor."""
    return torch.empty(tuple(shape), dtype=dtype)


def shared(shape: Sequence[int], dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Memory that torch's DataLoader hands from a worker to the trainer as it is; it would copy any other."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if size < SMALL:
        return fresh(shape, dtype)
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype).set_(storage, 0, tuple(shape))  # type: ignore[call-overload, no-any-return]


class Places:
    """The images of a batch, all of one size, each of which is decoded into its place.

    >>> places = Places(64, (224, 224))
    >>> places.at("jpg", 3).shape
    torch.Size([3, 224, 224])

    A field gets its tensor [n, 3, h, w] when the first of its images is decoded; safe to share between threads.
    """

    def __init__(
        self, n: int, size: tuple[int, int], allocate: Allocate = fresh, *, channels_last: bool = False
    ) -> None:
        self._shape = (n, 3, *size)
        self._allocate = allocate
        self._channels_last = channels_last
        self._lock = Lock()
        self._tensors: dict[str, torch.Tensor] = {}
        self._given: dict[str, tuple[torch.Tensor, ...]] = {}

    def at(self, field: str, i: int) -> torch.Tensor:
        """uint8 [3, h, w]: where image i of the field goes."""
        with self._lock:
            if field not in self._tensors:
                tensor = self._tensors[field] = self._made()
                self._given[field] = tensor.unbind()  # all at once: one call each would take longer
            return self._given[field][i]

    def _made(self) -> torch.Tensor:
        if not self._channels_last:
            return self._allocate(self._shape, torch.uint8)
        n, c, h, w = self._shape
        return self._allocate((n, h, w, c), torch.uint8).permute(0, 3, 1, 2)

    def whole(self, field: str, values: Sequence[Any]) -> torch.Tensor | None:
        """The field's tensor where `values` are its images, all of them and in order, else None."""
        given = self._given.get(field, ())
        same = len(values) == len(given) and all(map(operator.is_, given, values))
        return self._tensors[field] if same else None


def collate(
    samples: Sequence[dict[str, Any]], allocate: Allocate = fresh, places: Places | None = None
) -> dict[str, Any]:
    """One dict of n samples: each field becomes one value.

    Tensors and arrays of equal shape are stacked to [n, ...]; whole numbers become int64 [n], floats float32 [n], truth
    values bool [n]; everything else (text, bytes, dicts) a list of n.  Raises BatchError, naming key and field, where
    samples have different fields, or arrays of different shape.  Images that lie in their `places` are not copied.
    """
    if not samples:
        raise BatchError("a batch without samples")
    first = samples[0]
    for sample in samples:
        if sample.keys() != first.keys():
            differing = sorted(set(sample) ^ set(first))
            raise BatchError(
                f"samples of a batch have different fields: {differing} is not in both this and {first['__key__']!r}",
                key=sample["__key__"],
                hint="name the fields to read with fields=[...], alternatives as 'jpg;png'",
            )
    batch = {}
    for field in first:
        values = [s[field] for s in samples]
        whole = None if places is None else places.whole(field, values)
        batch[field] = column(field, values, lambda i: str(samples[i]["__key__"]), allocate) if whole is None else whole
    return batch


def column(field: str, values: list[Any], key: Callable[[int], str], allocate: Allocate = fresh) -> Any:
    """The values of one field as a batch holds them; `key(i)` names sample i in errors.  Raises BatchError."""
    first = values[0]
    if isinstance(first, torch.Tensor | np.ndarray | np.generic):
        return _stacked(field, values, key, allocate)
    kinds = {type(v) for v in values}
    if kinds == {bool}:
        return torch.tensor(values, dtype=torch.bool)
    if kinds == {int} and all(-(1 << 63) <= v < 1 << 63 for v in values):
        return torch.tensor(values, dtype=torch.int64)
    if kinds <= {int, float} and float in kinds:
        return torch.tensor(values, dtype=torch.float32)
    return values


def _stacked(field: str, values: list[Any], key: Callable[[int], str], allocate: Allocate) -> torch.Tensor:
    values = [_as_tensor(value) for value in values]
    first = values[0]
    for i, value in enumerate(values):
        if not isinstance(value, torch.Tensor) or value.shape != first.shape or value.dtype != first.dtype:
            raise BatchError(
                f"values of a batch differ: {_shape(first)} and {_shape(value)}",
                key=key(i),
                field=field,
                hint="make them equal in transform=, give FixedBatch(n, size=...) for images, or collate=",
            )
    if any(v.device.type != "cpu" or v.layout != torch.strided or v.requires_grad for v in values):
        return torch.stack(values)
    whole = allocate((len(values), *first.shape), first.dtype)
    for place, value in zip(whole, values, strict=True):
        write(place, value)
    return whole


def _as_tensor(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    return torch.tensor(value) if isinstance(value, np.generic) else value


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__


def size_of(value: Any) -> int:
    """About how many bytes a sample or a batch holds; what is not array, text or bytes counts as 64."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, (bytes, str, memoryview)):
        return len(value)
    if isinstance(value, dict):
        return sum(size_of(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return sum(size_of(v) for v in value)
    return 64
