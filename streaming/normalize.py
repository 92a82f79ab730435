"""Pixels to numbers that a model takes, for whole batches on the device where they are.

>>> Normalize(dtype=torch.float16)(torch.zeros((2, 3, 8, 8), dtype=torch.uint8)).dtype
torch.float16
>>> loader = StreamingLoader(train, device="cuda", device_transform=Normalize(dtype=torch.bfloat16))

Batches travel as uint8, a quarter of float32, and become floating-point numbers behind the copy to the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeVar

import torch

from .errors import BatchError, FieldMissing, PlanError

_DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32)
_Batch = TypeVar("_Batch", torch.Tensor, dict[str, Any])


@dataclass(frozen=True, slots=True)
class Normalize:
    """Makes (pixel / 255 - mean) / std of images, per channel; computed in float32, given as `dtype`.

    >>> Normalize()({"jpg": images, "cls": labels})        # {"jpg": float32 [n, 3, h, w], "cls": as it was}
    >>> Normalize(mean=None)(images)                       # pixel / 255 and nothing else

    The defaults are ImageNet's mean and standard deviation.  `dtype` is torch.float32, float16 or bfloat16.  Call it
    with uint8 images [n, 3, h, w] or [3, h, w], or with a batch: its uint8 images [n, 3, h, w], or the `fields` named,
    are replaced in a new dict.  They stay on their device and keep their layout, channels-last too.

    Of batches that are padded (`<field>.sizes` is there) the padding becomes 0, which is the mean, whatever it was.
    Those that are packed (`<field>.offsets` too) are normalised image by image.

    Raises PlanError for arguments that make no sense, FieldMissing for a field that the batch lacks, BatchError where
    there are no uint8 images.
    """

    mean: Sequence[float] | None = (0.485, 0.456, 0.406)
    std: Sequence[float] | None = (0.229, 0.224, 0.225)
    dtype: torch.dtype = torch.float32
    fields: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise PlanError(f"Normalize(dtype={self.dtype!r}): give torch.float32, torch.float16 or torch.bfloat16")
        if isinstance(self.fields, str):
            raise PlanError(f"Normalize(fields={self.fields!r}): give a list of names")
        if self.mean is None:
            return
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is None or len(values) != 3 or not all(math.isfinite(v) for v in values):
                raise PlanError(f"Normalize({name}={values!r}): give three numbers, for red, green and blue")
            if name == "std" and min(values) <= 0:
                raise PlanError(f"Normalize(std={values!r}): give numbers above 0")
            object.__setattr__(self, name, tuple(float(v) for v in values))

    def __call__(self, batch: _Batch) -> _Batch:
        """The images, or the batch, with numbers in place of pixels."""
        if isinstance(batch, torch.Tensor):
            return self._dense(_checked(batch, batch.ndim in (3, 4) and batch.shape[-3] == 3))
        changed = dict(batch)
        for field in self._chosen(batch):
            try:
                changed[field] = self._field(batch, field)
            except BatchError as error:
                raise error.at(field=field) from None
        return changed

    def _chosen(self, batch: dict[str, Any]) -> list[str]:
        if self.fields is None:
            found = [field for field in batch if _holds_images(batch, field)]
            if not found:
                raise BatchError("the batch has no uint8 images", hint="name their fields, or leave Normalize out")
            return found
        for field in self.fields:
            if field not in batch:
                raise FieldMissing(f"the batch has no field {field!r}", field=field, hint=f"it has {', '.join(batch)}")
        return list(self.fields)

    def _field(self, batch: dict[str, Any], field: str) -> torch.Tensor:
        images = _checked(batch[field], _holds_images(batch, field))
        if images.ndim == 1:
            return self._packed(images, batch[f"{field}.offsets"], batch[f"{field}.sizes"])
        out = self._dense(images)
        sizes = batch.get(f"{field}.sizes")
        return out if sizes is None else out.masked_fill_(_padding(out, sizes.to(out.device)), 0)

    def _dense(self, images: torch.Tensor) -> torch.Tensor:
        return self._write(images, torch.empty_like(images, dtype=self.dtype))

    def _packed(self, flat: torch.Tensor, offsets: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(flat, dtype=self.dtype)
        for start, end, height, width in _extents(offsets, sizes):
            shape = 3, height, width
            self._write(flat[start:end].view(shape), out[start:end].view(shape))
        return out

    def _write(self, images: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Numbers for pixels, in one pass: the operations take both types as they are and compute in float32."""
        if self.mean is None or self.std is None:
            return torch.div(images, 255.0, out=out)
        scale, shift = _affine(tuple(self.mean), tuple(self.std), images.device)
        return torch.addcmul(shift, images, scale, out=out)


def _holds_images(batch: dict[str, Any], field: str) -> bool:
    value = batch[field]
    if not isinstance(value, torch.Tensor) or value.dtype != torch.uint8:
        return False
    if value.ndim == 1:
        return f"{field}.offsets" in batch and f"{field}.sizes" in batch
    return value.ndim == 4 and value.shape[1] == 3


def _checked(value: Any, fits: bool) -> torch.Tensor:
    """The value, where it is a tensor of uint8 images."""
    if fits and isinstance(value, torch.Tensor) and value.dtype == torch.uint8:
        return value
    kind = f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
    raise BatchError(f"Normalize takes uint8 images [n, 3, height, width], not {kind}")


def _padding(images: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Where images [n, c, h, w] lie outside of their sizes [n, 2]: bool [n, 1, h, w]."""
    rows = torch.arange(images.shape[2], device=images.device) >= sizes[:, :1]
    columns = torch.arange(images.shape[3], device=images.device) >= sizes[:, 1:]
    return (rows[:, :, None] | columns[:, None, :])[:, None]


def _extents(offsets: torch.Tensor, sizes: torch.Tensor) -> Iterator[tuple[int, int, int, int]]:
    """(start, end, height, width) of each image of a packed batch."""
    bounds = offsets.tolist()
    for start, end, (height, width) in zip(bounds, bounds[1:], sizes.tolist(), strict=False):
        if end - start != 3 * height * width:
            raise BatchError(f"an image of {height} x {width} pixels has {end - start} values, not three for each")
        yield start, end, height, width


@lru_cache(maxsize=16)
def _affine(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(scale, shift) float32 [3, 1, 1] on the device: what is made of a pixel is pixel * scale + shift."""

    def channels(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device).view(3, 1, 1)

    return channels([1 / (255 * s) for s in std]), channels([-m / s for m, s in zip(mean, std, strict=True)])
