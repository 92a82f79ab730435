"""Samples to batches.

>>> batch = collate([{"__key__": "a", "cls": 1, "txt": "one"}, {"__key__": "b", "cls": 2, "txt": "two"}])
>>> batch["cls"], batch["txt"], batch["__key__"]
(tensor([1, 2]), ['one', 'two'], ['a', 'b'])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .errors import BatchError


def collate(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One dict of n samples: each field becomes one value.

    Tensors and arrays of equal shape are stacked to [n, ...]; whole numbers become int64 [n], floats float32 [n], truth
    values bool [n]; everything else (text, bytes, dicts) a list of n.  Raises BatchError, naming key and field, where
    samples have different fields, or arrays of different shape.
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
    return {field: _column(field, [s[field] for s in samples], samples) for field in first}


def _column(field: str, values: list[Any], samples: Sequence[dict[str, Any]]) -> Any:
    first = values[0]
    if isinstance(first, np.ndarray) or (np.isscalar(first) and isinstance(first, np.generic)):
        values = [
            torch.from_numpy(np.ascontiguousarray(v)) if isinstance(v, np.ndarray) else torch.tensor(v) for v in values
        ]
        first = values[0]
    if isinstance(first, torch.Tensor):
        for value, sample in zip(values, samples, strict=True):
            if not isinstance(value, torch.Tensor) or value.shape != first.shape or value.dtype != first.dtype:
                raise BatchError(
                    f"values of a batch differ: {_shape(first)} and {_shape(value)}",
                    key=sample["__key__"],
                    field=field,
                    hint="make them equal in transform=, give FixedBatch(n, size=...) for images, or collate=",
                )
        return torch.stack(values)
    kinds = {type(v) for v in values}
    if kinds == {bool}:
        return torch.tensor(values, dtype=torch.bool)
    if kinds == {int} and all(-(1 << 63) <= v < 1 << 63 for v in values):
        return torch.tensor(values, dtype=torch.int64)
    if kinds <= {int, float} and float in kinds:
        return torch.tensor(values, dtype=torch.float32)
    return values


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
    if isinstance(value, (bytes, str)):
        return len(value)
    if isinstance(value, dict):
        return sum(size_of(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return sum(size_of(v) for v in value)
    return 64
