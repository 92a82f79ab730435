"""Batches of values of unequal size: padded to the largest, or packed one behind the other.

>>> batch = padded(samples, images=True)                       # samples of 3 x 40 x 30 and 3 x 20 x 50 pixels
>>> batch["jpg"].shape, batch["jpg.sizes"].tolist()
(torch.Size([2, 3, 40, 50]), [[40, 30], [20, 50]])
>>> batch = packed(samples, images=True)
>>> batch["jpg"].shape, batch["jpg.offsets"].tolist(), [image.shape for image in views(batch, "jpg")]
(torch.Size([6600]), [0, 3600, 6600], [torch.Size([3, 40, 30]), torch.Size([3, 20, 50])])

With `images`, arrays of three dimensions [c, h, w] are handled so: `<field>.sizes` int64 [n, 2] holds (height, width).
Without, arrays of one and two dimensions are, along one axis: the last for the fields of `last`, named in whole or by
their last part (waveforms [channels, frames]), the first for others (features [frames, dims], tokens [n]);
`<field>.lengths` int64 [n] holds the lengths there.  All other values are collated as in any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch

from .batch import Allocate, collate, fresh
from .copying import clear, write
from .errors import BatchError

Sample = dict[str, Any]
Join = Callable[[str, list[torch.Tensor]], dict[str, Any]]


def padded(
    samples: Sequence[Sample],
    *,
    images: bool,
    last: Collection[str] = (),
    limit: float | None = None,
    allocate: Allocate = fresh,
) -> dict[str, Any]:
    """One batch whose arrays are padded with zeros at their ends.  Raises BatchError.

    With `images`, `limit` is how many pixels, padding included, a batch of more than one may have: more, where images
    are larger than their index says or a transform enlarges them, is an error.
    """

    def join(field: str, values: list[torch.Tensor]) -> dict[str, Any]:
        if images:
            return _padded_images(field, values, samples, limit, allocate)
        return _padded_arrays(field, values, samples, _axis(field, last), allocate)

    return _joined(samples, join, (3,) if images else (1, 2))


def packed(
    samples: Sequence[Sample],
    *,
    images: bool,
    last: Collection[str] = (),
    limit: float | None = None,
    allocate: Allocate = fresh,
) -> dict[str, Any]:
    """One batch whose arrays lie one behind the other; `<field>.offsets` int64 [n + 1] says where each begins.

    Images are laid out flat; `views` gives them back.  Other arrays are joined along their axis.  Raises BatchError.
    """

    def join(field: str, values: list[torch.Tensor]) -> dict[str, Any]:
        if images:
            return _packed_images(field, values, samples, limit, allocate)
        axis = _axis(field, last)
        lengths = [v.shape[axis] for v in values]
        _check_alike(field, values, samples, axis)
        return {field: _joined_along(values, axis, allocate), f"{field}.offsets": _offsets(lengths)}

    return _joined(samples, join, (3,) if images else (1, 2))


def views(batch: dict[str, Any], field: str) -> list[torch.Tensor]:
    """The images [c, h, w] of a packed batch, as views of its one buffer."""
    offsets, sizes = batch[f"{field}.offsets"].tolist(), batch[f"{field}.sizes"].tolist()
    return [batch[field][offsets[i] : offsets[i + 1]].view(-1, h, w) for i, (h, w) in enumerate(sizes)]


def _joined(samples: Sequence[Sample], join: Join, dimensions: tuple[int, ...]) -> dict[str, Any]:
    """Fields that hold arrays of so many dimensions go through `join`, the others are collated."""
    ragged = [
        field
        for field, value in (samples[0].items() if samples else ())
        if isinstance(value, torch.Tensor | np.ndarray) and value.ndim in dimensions
    ]
    # Here fields that a sample lacks, or has alone, are found.
    batch = collate([{k: None if k in ragged else v for k, v in s.items()} for s in samples])
    found: dict[str, Any] = {}
    for field in samples[0]:
        if field not in ragged:
            found[field] = batch[field]
            continue
        values = []
        for sample in samples:
            value = sample[field]
            if isinstance(value, np.ndarray):
                value = torch.from_numpy(np.ascontiguousarray(value))
            if not isinstance(value, torch.Tensor) or value.ndim != samples[0][field].ndim:
                raise BatchError(
                    f"values of a batch differ: {_shape(samples[0][field])} and {_shape(value)}",
                    key=sample["__key__"],
                    field=field,
                )
            values.append(value)
        found |= join(field, values)
    return found


def _axis(field: str, last: Collection[str]) -> int:
    """Along which axis arrays of a field differ; "wav" in `last` also means "left.wav"."""
    return -1 if field in last or field.rpartition(".")[2] in last else 0


def _padded_images(
    field: str, values: list[torch.Tensor], samples: Sequence[Sample], limit: float | None, allocate: Allocate
) -> dict[str, Any]:
    sizes = [(v.shape[1], v.shape[2]) for v in values]
    height, width = max(h for h, _ in sizes), max(w for _, w in sizes)
    _check_limit(field, len(values) * height * width, len(values), samples, limit)
    _check_alike(field, values, samples, 1, 2)
    out = clear(allocate((len(values), values[0].shape[0], height, width), values[0].dtype))
    for slot, value, (h, w) in zip(out, values, sizes, strict=True):
        write(slot[:, :h, :w], value)
    return {field: out, f"{field}.sizes": torch.tensor(sizes)}


def _padded_arrays(
    field: str, values: list[torch.Tensor], samples: Sequence[Sample], axis: int, allocate: Allocate
) -> dict[str, Any]:
    _check_alike(field, values, samples, axis)
    lengths = [v.shape[axis] for v in values]
    shape = list(values[0].shape)
    shape[axis] = max(lengths)
    out = clear(allocate((len(values), *shape), values[0].dtype))
    for slot, value, length in zip(out, values, lengths, strict=True):
        write(slot.narrow(axis, 0, length), value)
    return {field: out, f"{field}.lengths": torch.tensor(lengths)}


def _packed_images(
    field: str, values: list[torch.Tensor], samples: Sequence[Sample], limit: float | None, allocate: Allocate
) -> dict[str, Any]:
    sizes = [(v.shape[1], v.shape[2]) for v in values]
    _check_limit(field, sum(h * w for h, w in sizes), len(values), samples, limit)
    _check_alike(field, values, samples, 1, 2)
    offsets = _offsets([v.numel() for v in values])
    return {
        field: _joined_along([v.reshape(-1) for v in values], 0, allocate),
        f"{field}.offsets": offsets,
        f"{field}.sizes": torch.tensor(sizes),
    }


def _joined_along(values: list[torch.Tensor], axis: int, allocate: Allocate) -> torch.Tensor:
    """The values one behind the other along an axis."""
    shape = list(values[0].shape)
    shape[axis] = sum(v.shape[axis] for v in values)
    whole = allocate(shape, values[0].dtype)
    start = 0
    for value in values:
        write(whole.narrow(axis, start, value.shape[axis]), value)
        start += value.shape[axis]
    return whole


def _offsets(lengths: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int64))


def _check_alike(field: str, values: list[torch.Tensor], samples: Sequence[Sample], *axes: int) -> None:
    """Raise BatchError unless the values differ along these axes at most."""

    def rest(value: torch.Tensor) -> tuple[Any, ...]:
        shape = list(value.shape)
        for axis in axes:
            shape[axis] = 0
        return (value.dtype, *shape)

    free = "length" if len(axes) == 1 else "size"
    for value, sample in zip(values, samples, strict=True):
        if rest(value) != rest(values[0]):
            raise BatchError(
                f"values of a batch differ in more than their {free}: {_shape(values[0])} and {_shape(value)}",
                key=sample["__key__"],
                field=field,
                hint="make them equal in transform=, or give collate=",
            )


def _check_limit(field: str, pixels: int, n: int, samples: Sequence[Sample], limit: float | None) -> None:
    if limit is not None and n > 1 and pixels > limit:
        raise BatchError(
            f"{n} images take {pixels:,} pixels together, {limit:,.0f} are allowed",
            key=samples[0]["__key__"],
            field=field,
            hint="a transform that enlarges images breaks the budget; else the index is out of date: make it again",
        )


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__
